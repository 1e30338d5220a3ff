"""From values to bytes: a plan of records, a header written twice, one exact buffer.

The header holds the payload offsets, and the offsets depend on the header's length.  So the header
is written once with zeros to learn its length and once more with the offsets.  Payloads are only
borrowed until the very end, where they are copied once, straight into the file's bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from llmcy.checkpoint.layout import (
    BPE_RECORD_NAME,
    BYTE_ORDER_MARK,
    CHECKSUM_OFFSET,
    FIXED_HEADER_BYTES,
    MAGIC,
    RNG_ALGORITHM_VERSION,
    SCHEMA_VERSION,
    TOKENIZER_LAYOUT_VERSION,
    U32_MAX,
    U64_MAX,
    Descriptor,
    DType,
    Role,
    byte_length,
    checked_sum,
    overflow,
    span_ends,
)
from llmcy.checkpoint.tokenizer_record import TokenizerRecord
from llmcy.checksum import fnv1a64, label
from llmcy.errors import CheckpointError
from llmcy.state import DecoderModelState, OptimizerSnapshot

__all__ = ["Content", "EncodedCheckpoint", "FileImage", "Record", "encode_image", "plan_records"]


@dataclass(frozen=True, slots=True)
class Content:
    """Everything a checkpoint stores, as values."""

    tokenizer: TokenizerRecord
    model: DecoderModelState
    optimizer: OptimizerSnapshot
    selected_step: int
    rng_state: int


@dataclass(frozen=True, slots=True)
class EncodedCheckpoint:
    """The bytes of a checkpoint file and what is known about them.

    Attributes
    ----------
    bytes
        The whole file.
    header_length
        Length of the fixed and the variable header, which is the first payload offset.
    checksum, checksum_label
        FNV-1a over the file with its own field as zero, as a number and as ``fnv1a64:...``.
    records
        The record table in file order.
    """

    bytes: bytes
    header_length: int
    checksum: int
    checksum_label: str
    records: tuple[Descriptor, ...]

    @property
    def payload_length(self) -> int:
        """Bytes after the header."""
        return len(self.bytes) - self.header_length


@dataclass(frozen=True, slots=True)
class Record:
    """A record whose place in the file is not yet known; ``payload`` is borrowed, not copied."""

    role: Role
    name: str
    dtype: DType
    shape: tuple[int, ...]
    payload: memoryview


# --------------------------------------------------------------------------- the plan
def _array_bytes(array: NDArray[np.generic], dtype: DType) -> memoryview:
    """View a C-contiguous array as stored bytes; copies only where the host is big-endian."""
    stored = np.ascontiguousarray(array).astype(dtype.numpy, copy=False)
    return stored.reshape(-1).view(np.uint8).data


def _tokenizer_records(tokenizer: TokenizerRecord) -> Iterator[Record]:
    pieces = tokenizer.literal_pieces()
    if pieces is not None:
        for token_id, piece in enumerate(pieces):
            yield Record(
                Role.LITERAL_TOKEN, str(token_id), DType.U8, (len(piece),), memoryview(piece)
            )
        return
    pairs = np.array(tokenizer.training_pairs(), "<u4").reshape(-1, 2)
    yield Record(
        Role.BPE_PAIRS, BPE_RECORD_NAME, DType.U32, pairs.shape, _array_bytes(pairs, DType.U32)
    )


def plan_records(content: Content) -> list[Record]:
    """All records in file order: tokenizer, parameters in model order, moments in name order."""
    records = list(_tokenizer_records(content.tokenizer))
    for name, array in content.model.named_arrays():
        records.append(
            Record(
                Role.MODEL_PARAMETER, name, DType.F64, array.shape, _array_bytes(array, DType.F64)
            )
        )
    for entry in content.optimizer.state.entries:  # already sorted by the bytes of the name
        for role, moment in (
            (Role.OPTIMIZER_FIRST_MOMENT, entry.first_moment),
            (Role.OPTIMIZER_SECOND_MOMENT, entry.second_moment),
        ):
            records.append(
                Record(role, entry.name, DType.F64, entry.shape, _array_bytes(moment, DType.F64))
            )
    return records


# --------------------------------------------------------------------------- writing the header
def _u64(value: int, context: str) -> bytes:
    if not 0 <= value <= U64_MAX:
        raise overflow(context)
    return struct.pack("<Q", value)


def _count(value: int, context: str) -> bytes:
    if value > U32_MAX:
        raise CheckpointError(
            "SizeOverflow", f"{context} {value} does not fit 32 bits", context=context
        )
    return struct.pack("<I", value)


def _text(value: str, context: str) -> bytes:
    encoded = value.encode("utf-8")
    return _count(len(encoded), context) + encoded


def _names(values: Sequence[str], context: str) -> bytes:
    parts = [_count(len(values), f"{context} count")]
    parts += [_text(value, f"{context} name") for value in values]
    return b"".join(parts)


def _variable_header(content: Content, descriptors: Sequence[Descriptor]) -> bytes:
    """Bytes 38 up to the first payload."""
    tokenizer, model, optimizer = content.tokenizer, content.model.config, content.optimizer
    config, state = optimizer.config, optimizer.state
    parts = [
        struct.pack("<HH", TOKENIZER_LAYOUT_VERSION, RNG_ALGORITHM_VERSION),
        _u64(content.selected_step, "selected step"),
        _u64(content.rng_state, "sampling RNG state"),
        struct.pack("<B", tokenizer.tag),
        _u64(tokenizer.vocab_size, "tokenizer vocabulary"),
        _u64(model.vocab_size, "decoder vocabulary"),
        _u64(model.d_model, "decoder width"),
        _u64(model.n_heads, "decoder heads"),
        _u64(model.d_ff, "decoder feed-forward width"),
        _u64(model.n_layers, "decoder layers"),
        _u64(model.max_seq_len, "decoder positions"),
        struct.pack("<dd", model.rope_theta, model.rms_norm_eps),
        struct.pack("<ddd", config.learning_rate, *config.betas),
        struct.pack("<dd", config.eps, config.weight_decay),
    ]
    if optimizer.groups is None:
        parts.append(b"\0")
    else:
        parts.append(b"\1")
        parts.append(_names(optimizer.groups.decay, "decay group"))
        parts.append(_names(optimizer.groups.no_decay, "no-decay group"))
    parts += [
        _u64(state.step, "optimizer step"),
        struct.pack("<dd", state.beta1_power, state.beta2_power),
        _count(len(content.model.parameter_names()), "model parameter count"),
        _count(len(state.entries), "optimizer state count"),
        _count(len(descriptors), "descriptor count"),
    ]
    for row in descriptors:
        parts += [
            struct.pack("<B", row.role),
            _text(row.name, "tensor name"),
            struct.pack("<B", row.dtype),
            _count(len(row.shape), "tensor rank"),
            *(_u64(size, "tensor dimension") for size in row.shape),
            _u64(row.offset, "payload offset"),
            _u64(row.byte_length, "payload length"),
        ]
    return b"".join(parts)


# --------------------------------------------------------------------------- the image
@dataclass(frozen=True, slots=True)
class FileImage:
    """A complete file that has not been copied together yet: the header and borrowed payloads."""

    header: bytes
    checksum: int
    descriptors: tuple[Descriptor, ...]
    payloads: tuple[memoryview, ...]

    def _pieces(self) -> Iterator[bytes | memoryview]:
        yield self.header
        yield from self.payloads

    def assemble(self) -> EncodedCheckpoint:
        """Copy header and payloads into one buffer of exactly the file's length."""
        try:
            data = b"".join(self._pieces())
        except MemoryError as cause:
            raise CheckpointError(
                "Allocation", "no memory for the file's bytes", cause=cause, context="file"
            ) from cause
        _assert_length(len(data), self.descriptors[-1].end, "the file")
        return EncodedCheckpoint(
            bytes=data,
            header_length=len(self.header),
            checksum=self.checksum,
            checksum_label=label(self.checksum),
            records=self.descriptors,
        )

    def equals(self, data: memoryview) -> bool:
        """Is ``data`` exactly this file?  Compares piece by piece, without a second file image."""
        start = 0
        for piece in self._pieces():
            end = start + len(piece)
            if not _same_bytes(data[start:end], piece):
                return False
            start = end
        return start == len(data)


def _same_bytes(a: memoryview, b: bytes | memoryview) -> bool:
    if len(a) != len(b):
        return False
    if len(a) < 256:
        return a == b
    return np.array_equal(np.frombuffer(a, np.uint8), np.frombuffer(b, np.uint8))


def _assert_length(actual: int, expected: int, what: str) -> None:
    if actual != expected:
        text = f"{what} came out as {actual} bytes instead of {expected}"
        raise CheckpointError("Layout", text, text=text)


def _described(record: Record) -> Descriptor:
    """The record's row with a zero offset; checks name and length."""
    if not record.name:
        text = f"a {record.role.label} record has an empty name"
        raise CheckpointError("Layout", text, text=text)
    expected = byte_length(record.dtype, record.shape)
    if record.payload.nbytes != expected:
        text = (
            f"{record.role.label} {record.name!r} has {record.payload.nbytes} bytes, "
            f"shape {record.shape} of {record.dtype.label} takes {expected}"
        )
        raise CheckpointError("Layout", text, text=text)
    return Descriptor(record.role, record.name, record.dtype, record.shape, 0, expected)


def encode_image(content: Content) -> FileImage:
    """Lay out ``content`` as a version-1 file; a pure function.

    Raises
    ------
    CheckpointError
        ``SizeOverflow`` for counts and sums beyond their fields, ``Layout`` for an empty record
        name or a payload of the wrong length.
    """
    records = plan_records(content)
    unplaced = [_described(record) for record in records]
    header_length = FIXED_HEADER_BYTES + len(_variable_header(content, unplaced))
    ends = span_ends(header_length, [row.byte_length for row in unplaced])
    descriptors = tuple(
        replace(row, offset=end - row.byte_length) for row, end in zip(unplaced, ends, strict=True)
    )
    variable = _variable_header(content, descriptors)
    _assert_length(FIXED_HEADER_BYTES + len(variable), header_length, "the header")
    payload_length = checked_sum((row.byte_length for row in descriptors), "payload length")
    checked_sum((header_length, payload_length), "file length")
    fixed = struct.pack(
        "<8sHIQQQ", MAGIC, SCHEMA_VERSION, BYTE_ORDER_MARK, header_length, payload_length, 0
    )
    payloads = tuple(record.payload for record in records)
    checksum = fnv1a64(variable, fnv1a64(fixed))
    for piece in payloads:
        checksum = fnv1a64(piece, checksum)
    header = fixed[:CHECKSUM_OFFSET] + struct.pack("<Q", checksum) + variable
    return FileImage(header, checksum, descriptors, payloads)
