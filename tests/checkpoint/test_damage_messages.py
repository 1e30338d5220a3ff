"""What the message about a damaged version-1 file says: the field or record that is wrong."""

import pytest

from llmcy.checkpoint import Checkpoint
from llmcy.errors import CheckpointError

WORDS = {  # bytes of the file -> what a message about one of them names
    range(8): ("magic",),
    range(8, 10): ("version",),
    range(10, 14): ("byte-order", "byte order", "endian"),
    range(14, 30): ("header", "payload"),
    range(30, 6330): ("checksum",),
}


def message(data):
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.from_bytes(data)
    return str(caught.value).lower()


@pytest.mark.feature("N03")
def test_every_flipped_byte_is_named(published):
    for region, words in WORDS.items():
        for offset in region:
            data = bytearray(published)
            data[offset] ^= 0xFF
            found = message(bytes(data))
            assert any(word in found for word in words), (offset, found)


@pytest.mark.feature("N03")
def test_every_cut_and_every_added_byte_is_named(published):
    for length in range(len(published)):
        found = message(published[:length])
        assert "fixed header" in found if length < 38 else "payload" in found, (length, found)
    for byte in range(256):
        assert "payload" in message(published + bytes([byte]))
