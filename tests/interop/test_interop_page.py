"""The Python examples of docs/interop.md, run as they stand."""

import re
from pathlib import Path

import pytest

from llmcy.interop import export_hf, import_hf
from tests.interop.models import byte_pair, config, state

PAGE = Path(__file__).resolve().parents[2] / "docs" / "interop.md"


def test_the_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shape = config(n_kv_heads=2, head_size=10, tied_head=False)
    export_hf(state(shape), byte_pair(), "some-llama-folder")
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, object] = {}
    for block in blocks:
        exec(block, names)
    original, copy, tuned = (
        import_hf(name).state for name in ("some-llama-folder", "copy", "tuned")
    )
    assert copy.equal_bits(original)
    assert tuned.config == original.config
    assert tuned.fingerprint() != original.fingerprint()
    result = names["result"]
    assert result.selected_validation_loss < result.checkpoints[0].validation.loss
