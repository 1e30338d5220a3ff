"""The examples of docs/python.md, run as one session in an empty folder."""

import doctest
import re
from pathlib import Path

import pytest

from llmcy import num_threads, set_num_threads

PAGE = Path(__file__).parent.parent / "docs" / "python.md"


def test_every_example_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = PAGE.read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert len(blocks) == text.count("```python") >= 8
    examples = doctest.DocTestParser().get_doctest("".join(blocks), {}, PAGE.name, str(PAGE), 0)
    assert len(examples.examples) > 30
    monkeypatch.chdir(tmp_path)
    told: list[str] = []
    threads = num_threads()
    try:
        found = doctest.DocTestRunner(verbose=False).run(examples, out=told.append)
    finally:
        set_num_threads(threads)
    assert found.failed == 0, "".join(told)
    assert found.attempted == len(examples.examples)
