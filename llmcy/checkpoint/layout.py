"""The version-1 file format as data: constants, tags, widths, and the arithmetic of offsets.

docs/formats.md is the same in sentences.  Sizes are Python integers that must behave like the
format's 64-bit fields, so every product and sum goes through a checked function here.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from llmcy.errors import CheckpointError

__all__ = [
    "BPE_RECORD_NAME",
    "BYTE_ORDER_MARK",
    "CHECKSUM_OFFSET",
    "FIXED_HEADER_BYTES",
    "MAGIC",
    "RNG_ALGORITHM_VERSION",
    "SCHEMA_VERSION",
    "SIZE_MAX",
    "SMALLEST_DESCRIPTOR",
    "SMALLEST_DIMENSION",
    "SMALLEST_NAME",
    "TENSORS_PER_BLOCK",
    "TOKENIZER_LAYOUT_VERSION",
    "U32_MAX",
    "U64_MAX",
    "DType",
    "Descriptor",
    "Role",
    "TokenizerKind",
    "byte_length",
    "checked_sum",
    "span_ends",
]

MAGIC = b"LLMCP35\0"
SCHEMA_VERSION = 1
BYTE_ORDER_MARK = 0x01020304  # as bytes: 04 03 02 01
TOKENIZER_LAYOUT_VERSION = 1
RNG_ALGORITHM_VERSION = 1  # SplitMix64, raw state

FIXED_HEADER_BYTES = 38
CHECKSUM_OFFSET = 30  # eight bytes, taken as zero while the checksum is computed
BPE_RECORD_NAME = "training-pairs"
TENSORS_PER_BLOCK = 9

# the fewest header bytes one more entry can take: a count that promises more entries than the
# remaining bytes can hold is refused before anything is reserved for it
SMALLEST_NAME = 4  # an empty string's length field
SMALLEST_DIMENSION = 8
SMALLEST_DESCRIPTOR = 27  # role 1, name 4 + 1, dtype 1, rank 4, offset 8, length 8

U32_MAX = 2**32 - 1
U64_MAX = 2**64 - 1
SIZE_MAX = 2 * sys.maxsize + 1  # the largest address-size integer of this process


class TokenizerKind(IntEnum):
    """Byte 58 of the file."""

    LITERAL = 1
    BYTE_BPE = 2


class Role(IntEnum):
    """What a record is."""

    LITERAL_TOKEN = 1
    BPE_PAIRS = 2
    MODEL_PARAMETER = 3
    OPTIMIZER_FIRST_MOMENT = 4
    OPTIMIZER_SECOND_MOMENT = 5

    @property
    def label(self) -> str:
        """The role's name in reports: ``ModelParameter``."""
        return self.name.title().replace("_", "")


class DType(IntEnum):
    """How a record's elements are stored; all little-endian."""

    U8 = 1
    U32 = 2
    F64 = 3

    @property
    def width(self) -> int:
        """Bytes per element."""
        return {DType.U8: 1, DType.U32: 4, DType.F64: 8}[self]

    @property
    def label(self) -> str:
        """The type's name in reports: ``f64``."""
        return self.name.lower()

    @property
    def numpy(self) -> str:
        """The numpy type string of the stored form."""
        return {DType.U8: "|u1", DType.U32: "<u4", DType.F64: "<f8"}[self]


@dataclass(frozen=True, slots=True)
class Descriptor:
    """One row of the record table.

    Parameters
    ----------
    role, name, dtype, shape
        What the record is; names are unique within a role.
    offset
        Absolute position of its first byte in the file.
    byte_length
        Number of its bytes: the product of the shape times the element width.
    """

    role: Role
    name: str
    dtype: DType
    shape: tuple[int, ...]
    offset: int
    byte_length: int

    @property
    def end(self) -> int:
        """Position after the last byte."""
        return self.offset + self.byte_length


def overflow(context: str) -> CheckpointError:
    """The error for a size that does not fit its field."""
    return CheckpointError("SizeOverflow", f"{context} does not fit a 64-bit size", context=context)


def checked_sum(terms: Iterable[int], context: str, limit: int = U64_MAX) -> int:
    """Sum left to right; ``SizeOverflow`` as soon as a partial sum exceeds ``limit``."""
    total = 0
    for term in terms:
        total += term
        if total > limit:
            raise overflow(context)
    return total


def byte_length(dtype: DType, shape: Sequence[int], context: str = "record size") -> int:
    """Bytes of a record: dimensions multiplied left to right from 1, then by the element width.

    Raises
    ------
    CheckpointError
        ``SizeOverflow`` when any intermediate product exceeds the process's size type, even if a
        later dimension is 0.
    """
    product = 1
    for factor in (*shape, dtype.width):
        product *= factor
        if product > SIZE_MAX:
            raise overflow(context)
    return product


def span_ends(start: int, lengths: Iterable[int]) -> list[int]:
    """End of each of several records laid one after the other from ``start``, without padding."""
    ends = []
    for length in lengths:
        start = checked_sum((start, length), "payload offset")
        ends.append(start)
    return ends
