"""The README's Python examples run as they stand, and its command lines name real options."""

import re
from pathlib import Path

import pytest

from tests.cli.command import llmcy

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert EXAMPLES
    for example in EXAMPLES:
        exec(compile(example, "README.md", "exec"), {})


def test_every_option_it_names_exists() -> None:
    commands = re.findall(r"^\$? ?llmcy (\w+) (.*)$", README, re.MULTILINE)
    assert commands
    for command, rest in commands:
        usage = llmcy(command, "--help").stdout
        for option in re.findall(r"--[a-z-]+", rest):
            assert option in usage, (command, option)


def test_selftest_lines_are_what_the_command_prints() -> None:
    printed = llmcy("selftest").stdout
    shown = README.split("$ llmcy selftest\n")[1].split("```")[0]
    for line in shown.splitlines():
        if line != "..." and not line.startswith(("run=isa:avx512", "odd_sized=isa:avx512")):
            assert line in printed.splitlines()


def test_every_linked_file_exists() -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target
