"""Accidents: every flipped bit, every truncation, every kind of extension."""

import random
from contextlib import suppress

import pytest

from llmcy.checkpoint import Checkpoint
from llmcy.errors import CheckpointError
from tests.checkpoint.states import fresh_state
from tests.oracle.checkpoint_file import parse


def kind_of(data):
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.from_bytes(data)
    return caught.value.kind


@pytest.mark.feature("K14", "N03")
def test_every_single_bit_flip_is_refused(published):
    by_region = {
        range(8): "InvalidMagic",
        range(8, 10): "UnsupportedVersion",
        range(10, 14): "UnsupportedEndianness",
        range(14, 30): "FileExtent",
        range(30, 6330): "ChecksumMismatch",
    }
    data = bytearray(published)
    flips = 0
    for region, kind in by_region.items():
        for offset in region:
            for bit in range(8):
                data[offset] ^= 1 << bit
                assert kind_of(data) == kind
                flips += 1
                data[offset] ^= 1 << bit
    assert flips == 50640
    assert bytes(data) == published


@pytest.mark.feature("K07", "N03")
def test_every_truncation_is_refused(published):
    for length in range(len(published)):
        kind = kind_of(published[:length])
        assert kind == ("Truncated" if length < 38 else "FileExtent")


@pytest.mark.feature("K07")
def test_trailing_bytes_are_refused(published):
    for tail in (b"\0", b"\n", bytes(8), published):
        assert kind_of(published + tail) == "FileExtent"


def every_resealed_flip(published, step):
    """Flip one bit, give the file a fresh checksum: it loads as written, or one kind refuses it."""
    from llmcy.checkpoint.decode_header import checksum_of

    loaded = refused = 0
    data = bytearray(published)
    for position in range(38 * 8, len(published) * 8, step):
        byte, bit = divmod(position, 8)
        data[byte] ^= 1 << bit
        checksum = data[30:38]
        data[30:38] = checksum_of(memoryview(data)).to_bytes(8, "little")
        whole = bytes(data)
        try:
            assert Checkpoint.from_bytes(whole).encode().bytes == whole
            loaded += 1
        except CheckpointError:
            refused += 1
        data[30:38] = checksum
        data[byte] ^= 1 << bit
    return loaded, refused


@pytest.mark.feature("K14", "N04X", "P08X")
def test_resealed_flips_load_faithfully_or_are_refused(published):
    loaded, refused = every_resealed_flip(published, 29)
    assert loaded > 500  # values are values: a resealed edit of one cannot be seen
    assert refused > 500


@pytest.mark.slow
def test_all_resealed_flips(published):
    loaded, refused = every_resealed_flip(published, 1)
    assert loaded + refused == 8 * (6330 - 38)


@pytest.mark.feature("K14")
def test_corruption_of_any_record_is_detected(published, parts):
    for number, record in enumerate(parts.records):
        start = sum(len(r.payload) for r in parts.records[:number]) + 2869
        for offset in (start, start + len(record.payload) - 1):
            data = bytearray(published)
            data[offset] ^= 0x55
            assert kind_of(bytes(data)) == "ChecksumMismatch"


@pytest.mark.feature("M28")
def test_noise_never_raises_anything_else(published):
    """Random resealed damage, many bytes at once: always a CheckpointError or a faithful load."""
    from llmcy.checkpoint.decode_header import checksum_of

    rng = random.Random(35)
    for _ in range(1500):
        data = bytearray(published)
        for _ in range(rng.choice((1, 2, 3, 8))):
            where = rng.randrange(38, 2869 if rng.random() < 0.8 else 6330)
            width = rng.choice((1, 2, 4, 8))
            filler = rng.choice((0x00, 0xFF, 0x7F, 0x80, rng.randrange(256)))
            data[where : where + width] = bytes([filler]) * len(data[where : where + width])
        data[30:38] = checksum_of(memoryview(data)).to_bytes(8, "little")
        with suppress(CheckpointError):
            assert Checkpoint.from_bytes(bytes(data)).encode().bytes == bytes(data)


@pytest.mark.feature("M28")
def test_a_failure_leaves_no_checkpoint_behind(published):
    parts = parse(published)
    parts.groups[0].reverse()
    from tests.oracle.checkpoint_file import build

    with pytest.raises(CheckpointError) as caught:
        Checkpoint.from_bytes(build(parts))
    error = caught.value
    assert error.kind == "NonCanonical"
    assert not any(isinstance(value, Checkpoint) for value in vars(error).values())
    frame = caught.tb
    while frame is not None:
        held = frame.tb_frame.f_locals
        assert not any(isinstance(value, Checkpoint) for value in held.values())
        frame = frame.tb_next


def test_things_that_are_not_bytes():
    for thing in (5, "text", None, [1, 2]):
        with pytest.raises(TypeError):
            Checkpoint.from_bytes(thing)
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.from_bytes(b"")
    assert (caught.value.kind, caught.value.context) == ("Truncated", "fixed header")
    assert fresh_state().step == 0
