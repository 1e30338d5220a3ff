"""The published 6,330 bytes: every field, every span, and the same bytes again."""

import struct

import numpy as np
import pytest

from llmcy.checkpoint import Checkpoint, inspect_bytes
from llmcy.checkpoint.decode_header import read_variable_header
from tests.checkpoint.states import seal_of
from tests.oracle.checkpoint_file import build, fnv1a, parse, seal


@pytest.fixture(scope="module")
def checkpoint(published):
    return Checkpoint.from_bytes(published)


@pytest.fixture(scope="module")
def encoded(checkpoint):
    return checkpoint.encode()


@pytest.mark.feature("J15", "M49")
def test_the_bytes_come_back(checkpoint, published, encoded):
    assert encoded.bytes == published
    assert type(encoded.bytes) is bytes
    assert len(encoded.bytes) == 6330
    assert encoded.header_length == 2869
    assert encoded.payload_length == 3461
    assert encoded.checksum == 0x2B8B6097EAED6A91
    assert encoded.checksum_label == "fnv1a64:2b8b6097eaed6a91"
    assert checkpoint.encode() == encoded


@pytest.mark.feature("M22")
def test_the_checksum_counts_its_own_field_as_zero(published):
    assert fnv1a(published[:30] + bytes(8) + published[38:]) == 0x2B8B6097EAED6A91
    assert published[30:38] == struct.pack("<Q", 0x2B8B6097EAED6A91)
    assert fnv1a(b"") == 0xCBF29CE484222325
    assert fnv1a(b"hello") == 0xA430D84680AABD0B


@pytest.mark.feature("K15")
def test_first_sixteen_bytes(published):
    assert published[:16].hex(" ") == "4c 4c 4d 43 50 33 35 00 01 00 04 03 02 01 35 0b"


@pytest.mark.feature("J05", "J06", "J08", "J09")
def test_header_fields_at_their_offsets(published):
    """Offsets and values as the format page lists them, read without the package."""

    def at(form, offset):
        return struct.unpack_from("<" + form, published, offset)[0]

    assert (at("H", 8), at("H", 38), at("H", 40)) == (1, 1, 1)
    assert at("Q", 42) == 8
    assert at("Q", 50) == 0x9E3779B97F4A7C38
    assert (at("B", 58), at("Q", 59)) == (1, 5)
    assert [at("Q", 67 + 8 * k) for k in range(6)] == [5, 4, 2, 4, 1, 2]
    assert (at("d", 115), at("d", 123)) == (10000.0, 1e-6)
    assert [at("d", 131 + 8 * k) for k in range(5)] == [0.04, 0.9, 0.999, 1e-8, 0.01]
    assert at("B", 171) == 1
    assert (at("I", 172), at("I", 423)) == (8, 3)
    assert at("Q", 504) == 8
    assert at("Q", 512) == 0x3FDB8CC6573CD2C7  # 0.43046721000000016
    assert at("Q", 520) == 0x3FEFBEB1630FF3EF  # 0.9920279440699441
    assert [at("I", 528 + 4 * k) for k in range(3)] == [11, 11, 38]


@pytest.mark.feature("J06", "J08", "J09", "J16")
def test_what_the_loaded_checkpoint_says(checkpoint):
    assert checkpoint.selected_step == 8
    assert checkpoint.sampling_rng_state() == 0x9E3779B97F4A7C38
    tokenizer = checkpoint.tokenizer
    assert (tokenizer.kind, tokenizer.vocab_size) == ("literal-u32", 5)
    assert tokenizer.literal_pieces() == (b"0", b"1", b"2", b"3", b"4")
    config = checkpoint.model_state.config
    assert (config.vocab_size, config.d_model, config.n_heads) == (5, 4, 2)
    assert (config.d_ff, config.n_layers, config.max_seq_len) == (4, 1, 2)
    assert (config.rope_theta, config.rms_norm_eps) == (10000.0, 1e-6)
    assert config.dtype == "float64"
    optimizer = checkpoint.optimizer
    assert (optimizer.config.learning_rate, optimizer.config.betas) == (0.04, (0.9, 0.999))
    assert (optimizer.config.eps, optimizer.config.weight_decay) == (1e-8, 0.01)
    assert len(optimizer.groups.decay) == 8
    assert optimizer.groups.no_decay == (
        "blocks.0.attention_norm.gain",
        "blocks.0.ffn_norm.gain",
        "final_norm.gain",
    )
    assert optimizer.state.step == 8
    assert optimizer.state.beta1_power == 0.43046721000000016
    assert optimizer.state.beta2_power == 0.9920279440699441
    state = checkpoint.model_state
    assert state.fingerprint() == "fnv1a64:5bf915a97ebea3e5"
    arrays = dict(state.named_arrays())
    assert arrays["token_embedding.weight"][0, 0] == -0.44815663836203995
    assert arrays["blocks.0.attention_norm.gain"][0] == 0.8671543111753274


@pytest.mark.feature("J07", "J08", "J10X", "J14")
def test_record_counts(encoded):
    roles = [row.role.label for row in encoded.records]
    assert roles == (
        ["LiteralToken"] * 5
        + ["ModelParameter"] * 11
        + ["OptimizerFirstMoment", "OptimizerSecondMoment"] * 11
    )


SPANS = [
    ("0", 2869), ("1", 2870), ("2", 2871), ("3", 2872), ("4", 2873),
    ("token_embedding.weight", 2874),
    ("blocks.0.attention_norm.gain", 3034),
    ("blocks.0.attention.query.weight", 3066),
    ("blocks.0.attention.key.weight", 3194),
    ("blocks.0.attention.value.weight", 3322),
    ("blocks.0.attention.output.weight", 3450),
    ("blocks.0.ffn_norm.gain", 3578),
    ("blocks.0.ffn.gate.weight", 3610),
    ("blocks.0.ffn.up.weight", 3738),
    ("blocks.0.ffn.down.weight", 3866),
    ("final_norm.gain", 3994),
    ("blocks.0.attention.key.weight", 4026), ("blocks.0.attention.key.weight", 4154),
    ("blocks.0.attention.output.weight", 4282), ("blocks.0.attention.output.weight", 4410),
    ("blocks.0.attention.query.weight", 4538), ("blocks.0.attention.query.weight", 4666),
    ("blocks.0.attention.value.weight", 4794), ("blocks.0.attention.value.weight", 4922),
    ("blocks.0.attention_norm.gain", 5050), ("blocks.0.attention_norm.gain", 5082),
    ("blocks.0.ffn.down.weight", 5114), ("blocks.0.ffn.down.weight", 5242),
    ("blocks.0.ffn.gate.weight", 5370), ("blocks.0.ffn.gate.weight", 5498),
    ("blocks.0.ffn.up.weight", 5626), ("blocks.0.ffn.up.weight", 5754),
    ("blocks.0.ffn_norm.gain", 5882), ("blocks.0.ffn_norm.gain", 5914),
    ("final_norm.gain", 5946), ("final_norm.gain", 5978),
    ("token_embedding.weight", 6010), ("token_embedding.weight", 6170),
]  # fmt: skip


@pytest.mark.feature("K01", "K02", "K03", "K04", "K09", "K12", "K13")
def test_every_span(encoded):
    assert [(row.name, row.offset) for row in encoded.records] == SPANS
    ends = [offset for _, offset in SPANS[1:]] + [6330]
    assert [row.end for row in encoded.records] == ends
    assert sum(row.byte_length for row in encoded.records) == encoded.payload_length
    after_embedding = [row for row in encoded.records if row.offset >= 3034]
    assert len(after_embedding) == 32
    assert sum(row.byte_length for row in after_embedding) == 8 * 412
    widths = {"token_embedding.weight": (5, 4)}
    for row in encoded.records[5:]:
        expected = widths.get(row.name, (4,) if row.name.endswith("gain") else (4, 4))
        assert (row.shape, row.dtype.label) == (expected, "f64")
    for row in encoded.records[:5]:
        assert (row.shape, row.dtype.label, row.byte_length) == ((1,), "u8", 1)


def test_all_384_header_fields_are_read_in_order_and_without_gap(published):
    fields = inspect_bytes(published).fields
    assert len(fields) == 384
    position = 0
    for field in fields:
        assert field.offset == position
        position += field.width
    assert position == 2869
    by_offset = {field.offset: field for field in fields}
    assert (by_offset[180].name, by_offset[180].value) == (
        "decay group name",
        "blocks.0.attention.key.weight",
    )
    assert (by_offset[540].name, by_offset[540].value) == ("record 0 tensor role", 1)
    assert (by_offset[545].name, by_offset[545].value) == ("record 0 tensor name", "0")
    assert (by_offset[1433].name, by_offset[1433].value) == ("record 16 tensor role", 4)
    assert (by_offset[1504].name, by_offset[1504].value) == ("record 17 tensor role", 5)
    assert (by_offset[2853].value, by_offset[2861].value) == (6170, 160)


@pytest.mark.feature("J11X")
def test_base_rate_is_stored_and_a_scheduled_rate_is_not(published):
    assert struct.pack("<d", 0.04) in published
    for rate in (0.025, 0.015, 0.008):
        assert struct.pack("<d", rate) not in published


@pytest.mark.feature("K05")
def test_values_at_odd_offsets_are_read_exactly(published, checkpoint):
    assert 2874 % 8 != 0
    expected = struct.unpack_from("<20d", published, 2874)
    embedding = dict(checkpoint.model_state.named_arrays())["token_embedding.weight"]
    assert embedding.reshape(-1).tolist() == list(expected)
    assert embedding.flags.aligned
    for shift in range(8):  # the file itself at every alignment
        moved = memoryview(bytes(shift) + published)[shift:]
        assert Checkpoint.from_bytes(moved).encode().bytes == published


@pytest.mark.feature("L03", "L07", "L08")
def test_families_and_the_bare_parameters(published, checkpoint):
    sizes = inspect_bytes(published).family_sizes()
    assert sizes == {
        "tokenizer": (5, 5),
        "parameters": (11, 1152),
        "gradients": (0, 0),
        "moments": (22, 2304),
    }
    bits = checkpoint.model_state.bit_pattern()
    assert bits.size == 144
    assert bits.astype("<u8").tobytes() == published[2874:4026]


@pytest.mark.feature("M13")
def test_loading_owns_its_buffers(published):
    source = bytearray(published)
    checkpoint = Checkpoint.from_bytes(source)
    source[:] = bytes(len(source))
    del source
    assert checkpoint.encode().bytes == published


@pytest.mark.feature("J15", "K14")
def test_the_oracle_agrees(published, parts):
    assert build(parts) == published
    assert seal(published) == published


@pytest.mark.feature("P03")
def test_a_longer_token_moves_every_later_offset(parts, encoded):
    record = parts.record(1, "1")
    record.payload, record.shape = b"1111", [4]
    longer = Checkpoint.from_bytes(build(parts)).encode()
    for before, after in zip(encoded.records, longer.records, strict=True):
        moved = 3 if before.offset > 2870 else 0
        assert after.offset == before.offset + moved
        assert after.end == before.end + (3 if before.end > 2870 else 0)
    assert longer.checksum != encoded.checksum


@pytest.mark.feature("J13X")
def test_only_the_sampling_state_enters_the_file(checkpoint, published):
    """Equal model, optimizer and sampling state give equal bytes, whatever led to them."""
    again = Checkpoint.from_snapshot(
        checkpoint.tokenizer, seal_of(checkpoint), checkpoint.sampling_rng_state()
    )
    assert again.encode().bytes == published
    other = Checkpoint.from_snapshot(checkpoint.tokenizer, seal_of(checkpoint), 33)
    different = [
        i for i, (a, b) in enumerate(zip(published, other.encode().bytes, strict=True)) if a != b
    ]
    assert set(different) <= set(range(30, 38)) | set(range(50, 58))


@pytest.mark.feature("Q02")
def test_every_accessor_needs_a_validated_file(published):
    """There is no way to a Checkpoint but through all checks."""
    with pytest.raises(TypeError):
        Checkpoint()
    header = read_variable_header(memoryview(published), 2869)
    assert not hasattr(header, "model_state")
    assert parse(published).records[5].floats()[0] == -0.44815663836203995
    assert np.isfinite(parse(published).records[5].floats()).all()
