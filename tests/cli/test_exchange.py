"""``llmcy export`` and ``llmcy import``."""

import json
from pathlib import Path

import pytest

from llmcy.interop import import_hf, import_llama2c
from llmcy.run import load_model
from llmcy.run.model_file import encode_model_file
from llmcy.state import DecoderModelState
from tests.cli.command import llmcy
from tests.interop.models import byte_pair, config, state


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    model = state(config(rope_theta=10000.0, n_kv_heads=2, tied_head=False))
    path.write_bytes(encode_model_file(model, byte_pair(), 12))
    return path


def held(path: Path) -> DecoderModelState:
    return DecoderModelState.snapshot(load_model(path).model)


def done(*arguments: object):
    result = llmcy(*arguments)
    assert result.returncode == 0, result.stderr
    return result


def test_a_hugging_face_folder_and_back(model_file: Path, tmp_path: Path) -> None:
    exported = done("export", model_file, tmp_path / "hf", "--format", "hf")
    assert import_hf(tmp_path / "hf").state.equal_bits(held(model_file))
    imported = done("import", tmp_path / "hf", tmp_path / "back.safetensors")
    assert held(tmp_path / "back.safetensors").equal_bits(held(model_file))
    assert load_model(tmp_path / "back.safetensors").tokenizer == byte_pair()
    labels = {result.stdout.splitlines()[-1] for result in (exported, imported)}
    assert labels == {f"parameters {held(model_file).fingerprint()}"}


def test_a_llama2c_file_and_back(model_file: Path, tmp_path: Path) -> None:
    result = done("export", model_file, tmp_path / "model.bin", "--format", "llama2c")
    assert "note" not in result.stderr  # the fixture has that program's epsilon
    assert import_llama2c(tmp_path / "model.bin").state.equal_bits(held(model_file))
    done("import", tmp_path / "model.bin", tmp_path / "back.safetensors", "--rms-norm-eps", 1e-6)
    back = held(tmp_path / "back.safetensors")
    assert back.config.rms_norm_eps == 1e-6
    assert back.bit_pattern().tobytes() == held(model_file).bit_pattern().tobytes()
    done("export", tmp_path / "back.safetensors", tmp_path / "same.safetensors",
         "--format", "safetensors")  # fmt: skip
    assert held(tmp_path / "same.safetensors").equal_bits(back)
    result = done("export", tmp_path / "back.safetensors", tmp_path / "b", "--format", "llama2c")
    assert "note: llama2.c computes norms with epsilon 1e-05" in result.stderr


def test_a_gguf_file(model_file: Path, tmp_path: Path) -> None:
    result = llmcy("export", model_file, tmp_path / "model.gguf", "--format", "gguf")
    try:
        import gguf  # noqa: F401
    except ImportError:
        assert result.returncode == 1
        assert result.stderr.startswith("error: writing a GGUF file needs the package gguf")
        assert not (tmp_path / "model.gguf").exists()
        return
    assert result.returncode == 0, result.stderr
    assert (tmp_path / "model.gguf").read_bytes()[:4] == b"GGUF"


def test_one_line_for_what_is_wrong(model_file: Path, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    for arguments, part in (
        (("export", model_file, tmp_path / "full", "--format", "hf"), "is not empty"),
        (("export", tmp_path / "none", tmp_path / "x", "--format", "hf"), "none"),
        (("import", tmp_path / "full", tmp_path / "x"), "model_type = 'gpt2'"),
        (("import", tmp_path / "none.bin", tmp_path / "x"), "cannot read"),
    ):
        result = llmcy(*arguments)
        assert result.returncode == 1
        assert result.stdout == ""
        assert len(result.stderr.splitlines()) == 1
        assert result.stderr.startswith("error: ")
        assert part in result.stderr
    assert not (tmp_path / "x").exists()
