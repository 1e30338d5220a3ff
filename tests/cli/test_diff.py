"""``llmcy diff`` on version-1 checkpoints and model files."""

import json
import struct
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from llmcy.cli.diff import diff
from llmcy.config import ModelConfig
from llmcy.model import Decoder
from llmcy.run import encode_model_file
from llmcy.state import DecoderModelState
from llmcy.tokenizer import LiteralTokenizer
from tests.cli.command import llmcy
from tests.oracle.checkpoint_file import build, parse

PUBLISHED = Path(__file__).resolve().parent.parent / "golden" / "published.ckpt"
GATE = "blocks.0.feed_forward.gate.weight"


def changed(role, name, index, value):
    parts = parse(PUBLISHED.read_bytes())
    record = parts.record(role, name)
    numbers = record.floats()
    old, numbers[index] = numbers[index], value(numbers[index])
    record.set_floats(numbers)
    return build(parts), old, numbers[index]


def gate_name():
    names = [r.name.decode() for r in parse(PUBLISHED.read_bytes()).of_role(3)]
    return next(name for name in names if "gate" in name)


@pytest.fixture
def stepped(tmp_path):
    """A copy of the published file in which one second moment is one float further."""
    data, old, new = changed(5, gate_name(), 6, lambda x: float(np.nextafter(x, 1.0)))
    path = tmp_path / "stepped.ckpt"
    path.write_bytes(data)
    return path, old, new


def test_equal_files(tmp_path):
    copy = tmp_path / "copy.ckpt"
    copy.write_bytes(PUBLISHED.read_bytes())
    done = llmcy("diff", PUBLISHED, copy)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "33 tensors, every bit the same"
    done = llmcy("diff", PUBLISHED, copy, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout)["equal"] is True


def test_one_moment_one_step_away(stepped):
    path, old, new = stepped
    done = llmcy("diff", PUBLISHED, path)
    assert (done.returncode, done.stderr) == (1, "")
    name = f"second_moment:{gate_name()}"
    assert f"1 of 33 tensors differ, first {name}, most {name} by 1 ulp" in done.stdout
    assert f"first    [1, 2]: {old!r} ({old.hex()}) against {new!r} ({new.hex()})" in done.stdout
    assert "ulps     0: 15, 1: 1" in done.stdout
    report = json.loads(llmcy("diff", PUBLISHED, path, "--json").stdout)
    assert report["equal"] is False
    (tensor,) = report["tensors"]
    assert tensor["first"] == {
        "index": [1, 2],
        "hex": [old.hex(), new.hex()],
        "values": [old, new],
    }
    assert (tensor["largest_ulps"], tensor["differing"]) == (1, 1)
    assert tensor["histogram"] == [{"least_ulps": 0, "count": 15}, {"least_ulps": 1, "count": 1}]


def test_a_field_that_differs_is_named(tmp_path):
    parts = parse(PUBLISHED.read_bytes())
    parts.rng_state ^= 1
    other = tmp_path / "other.ckpt"
    other.write_bytes(build(parts))
    done = llmcy("diff", PUBLISHED, other)
    assert done.returncode == 1
    assert "field sampling_rng_state: " in done.stdout
    assert "every bit the same" in done.stdout


def model_state(config, seed=1):
    return DecoderModelState.snapshot(Decoder.initialize(config, seed))


@pytest.fixture
def config():
    return ModelConfig(
        vocab_size=5, d_model=4, n_heads=2, n_layers=1, d_ff=4, max_seq_len=2, dtype="float32"
    )


def test_model_files(tmp_path, config):
    tokenizer = LiteralTokenizer([b"0", b"1", b"2", b"3", b"4"])
    state = model_state(config)
    named = {name: array.copy() for name, array in state.named_arrays()}
    named["final_norm.gain"][2] = np.float32(-1.5)
    for name, values in (("a", state), ("b", None)):
        if values is None:
            values = DecoderModelState.from_named_arrays(config, named.items())
        (tmp_path / name).write_bytes(encode_model_file(values, tokenizer, 3))
    assert llmcy("diff", tmp_path / "a", tmp_path / "a").returncode == 0
    done = llmcy("diff", tmp_path / "a", tmp_path / "b", "--json")
    assert done.returncode == 1
    assert "fingerprint" not in llmcy("diff", tmp_path / "a", tmp_path / "b").stdout
    report = json.loads(done.stdout)
    assert report["kinds"] == ["model file"] * 2
    assert [field["name"] for field in report["fields"]] == ["fingerprint"]
    (tensor,) = report["tensors"]
    assert tensor["name"] == "final_norm.gain"
    assert tensor["first"]["index"] == [2]
    bits = [struct.unpack("<i", struct.pack("<f", value))[0] for value in (1.0, 1.5)]
    assert tensor["largest_ulps"] == bits[0] + bits[1] + 1  # over both zeros


def test_files_of_two_kinds_are_compared_in_what_both_hold(tmp_path):
    from llmcy.checkpoint import Checkpoint

    checkpoint = Checkpoint.load(PUBLISHED)
    tokenizer = LiteralTokenizer([b"0", b"1", b"2", b"3", b"4"])
    file = tmp_path / "model"
    file.write_bytes(encode_model_file(checkpoint.model_state, tokenizer, checkpoint.selected_step))
    done = llmcy("diff", PUBLISHED, file)
    assert done.returncode == 0
    assert "only A holds 22 tensors" in done.stdout
    assert "11 tensors, every bit the same" in done.stdout
    file.write_bytes(encode_model_file(checkpoint.model_state, tokenizer, 7))
    assert llmcy("diff", PUBLISHED, file).returncode == 1


def test_what_cannot_be_compared(tmp_path):
    damaged = tmp_path / "damaged.ckpt"
    damaged.write_bytes(PUBLISHED.read_bytes()[:-1])
    (tmp_path / "text").write_text("no state")
    for other, word in (
        (damaged, "payload"),
        (tmp_path / "text", "neither"),
        (tmp_path / "missing", "missing"),
        (tmp_path, "folder"),
    ):
        for options in ([], ["--json"]):
            done = CliRunner().invoke(diff, [str(PUBLISHED), str(other), *options])
            assert done.exit_code == 2
            assert len(done.output.splitlines()) == 1
            assert word in done.output
    done = llmcy("diff", tmp_path, tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert "config.json" in done.stderr
