"""Other published files, rebuilt from their descriptions and compared by checksum."""

import struct

import numpy as np
import pytest

from llmcy.checkpoint import Checkpoint, TokenizerRecord
from llmcy.config import ModelConfig
from llmcy.tokenizer import BytePairTokenizer
from tests.checkpoint.states import fresh_state
from tests.oracle.checkpoint_file import build, parse

PIECES = [b"a", b"bb", b"c", b"ddd", b"e"]


def byte_bpe(pairs):
    tokenizer = BytePairTokenizer.from_pairs(pairs)
    config = ModelConfig(
        vocab_size=258 + len(pairs), d_model=2, n_heads=1, n_layers=1, d_ff=2, max_seq_len=2
    )
    state = fresh_state(config, seed=35)
    return Checkpoint.from_snapshot(TokenizerRecord.byte_bpe(tokenizer), state, 7)


def literal_step_0():
    return Checkpoint.from_snapshot(TokenizerRecord.literal(PIECES), fresh_state(), 0xFEEDBEEF)


FILES = {
    "byte-bpe": (lambda: byte_bpe([(97, 98), (256, 99)]), 5430, 982, 12, "7c4357bb10fc4fb0"),
    "byte-bpe-nomerges": (lambda: byte_bpe([]), 5382, 982, 12, "1072d9f42daa4cee"),
    "literal-step0": (literal_step_0, 1461, 1101, 16, "e5335f090406d84c"),
}


@pytest.mark.feature("J15", "M46", "M47", "M49")
@pytest.mark.parametrize("name", FILES)
def test_checksum_and_round_trip(name):
    make, length, header, records, checksum = FILES[name]
    encoded = make().encode()
    assert (len(encoded.bytes), encoded.header_length) == (length, header)
    assert len(encoded.records) == records
    assert encoded.checksum_label == f"fnv1a64:{checksum}"
    loaded = Checkpoint.from_bytes(encoded.bytes)
    assert loaded.encode() == encoded
    assert build(parse(encoded.bytes)) == encoded.bytes


@pytest.mark.feature("M20", "M46", "M47")
def test_byte_bpe_content():
    checkpoint = Checkpoint.from_bytes(byte_bpe([(97, 98), (256, 99)]).encode().bytes)
    encoded = checkpoint.encode()
    assert encoded.bytes[982:998].hex(" ") == "61 00 00 00 62 00 00 00 00 01 00 00 63 00 00 00"
    row = encoded.records[0]
    assert (row.role.label, row.name) == ("BpePairs", "training-pairs")
    assert (row.dtype.label, row.shape) == ("u32", (2, 2))
    tokenizer = checkpoint.tokenizer
    assert (tokenizer.kind, tokenizer.vocab_size) == ("byte-bpe", 260)
    restored = tokenizer.restore_bpe()
    assert restored.pairs == ((97, 98), (256, 99))
    assert restored.encode("abc").tolist() == [259]
    assert tokenizer.literal_pieces() is None


@pytest.mark.feature("M20", "M47")
def test_token_records_of_mixed_lengths():
    encoded = literal_step_0().encode()
    tokens = encoded.records[:5]
    assert [row.byte_length for row in tokens] == [1, 2, 1, 3, 1]
    assert encoded.bytes[1101:1109] == b"abbcddde"
    assert {row.dtype.width for row in encoded.records} == {1, 8}
    no_merges = byte_bpe([]).encode().records[0]
    assert (no_merges.shape, no_merges.byte_length) == ((0, 2), 0)


@pytest.mark.feature("K01", "M47", "M49")
def test_step_1_without_groups():
    """The size, header length and record count of the published file of this kind."""
    rng = np.random.default_rng(1)
    moments = {
        name: (rng.standard_normal(array.shape), rng.random(array.shape))
        for name, array in fresh_state().model.named_arrays()
    }
    state = fresh_state(step=1, moments=moments)
    checkpoint = Checkpoint.from_snapshot(TokenizerRecord.literal(PIECES), state, 17)
    encoded = checkpoint.encode()
    assert (len(encoded.bytes), encoded.header_length, len(encoded.records)) == (3601, 2537, 38)
    loaded = Checkpoint.from_bytes(encoded.bytes)
    assert loaded.encode() == encoded
    assert loaded.optimizer.groups is None
    for entry in loaded.optimizer.state.entries:
        assert entry.first_moment.tobytes() == moments[entry.name][0].tobytes()
        assert entry.second_moment.tobytes() == moments[entry.name][1].tobytes()
    assert struct.unpack_from("<Q", encoded.bytes, 50)[0] == 17


@pytest.mark.feature("K01", "M05")
def test_many_layers_sort_by_bytes():
    config = ModelConfig(vocab_size=5, d_model=2, n_heads=1, n_layers=11, d_ff=2, max_seq_len=2)
    checkpoint = Checkpoint.from_snapshot(
        TokenizerRecord.literal(PIECES), fresh_state(config, step=3), 0
    )
    encoded = checkpoint.encode()
    names = [row.name for row in encoded.records if row.role.label == "OptimizerFirstMoment"]
    assert names == sorted(names, key=str.encode)
    place = names.index
    assert place("blocks.10.ffn.up.weight") < place("blocks.2.attention.key.weight")
    assert place("blocks.0.attention.key.weight") < place("blocks.0.attention_norm.gain")
    assert names[-1] == "token_embedding.weight"
    assert Checkpoint.from_bytes(encoded.bytes).encode() == encoded
