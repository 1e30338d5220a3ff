"""State files: the same state gives the same bytes, and every byte is looked at."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load as library_load

from llmcy.cli.inspect import inspect
from llmcy.config import ModelConfig
from llmcy.errors import RunError
from llmcy.model import Decoder
from llmcy.optim import AdamW, AdamWConfig, ParameterGroups
from llmcy.rng import SplitMix64
from llmcy.run import run_training
from llmcy.run.canonical import canonical_json, float_bits, sha256_hex
from llmcy.run.job_file import (
    decode_state_file,
    describe_state_file,
    encode_state_file,
    is_state_file,
    read_state_file,
)
from llmcy.state import DecoderModelState
from tests.run.tiny import OPTIONS, dataset, settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "runs.md"
NOWHERE = Path("somewhere.safetensors")


def state(dtype: str, steps: int = 2) -> tuple[DecoderModelState, AdamW]:
    """A very small model after some updates."""
    config = ModelConfig(3, 2, 1, 1, 1, 2, dtype=dtype)
    model = Decoder.initialize(config, 1)
    names = [name for name, _ in model.named_parameters()]
    optimizer = AdamW(AdamWConfig(0.1), ParameterGroups.from_rule(names))
    for _ in range(steps):
        model.loss([[0, 1]], [[1, 2]]).backward()
        optimizer.step(model.named_parameters())
        model.zero_grad()
    return DecoderModelState.snapshot(model), optimizer


def encoded(dtype: str, steps: int = 2, **described: Any) -> bytes:
    model, optimizer = state(dtype, steps)
    given = {"kind": "job", "rate": 0.1, "note": "x"} | described
    return encode_state_file(model, model.config, optimizer.snapshot(), given)[0]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("steps", [0, 1, 3])
def test_what_was_written_is_read(dtype: str, steps: int) -> None:
    model, optimizer = state(dtype, steps)
    data = encoded(dtype, steps)
    assert data == encoded(dtype, steps)
    found = decode_state_file(data, NOWHERE, "job")
    assert found.step == steps
    assert found.model.equal_bits(model)
    assert found.optimizer.state.equal_bits(optimizer.state())
    assert found.optimizer.config == optimizer.config
    assert found.optimizer.groups == optimizer.groups
    assert found.described["rate"] == float_bits(0.1) == "f64:3fb999999999999a"
    again, digest = encode_state_file(
        found.model, found.model.config, found.optimizer, {"kind": "job", "rate": 0.1, "note": "x"}
    )
    assert again == data
    assert digest == found.tensors_sha256


def test_other_programs_can_read_the_tensors() -> None:
    model, optimizer = state("float32")
    tensors = library_load(encoded("float32"))
    for name, array in model.named_arrays():
        assert tensors[name].tobytes() == array.tobytes()
    for entry in optimizer.state().entries:
        assert tensors[f"first_moment:{entry.name}"].tobytes() == entry.first_moment.tobytes()
        assert tensors[f"second_moment:{entry.name}"].tobytes() == entry.second_moment.tobytes()
    assert len(tensors) == 3 * len(model.parameter_names())


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_no_byte_can_change(dtype: str) -> None:
    data = encoded(dtype)
    rng = SplitMix64(7)
    for index in range(len(data)):
        for mask in (1 << rng.below(8), 1 + rng.below(255)):
            altered = bytearray(data)
            altered[index] ^= mask
            with pytest.raises(RunError) as caught:
                decode_state_file(bytes(altered), NOWHERE)
            assert caught.value.kind in ("InvalidJobFile", "NotResumable"), index
            assert caught.value.kind == "NotResumable" or caught.value.field, index


def test_no_byte_can_be_missing_or_too_many() -> None:
    data = encoded("float32")
    for length in range(len(data)):
        with pytest.raises(RunError) as caught:
            decode_state_file(data[:length], NOWHERE)
        assert caught.value.field
    for extra in (b"\0", b" ", b"{", bytes(8)):
        with pytest.raises(RunError) as caught:
            decode_state_file(data + extra, NOWHERE)
        assert "follow the last tensor" in str(caught.value)


def test_an_altered_tensor_is_named() -> None:
    data = bytearray(encoded("float64"))
    data[-1] ^= 1
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    last = max((v["data_offsets"][1], k) for k, v in header.items() if k != "__metadata__")[1]
    with pytest.raises(RunError) as caught:
        decode_state_file(bytes(data), NOWHERE)
    assert caught.value.field == f"tensor {last}"
    assert str(NOWHERE) in str(caught.value)


def resealed(data: bytes, change: Any) -> bytes:
    """The file with other metadata, whose own digest is right again."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    described = json.loads(header["__metadata__"]["llmcy"])
    change(described, header)
    described.pop("sha256")
    described["sha256"] = sha256_hex(canonical_json(described))
    header["__metadata__"]["llmcy"] = canonical_json(described).decode()
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def swap(described: dict[str, Any], header: dict[str, Any]) -> None:
    """Give two tensors of one shape each other's place."""
    a, b = "blocks.0.attention.query.weight", "blocks.0.attention.key.weight"
    header[a], header[b] = header[b], header[a]


CONTRADICTIONS: dict[str, tuple[Any, str]] = {
    "nothing": (lambda d, h: None, ""),
    "places of tensors": (swap, "tensor blocks.0.attention"),
    "step": (lambda d, h: d.update(step=3), ""),
    "step 0": (lambda d, h: d.update(step=0), "tensor first_moment:"),
    "kind": (lambda d, h: d.update(kind="other"), "kind"),
    "format": (lambda d, h: d.update(format="llmcy-state-2"), "format"),
    "a tensor's digest": (
        lambda d, h: d["tensors"].update({"final_norm.gain": "0" * 64}),
        "tensor final_norm.gain",
    ),
    "all digests": (lambda d, h: d.update(tensors_sha256="0" * 64), "tensors_sha256"),
    "no digests": (lambda d, h: d.update(tensors=[]), "tensors"),
    "model": (lambda d, h: d["model"].update(d_model=4), "tensor "),
    "endless layers": (lambda d, h: d["model"].update(n_layers=2**70), "model"),
    "model key": (lambda d, h: d["model"].update(width=4), "model"),
    "powers": (
        lambda d, h: d["optimizer"].update(beta_powers=[float_bits(1.5), float_bits(0.5)]),
        "optimizer",
    ),
    "one power": (lambda d, h: d["optimizer"].update(beta_powers=["f64:0"]), "optimizer"),
    "rate": (lambda d, h: d["optimizer"].update(learning_rate=float_bits(-1.0)), "optimizer"),
    "groups": (lambda d, h: d["optimizer"]["groups"].update(decay=["x"]), "optimizer"),
    "a dtype": (lambda d, h: h["final_norm.gain"].update(dtype="F32"), "tensor final_norm.gain"),
    "a shape": (lambda d, h: h["final_norm.gain"].update(shape=[1, 2]), "tensor final_norm.gain"),
    "a new name": (lambda d, h: h.update(extra=h.pop("final_norm.gain")), "tensor extra"),
    "metadata": (lambda d, h: h["__metadata__"].update(other="x"), "header"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_metadata_that_contradicts_itself_is_refused_even_with_its_digest(name: str) -> None:
    change, field = CONTRADICTIONS[name]
    data = resealed(encoded("float64"), change)
    if not field:  # the form itself is right, and steps beyond 0 have no other witness here
        assert decode_state_file(data, NOWHERE).step in (2, 3)
        return
    with pytest.raises(RunError) as caught:
        decode_state_file(data, NOWHERE)
    assert caught.value.kind == "InvalidJobFile"
    assert caught.value.field.startswith(field)


def test_a_kind_can_be_demanded(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    path.write_bytes(encoded("float32", kind="selected"))
    assert read_state_file(path).described["kind"] == "selected"
    with pytest.raises(RunError) as caught:
        read_state_file(path, "job")
    assert caught.value.field == "kind"
    with pytest.raises(RunError) as caught:
        read_state_file(tmp_path / "missing")
    assert caught.value.kind == "Io"


def test_the_metadata_can_be_read_alone(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    data = encoded("float32")
    length = int.from_bytes(data[:8], "little")
    path.write_bytes(data[: 8 + length])  # no tensor is needed
    assert describe_state_file(path)["step"] == 2
    for damage in (data[: 7 + length], data[:5], b"", data[:60] + b"x" + data[61 : 8 + length]):
        path.write_bytes(damage)
        with pytest.raises(RunError):
            describe_state_file(path)


def test_inspecting_prints_what_a_file_says(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    path.write_bytes(encoded("float32"))
    assert is_state_file(path)
    result = CliRunner().invoke(inspect, [str(path)])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    assert any(line.split() == ["step", "2"] for line in lines)
    assert any(line.split() == ["rate", "0.1"] for line in lines)  # decimals for people
    assert any(line.split() == ["model.d_model", "2"] for line in lines)
    digests = describe_state_file(path)["tensors"]
    for name, digest in digests.items():
        assert any(line.startswith(digest) and line.endswith(f" {name}") for line in lines)
    for other in (b"", b"{}", b"LLMCP35\0" + bytes(300)):
        path.write_bytes(other)
        assert not is_state_file(path)
    assert not is_state_file(tmp_path / "missing")


def test_hostile_headers_are_refused_at_once() -> None:
    for data in (
        (2**63).to_bytes(8, "little") + b"{}",
        (2**20).to_bytes(8, "little") + b"{}",
        b"\x02" + bytes(7) + b"[]",
        b"\x04" + bytes(7) + b"null",
        (200_000).to_bytes(8, "little") + b"[" * 200_000,
        b"LLMCP35\0" + bytes(100),
    ):
        with pytest.raises(RunError):
            decode_state_file(data, NOWHERE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("page") / "run"
    run_training(dataset(), settings("float64"), run, OPTIONS)
    return run


def test_the_page_lists_every_file_and_every_key(folder: Path) -> None:
    page = PAGE.read_text(encoding="utf-8")
    for path in folder.iterdir():
        assert f"`{path.name}{'/step-*.safetensors' if path.is_dir() else ''}`" in page, path
    table = page[page.index("| key | value |") : page.index("A selected state has")]
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", table, re.MULTILINE)
    keys = {key for row in rows for key in re.findall(r"`(\w+)`", row)}
    job = describe_state_file(next((folder / "checkpoints").iterdir()))
    assert keys == set(job)
    listed = page[page.index("A selected state has") :].split("\n\n")[0]
    selected = describe_state_file(next((folder / "selected").iterdir()))
    digests = {"tensors", "tensors_sha256", "sha256"}
    assert set(re.findall(r"`(\w+)`", listed)) == set(selected) - digests


def test_the_page_describes_the_digests(folder: Path) -> None:
    path = sorted((folder / "checkpoints").iterdir())[-1]
    job = describe_state_file(path)
    rates = json.loads((folder / "config.json").read_text())["learning_rates"]
    assert job["schedule"] == {
        "planned_steps": 24,
        "rates_sha256": sha256_hex(np.array(rates, "<f8").tobytes()),
        "next_rate": None,
    }
    steps = np.array([0, 7, 8, 21, 24], "<u8")
    assert job["validation"] == {
        "count": 5, "steps_sha256": sha256_hex(steps.tobytes()), "next": None,
    }  # fmt: skip
    assert job["position"] == {"epoch": 2, "batch": 0}
    assert job["rng"]["window_order"]["seed"] == "0x0000000000000004"
    name, array = "final_norm.gain", library_load(path.read_bytes())["final_norm.gain"]
    line = b'["final_norm.gain","float64",[8]]\n'
    assert job["tensors"][name] == sha256_hex(line + array.tobytes())


def test_the_page_describes_the_history(folder: Path) -> None:
    """Followed from the page alone, with the standard library."""
    job = describe_state_file(sorted((folder / "checkpoints").iterdir())[-1])
    text = json.dumps(job["identity"], sort_keys=True, separators=(",", ":"))
    history = sha256_hex(text.encode("ascii"))
    lines = [
        json.loads(line)
        for name in ("steps.jsonl", "evaluations.jsonl")
        for line in (folder / name).read_text().splitlines()
    ]
    lines.sort(key=lambda line: (line["step"], "validation_loss" in line))
    for line in lines:
        record = {k: v for k, v in line.items() if k not in ("history", "wall_seconds")}
        text = json.dumps(record, sort_keys=True, separators=(",", ":"))
        history = sha256_hex(bytes.fromhex(history) + text.encode("ascii"))
        assert history == line["history"]
    assert history == job["history"] == json.loads((folder / "summary.json").read_text())["history"]
