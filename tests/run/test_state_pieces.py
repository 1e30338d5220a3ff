"""A state file made while its tensors are hashed is the file the library makes afterwards."""

import json

import pytest
from safetensors.numpy import load, save

from llmcy.run import job_file
from llmcy.run.job_file import encode_state_file, encode_state_pieces
from tests.run.test_job_file import state

TEXTS = (
    "",
    'quotes " and \\ and \\" and \\\\',
    "\x7f\x00\n\t\x1f",
    "ü 語 \U0001f600 \ud800",
    "/<>&'",
)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("steps", [0, 2])
def test_the_library_makes_the_same_bytes(text, steps):
    model, optimizer = state("float32", steps)
    described = {"kind": "job", "note": text, text or "empty": 1}
    pieces, digest = encode_state_pieces(model, model.config, optimizer.snapshot(), described)
    data = b"".join(pieces)
    header = json.loads(pieces[0][8:])
    metadata = header["__metadata__"]
    assert json.loads(metadata["llmcy"])["tensors_sha256"] == digest
    assert save(load(data), metadata=metadata) == data
    assert len(pieces[0]) % 8 == 0
    assert encode_state_file(model, model.config, optimizer.snapshot(), described) == (
        data,
        digest,
    )


def test_a_library_that_escapes_otherwise_is_asked_twice(monkeypatch):
    """The digests are not found in its header, so it makes the file again with them."""
    model, optimizer = state("float64", 1)
    given = (model, model.config, optimizer.snapshot(), {"kind": "job"})
    expected = encode_state_file(*given)
    calls = []

    def other(tensors, metadata):
        calls.append(metadata)
        data = save(tensors, metadata=metadata)
        return data if len(calls) == 2 else data.replace(b"llmcy-state", b"LLMCY-STATE")

    monkeypatch.setattr(job_file, "save_tensors", other)
    assert encode_state_file(*given) == expected
    assert len(calls) == 2
