"""How the bytes are made: borrowed payloads, two header passes, one buffer."""

import tracemalloc

import numpy as np
import pytest

from llmcy.checkpoint import Checkpoint, TokenizerRecord
from llmcy.checkpoint import encode as encode_module
from llmcy.checkpoint.encode import Content, encode_image, plan_records
from llmcy.checkpoint.layout import DType, Role
from llmcy.config import ModelConfig
from llmcy.errors import CheckpointError
from llmcy.optim import AdamWConfig, AdamWState, OptimizerSnapshot
from llmcy.state import DecoderModelState
from llmcy.tokenizer import BytePairTokenizer
from tests.checkpoint.states import DIGITS, fresh_state


def content_of(state, tokenizer=DIGITS, rng_state=0):
    return Content(tokenizer, state.model, state.optimizer, state.step, rng_state)


@pytest.mark.feature("M19")
def test_the_plan_borrows_payloads():
    content = content_of(fresh_state(step=1))
    sources = [array for _, array in content.model.named_arrays()]
    sources += content.optimizer.state.moment_arrays()
    floats = [record for record in plan_records(content) if record.dtype is DType.F64]
    assert len(floats) == len(sources) == 33
    for record, source in zip(floats, sources, strict=True):
        view = np.frombuffer(record.payload, np.uint8)
        assert np.shares_memory(view, source)
        assert record.payload.nbytes == source.nbytes
    pieces = DIGITS.literal_pieces()
    for record, piece in zip(plan_records(content), pieces, strict=False):
        assert record.payload.obj is piece


@pytest.mark.feature("M20")
def test_three_kinds_of_payload():
    bpe = TokenizerRecord.byte_bpe(BytePairTokenizer.from_pairs([(1, 2)]))
    config = ModelConfig(vocab_size=259, d_model=2, n_heads=1, n_layers=0, d_ff=1, max_seq_len=1)
    records = plan_records(content_of(fresh_state(config), bpe))
    assert [(record.role, record.dtype) for record in records] == [
        (Role.BPE_PAIRS, DType.U32),
        (Role.MODEL_PARAMETER, DType.F64),
        (Role.MODEL_PARAMETER, DType.F64),
    ]
    assert bytes(records[0].payload).hex() == "0100000002000000"
    assert plan_records(content_of(fresh_state()))[0].dtype is DType.U8


@pytest.mark.feature("M21")
def test_header_is_written_twice_and_the_buffer_once(monkeypatch):
    headers = []
    real = encode_module._variable_header

    def watched(content, descriptors):
        header = real(content, descriptors)
        headers.append((header, [row.offset for row in descriptors]))
        return header

    monkeypatch.setattr(encode_module, "_variable_header", watched)
    encoded = encode_image(content_of(fresh_state(step=1))).assemble()
    (first, zeros), (second, offsets) = headers
    assert set(zeros) == {0}
    assert offsets[0] == 38 + len(first) == 38 + len(second) == encoded.header_length
    assert len(encoded.bytes) == encoded.records[-1].end


@pytest.fixture(scope="module")
def large():
    """About 12 MB of payload: one parameter tensor and its moments, and small ones."""
    config = ModelConfig(vocab_size=4000, d_model=128, n_heads=2, n_layers=0, d_ff=1, max_seq_len=4)
    tokenizer = TokenizerRecord.literal(str(k).encode() for k in range(4000))
    state = fresh_state(config, step=1)
    return Checkpoint.from_snapshot(tokenizer, state, 1)


def peak_of(action):
    tracemalloc.start()
    try:
        result = action()
        return tracemalloc.get_traced_memory()[1], result
    finally:
        tracemalloc.stop()


@pytest.mark.feature("M23X", "M24")
def test_memory_of_encoding(large):
    peak, encoded = peak_of(large.encode)
    payload = encoded.payload_length
    assert payload > 12_000_000
    table = 8_000_000  # the record table of 4,000 token records, as Python objects
    assert peak < payload + encoded.header_length + table < 2 * payload


@pytest.mark.feature("M23X")
def test_memory_of_loading(large):
    data = large.encode().bytes
    peak, loaded = peak_of(lambda: Checkpoint.from_bytes(data))
    assert loaded.selected_step == 1
    assert peak < 2 * len(data)  # the tensors, no second image of the file


@pytest.mark.feature("J15", "M49")
def test_encoding_is_pure(large):
    first, second = large.encode(), large.encode()
    assert first.bytes == second.bytes
    assert first == second
    assert Checkpoint.from_bytes(first.bytes).encode().bytes == first.bytes


# --------------------------------------------------------------------------- refusals
def named(names_and_arrays, vocab_size=5):
    config = ModelConfig(
        vocab_size=vocab_size, d_model=2, n_heads=1, n_layers=0, d_ff=1, max_seq_len=1
    )
    model = DecoderModelState.from_named_arrays(config, names_and_arrays)
    optimizer = OptimizerSnapshot(AdamWConfig(0.1), None, AdamWState.initial())
    return Content(DIGITS, model, optimizer, 0, 0)


def test_an_empty_record_name_is_a_layout_error():
    with pytest.raises(CheckpointError) as caught:
        encode_image(named([("", np.ones(2))]))
    assert caught.value.kind == "Layout"
    assert "empty name" in caught.value.text


def test_a_payload_of_the_wrong_length_is_a_layout_error(monkeypatch):
    record = encode_module.Record(Role.MODEL_PARAMETER, "x", DType.F64, (3,), memoryview(bytes(16)))
    monkeypatch.setattr(encode_module, "plan_records", lambda content: [record])
    with pytest.raises(CheckpointError) as caught:
        encode_image(named([("x", np.ones(2))]))
    assert caught.value.kind == "Layout"
    assert "16 bytes" in caught.value.text


def test_numbers_beyond_their_fields(monkeypatch):
    content = content_of(fresh_state())
    too_large = Content(content.tokenizer, content.model, content.optimizer, 2**64, 0)
    with pytest.raises(CheckpointError) as caught:
        encode_image(too_large)
    assert (caught.value.kind, caught.value.context) == ("SizeOverflow", "selected step")
    monkeypatch.setattr(encode_module, "U32_MAX", 10)
    with pytest.raises(CheckpointError) as caught:
        encode_image(content)
    assert (caught.value.kind, caught.value.context) == ("SizeOverflow", "model parameter count")


def test_no_memory_is_an_allocation_error(monkeypatch):
    image = encode_image(content_of(fresh_state()))

    def starve(self):
        raise MemoryError

    monkeypatch.setattr(type(image), "_pieces", starve)
    with pytest.raises(CheckpointError) as caught:
        image.assemble()
    assert (caught.value.kind, caught.value.context) == ("Allocation", "file")
    assert isinstance(caught.value.cause, MemoryError)


def test_no_memory_while_loading_is_an_allocation_error(monkeypatch):
    from llmcy.checkpoint import decode as decode_module

    data = Checkpoint.from_snapshot(DIGITS, fresh_state(), 0).encode().bytes

    def starve(*_):
        raise MemoryError

    monkeypatch.setattr(decode_module, "decode_model", starve)
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.from_bytes(data)
    assert (caught.value.kind, caught.value.context) == ("Allocation", "content")
