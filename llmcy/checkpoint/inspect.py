"""Account for every byte of a checkpoint file: the header field by field, the records as a table.

Only a file that loads is shown; the numbers of an invalid one have no meaning.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

from llmcy.atomic_file import PathLike
from llmcy.checkpoint import file
from llmcy.checkpoint.decode import decode
from llmcy.checkpoint.decode_header import check_fixed_header, read_variable_header
from llmcy.checkpoint.layout import Descriptor, Role
from llmcy.checkpoint.reader import FieldRead
from llmcy.checksum import label

__all__ = ["Audit", "Inspection", "inspect_bytes", "inspect_file"]

FIXED_FIELDS = (
    ("magic", "8s"),
    ("schema version", "H"),
    ("byte-order marker", "I"),
    ("header length", "Q"),
    ("payload length", "Q"),
    ("checksum", "Q"),
)
FAMILIES = (
    ("tokenizer", (Role.LITERAL_TOKEN, Role.BPE_PAIRS)),
    ("parameters", (Role.MODEL_PARAMETER,)),
    ("gradients", ()),
    ("moments", (Role.OPTIMIZER_FIRST_MOMENT, Role.OPTIMIZER_SECOND_MOMENT)),
)


@dataclass(frozen=True, slots=True)
class Audit:
    """The three sums that make a record table trustworthy, recomputed from the table.

    Attributes
    ----------
    contiguous
        The first record starts where the header ends, and each starts where the last one ended.
    sized
        Every record is as long as its shape times its element width.
    complete
        The last record ends where the file ends.
    """

    contiguous: bool
    sized: bool
    complete: bool


@dataclass(frozen=True, slots=True)
class Inspection:
    """A checkpoint file taken apart.

    Attributes
    ----------
    fields
        Every header field in file order; together they cover the header without a gap.
    records
        The record table in file order; the spans cover the rest of the file.
    header_length, file_length
        In bytes.
    checksum_label
        ``fnv1a64:`` and 16 digits.
    prefix
        The first sixteen bytes.
    """

    fields: tuple[FieldRead, ...]
    records: tuple[Descriptor, ...]
    header_length: int
    file_length: int
    checksum_label: str
    prefix: bytes

    def audit(self) -> Audit:
        """Recompute what the table claims."""
        position, contiguous, sized = self.header_length, True, True
        for row in self.records:
            size = row.dtype.width
            for dimension in row.shape:
                size *= dimension
            contiguous &= row.offset == position
            sized &= row.byte_length == size
            position = row.end
        return Audit(contiguous, sized, position == self.file_length)

    def family_sizes(self) -> dict[str, tuple[int, int]]:
        """Records and payload bytes by family; gradients are never stored."""
        sizes = {}
        for family, roles in FAMILIES:
            rows = [row for row in self.records if row.role in roles]
            sizes[family] = (len(rows), sum(row.byte_length for row in rows))
        return sizes

    def field_lines(self) -> Iterator[str]:
        """One line a header field: offset, width, name, value."""
        for field in self.fields:
            yield f"{field.offset:>8} {field.width:>6}  {field.name} = {_shown(field)}"

    def record_lines(self) -> Iterator[str]:
        """One line a record: span, role, name, type and shape."""
        for row in self.records:
            shape = ",".join(str(size) for size in row.shape)
            yield (
                f"{row.offset:>10} {row.end:>10}  {row.role.label:<21} "
                f"{row.dtype.label:<3} [{shape}]  {row.name}"
            )

    def summary_lines(self) -> Iterator[str]:
        """Prefix, lengths, checksum, sizes by family and the audit."""
        audit = self.audit()
        yield f"prefix     {self.prefix.hex(' ')}"
        yield f"           {_prefix_meaning(self.prefix)}"
        yield (
            f"length     {self.file_length} bytes = header {self.header_length} + "
            f"payload {self.file_length - self.header_length}"
        )
        yield f"checksum   {self.checksum_label} (finds accidents, is no signature)"
        for family, (count, size) in self.family_sizes().items():
            yield f"{family:<10} {count} records, {size} bytes"
        yield (
            f"audit      start = previous end: {_yes(audit.contiguous)}; "
            f"length = shape x width: {_yes(audit.sized)}; "
            f"last end = file length: {_yes(audit.complete)}"
        )


def inspect_bytes(data: bytes | bytearray | memoryview) -> Inspection:
    """Take a checkpoint file in memory apart.

    Raises
    ------
    CheckpointError
        As :meth:`llmcy.checkpoint.Checkpoint.from_bytes`.
    """
    data = bytes(data)
    decode(data)
    view = memoryview(data)
    header_length = check_fixed_header(view)
    log: list[FieldRead] = []
    header = read_variable_header(view, header_length, log)
    fields = (*_fixed_fields(data), *_numbered(log))
    return Inspection(
        fields=fields,
        records=header.descriptors,
        header_length=header_length,
        file_length=len(data),
        checksum_label=label(struct.unpack_from("<Q", data, 30)[0]),
        prefix=data[:16],
    )


def inspect_file(path: PathLike) -> Inspection:
    """Take a checkpoint file apart.

    Raises
    ------
    CheckpointError
        As :meth:`llmcy.checkpoint.Checkpoint.load`.
    """
    return inspect_bytes(file.read_file(path))


def _fixed_fields(data: bytes) -> Iterator[FieldRead]:
    offset = 0
    for name, form in FIXED_FIELDS:
        width = struct.calcsize(f"<{form}")
        yield FieldRead(offset, width, name, struct.unpack_from(f"<{form}", data, offset)[0])
        offset += width


def _numbered(log: list[FieldRead]) -> Iterator[FieldRead]:
    """Put the record's number in front of the names of the record table's fields."""
    record = -1
    for field in log:
        if field.name == "tensor role":
            record += 1
        if record < 0:
            yield field
        else:
            yield FieldRead(field.offset, field.width, f"record {record} {field.name}", field.value)


def _shown(field: FieldRead) -> str:
    hexadecimal = field.name in ("byte-order marker", "checksum", "sampling RNG state")
    if hexadecimal and isinstance(field.value, int):
        return f"0x{field.value:0{2 * field.width}x}"
    return repr(field.value)


def _prefix_meaning(prefix: bytes) -> str:
    magic, version, marker, low = struct.unpack("<8sHIH", prefix)
    return (
        f"magic {magic!r}, schema version {version}, byte-order marker 0x{marker:08x}, "
        f"header length (low 16 bits) {low}"
    )


def _yes(value: bool) -> str:
    return "yes" if value else "NO"
