"""One altered moment, parameter or state file is found and named."""

import json

import pytest

from llmcy.run.verify import Request, verify_run
from tests.run.forging import ALL, FILES, changed, first, gate, resealed, state_path


def test_one_moment_is_named_by_its_digest_and_by_the_replay(run):
    name = gate(run)
    path = state_path(run, 20)
    data = bytearray(path.read_bytes())
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    start = 8 + int.from_bytes(data[:8], "little") + header[name]["data_offsets"][0]
    data[start + 5 * (8 if header[name]["dtype"] == "F64" else 4)] ^= 1
    path.write_bytes(data)
    disproof = first(run, FILES)
    assert (disproof.step, disproof.tensor) == (20, name)
    found = verify_run(run, ALL)
    indexed = next(d for d in found.disproved if d.index is not None)
    width = header[name]["shape"][1]
    assert (indexed.step, indexed.tensor, indexed.index) == (20, name, divmod(5, width))
    assert "by up to 1 ulp" in indexed.text


@pytest.mark.parametrize("prefix", ["", "first_moment:", "second_moment:"])
def test_one_value_under_new_digests_is_found_by_the_replay_only(run, prefix):
    name = prefix + gate(run).removeprefix("second_moment:")
    resealed(state_path(run, 15), changed(name, 7))
    assert verify_run(run).exit_code == 0  # every digest fits
    disproof = first(run)
    assert (disproof.step, disproof.tensor, disproof.index) == (15, name, divmod(7, 12))
    assert first(run, Request((10, 15))).tensor == name
    onward = first(run, Request((15, 20)))  # the altered state does not lead to the next one
    assert onward.step > 15
    assert verify_run(run, Request((0, 10))).exit_code == 0


def test_the_selected_state_and_the_exported_model(run):
    selected = sorted((run / "selected").iterdir())[-1]
    resealed(selected, changed("final_norm.gain", 3))
    disproof = first(run, FILES)
    assert disproof.field == "best.tensors_sha256"


def test_damaged_state_files(run):
    path = state_path(run, 24)
    data = path.read_bytes()
    for damaged in (data[:-1], data[:100], b"", data + b"\0"):
        path.write_bytes(damaged)
        disproof = first(run, FILES)
        assert disproof.file == "checkpoints/step-00000024.safetensors"
    path.write_bytes(data)
    other = state_path(run, 20).read_bytes()
    path.write_bytes(other)  # a whole file in the wrong place
    disproof = first(run, FILES)
    assert (disproof.step, disproof.field) == (24, "step")
