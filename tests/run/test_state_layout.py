"""State files that are written from where the tensors lie: the bytes are those of the library."""

import json

import numpy as np
import pytest
from safetensors.numpy import load, save

from llmcy.run import job_file, state_layout
from llmcy.run.job_file import encode_state_file, encode_state_pieces
from llmcy.run.state_layout import layout_of
from tests.run.test_job_file import state

TEXTS = (
    "",
    'quotes " and \\ and \\" and \\\\',
    "\x7f\x00\n\t\x1f",
    "ü 語 \U0001f600 \ud800",
    "/<>&'",
)


@pytest.fixture(autouse=True)
def nothing_looked_up():
    state_layout._layout.cache_clear()
    yield
    state_layout._layout.cache_clear()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("block", [1, 20, 1 << 20])
def test_the_library_makes_the_same_bytes(monkeypatch, text, steps, dtype, block):
    monkeypatch.setattr(job_file, "BLOCK", block)
    model, optimizer = state(dtype, steps)
    described = {"kind": "job", "note": text, text or "empty": 1}
    pieces, digest = encode_state_pieces(model, model.config, optimizer.snapshot(), described)
    assert (len(pieces) > 1) == (block < 100)
    data = b"".join(pieces)
    length = int.from_bytes(data[:8], "little")
    metadata = json.loads(data[8 : 8 + length])["__metadata__"]
    assert json.loads(metadata["llmcy"])["tensors_sha256"] == digest
    assert save(load(data), metadata=metadata) == data
    assert encode_state_file(model, model.config, optimizer.snapshot(), described) == (
        data,
        digest,
    )


def test_names_and_shapes_of_all_kinds():
    """The library orders by dtype and name; places follow that order."""
    rng = np.random.default_rng(4)
    tensors = {
        name: rng.standard_normal(shape).astype(dtype)
        for name, shape, dtype in (
            ("b", (3, 2), "float32"),
            ("a", (5,), "float32"),
            ("z", (1, 1, 1), "float64"),
            ('c"\\/ü', (2,), "float64"),
            ("scalar", (), "float32"),
            ("none", (0, 4), "float64"),
        )
    }
    layout = layout_of(tensors)
    assert layout is not None
    for text in ("x", '{"a":"\\u00fc"}', "x" * 1000):
        parts = [tensors[name].tobytes() for name in layout.order]
        assert layout.header(text) + b"".join(parts) == save(tensors, metadata={"llmcy": text})


def test_large_tensors_are_pieces_of_memory_and_not_copied(monkeypatch):
    monkeypatch.setattr(job_file, "BLOCK", 16)
    model, optimizer = state("float64", 1)
    arrays = [(name, array.copy()) for name, array in model.named_arrays()]
    pieces, _ = encode_state_pieces(arrays, model.config, optimizer.snapshot(), {"kind": "job"})
    views = [np.frombuffer(piece, np.uint8) for piece in pieces if isinstance(piece, memoryview)]
    for name, array in arrays:
        assert any(np.shares_memory(array, view) for view in views) == (array.nbytes >= 16), name


def test_the_library_is_asked_once_for_a_set_of_tensors(monkeypatch):
    sizes = []

    def counted(tensors, metadata):
        sizes.append(sum(array.nbytes for array in tensors.values()))
        return save(tensors, metadata=metadata)

    monkeypatch.setattr(state_layout, "save_tensors", counted)
    model, optimizer = state("float32", 1)
    for note in ("a", "b", "c"):
        given = {"kind": "job", "note": note}
        encode_state_pieces(model, model.config, optimizer.snapshot(), given)
    assert len(sizes) == 1
    model, optimizer = state("float64", 1)
    encode_state_pieces(model, model.config, optimizer.snapshot(), {"kind": "job"})
    assert len(sizes) == 2


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'\\"#$', b"\\u0022#$"),  # it escapes in another way
        (b'"shape":', b'"shape": '),  # it writes spaces
        (b'"llmcy":', b'"a":"","llmcy":'),  # it adds something
    ],
)
def test_a_library_of_another_form_makes_the_whole_file(monkeypatch, old, new):
    """Its header is not what is known here, so nothing is put together by hand."""

    def other(tensors, metadata):
        data = save(tensors, metadata=metadata)
        end = 8 + int.from_bytes(data[:8], "little")
        assert old in data[8:end]
        header = data[8:end].replace(old, new)
        return len(header).to_bytes(8, "little") + header + data[end:]

    model, optimizer = state("float64", 1)
    given = (model, model.config, optimizer.snapshot(), {"kind": "job"})
    expected = encode_state_file(*given)
    state_layout._layout.cache_clear()
    monkeypatch.setattr(state_layout, "save_tensors", other)
    calls = []
    monkeypatch.setattr(job_file, "save_tensors", lambda *a, **k: calls.append(1) or save(*a, **k))
    assert encode_state_file(*given) == expected
    assert calls == [1]
