"""First half of loading: from bytes to a header whose record table fits the file.

The checks come in the order of docs/formats.md, sections A to D; the first that fails decides.
Numbers that only later checks can judge (sizes, steps, powers) are carried along unjudged.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NoReturn

from llmcy.checkpoint.layout import (
    BYTE_ORDER_MARK,
    CHECKSUM_OFFSET,
    FIXED_HEADER_BYTES,
    MAGIC,
    RNG_ALGORITHM_VERSION,
    SCHEMA_VERSION,
    SIZE_MAX,
    SMALLEST_DESCRIPTOR,
    SMALLEST_DIMENSION,
    TOKENIZER_LAYOUT_VERSION,
    U64_MAX,
    Descriptor,
    DType,
    Role,
    TokenizerKind,
    byte_length,
    checked_sum,
    overflow,
)
from llmcy.checkpoint.reader import FieldRead, HeaderReader, truncated
from llmcy.checksum import fnv1a64, label
from llmcy.errors import CheckpointError, OptimizerError
from llmcy.optim import AdamWConfig, ParameterGroups

__all__ = [
    "DecoderFields",
    "Header",
    "check_fixed_header",
    "check_record_counts",
    "check_record_table",
    "checksum_of",
    "layout_error",
    "read_variable_header",
]


@dataclass(frozen=True, slots=True)
class DecoderFields:
    """The eight numbers of the model's configuration, as read."""

    vocab_size: int
    d_model: int
    n_heads: int
    d_ff: int
    n_layers: int
    max_seq_len: int
    rope_theta: float
    rms_norm_eps: float


@dataclass(frozen=True, slots=True)
class Header:
    """The variable header as read; fields that later checks judge are still raw."""

    selected_step: int
    rng_state: int
    tokenizer_kind: TokenizerKind
    tokenizer_vocab_size: int
    decoder: DecoderFields
    adamw: AdamWConfig
    groups: ParameterGroups | None
    optimizer_step: int
    beta1_power: float
    beta2_power: float
    n_parameters: int
    n_moment_pairs: int
    descriptors: tuple[Descriptor, ...]

    @property
    def n_tokenizer_records(self) -> int:
        """One a literal token, or a single table of merges."""
        return self.tokenizer_vocab_size if self.tokenizer_kind is TokenizerKind.LITERAL else 1


def layout_error(text: str) -> CheckpointError:
    """The error for a record table that is not the one version 1 prescribes."""
    return CheckpointError("Layout", text, text=text)


# --------------------------------------------------------------------------- A: fixed header
def checksum_of(data: memoryview) -> int:
    """FNV-1a of the whole file with the eight checksum bytes taken as zero."""
    state = fnv1a64(bytes(8), fnv1a64(data[:CHECKSUM_OFFSET]))
    return fnv1a64(data[CHECKSUM_OFFSET + 8 :], state)


def check_fixed_header(data: memoryview) -> int:
    """Check the first 38 bytes and the checksum; return the header's length.

    Raises
    ------
    CheckpointError
        In this order: ``Truncated``, ``InvalidMagic``, ``UnsupportedVersion``,
        ``UnsupportedEndianness``, ``FileExtent``, ``SizeOverflow``, ``ChecksumMismatch``.
    """
    if len(data) < FIXED_HEADER_BYTES:
        raise truncated("fixed header")
    magic, version, marker, header, payload, stored = struct.unpack_from("<8sHIQQQ", data)
    if magic != MAGIC:
        raise CheckpointError(
            "InvalidMagic", f"magic: the file begins with {magic!r}, not {MAGIC!r}"
        )
    if version != SCHEMA_VERSION:
        raise CheckpointError(
            "UnsupportedVersion",
            f"schema version {version} is not supported, only {SCHEMA_VERSION}",
            found=version,
        )
    if marker != BYTE_ORDER_MARK:
        raise CheckpointError(
            "UnsupportedEndianness",
            f"byte-order marker is 0x{marker:08x}, expected 0x{BYTE_ORDER_MARK:08x}",
            found=marker,
        )
    if header < FIXED_HEADER_BYTES or header + payload > U64_MAX or header + payload != len(data):
        raise CheckpointError(
            "FileExtent",
            f"header of {header} and payload of {payload} bytes do not make a file of "
            f"{len(data)} bytes",
            header=header,
            payload=payload,
            actual=len(data),
        )
    if header > SIZE_MAX:
        raise overflow("header length")
    computed = checksum_of(data)
    if computed != stored:
        raise CheckpointError(
            "ChecksumMismatch",
            f"checksum: the file says {label(stored)}, its bytes give {label(computed)}",
            expected=stored,
            actual=computed,
        )
    return int(header)


# --------------------------------------------------------------------------- B: variable header
def read_variable_header(
    data: memoryview, header_length: int, log: list[FieldRead] | None = None
) -> Header:
    """Read bytes 38 to ``header_length`` strictly left to right.

    Raises
    ------
    CheckpointError
        ``Truncated`` with the field at which the bytes end, ``SizeOverflow`` with the field that
        is too large for the process, and the kinds of section B at the field they judge.
    """
    reader = HeaderReader(data, FIXED_HEADER_BYTES, header_length, log)
    _check_versions(reader)
    selected_step = reader.u64("selected step")
    rng_state = reader.u64("sampling RNG state")
    kind = reader.u8("tokenizer kind")
    if kind not in (TokenizerKind.LITERAL, TokenizerKind.BYTE_BPE):
        raise CheckpointError(
            "UnknownTokenizerKind", f"tokenizer kind {kind} is not 1 or 2", tag=kind
        )
    tokenizer_vocab_size = reader.size("tokenizer vocabulary")
    decoder = DecoderFields(
        vocab_size=reader.size("decoder vocabulary"),
        d_model=reader.size("decoder width"),
        n_heads=reader.size("decoder heads"),
        d_ff=reader.size("decoder feed-forward width"),
        n_layers=reader.size("decoder layers"),
        max_seq_len=reader.size("decoder positions"),
        rope_theta=reader.f64("RoPE base"),
        rms_norm_eps=reader.f64("RMSNorm epsilon"),
    )
    adamw = _read_adamw(reader)
    groups = _read_groups(reader)
    optimizer_step = reader.u64("optimizer step")
    beta1_power = reader.f64("beta1 power")
    beta2_power = reader.f64("beta2 power")
    n_parameters = reader.u32("model parameter count")
    n_moment_pairs = reader.u32("optimizer state count")
    n_descriptors = reader.count("descriptor count", SMALLEST_DESCRIPTOR)
    descriptors = tuple(_read_descriptor(reader) for _ in range(n_descriptors))
    if reader.bytes_left:
        text = f"{reader.bytes_left} header bytes follow the last descriptor"
        raise CheckpointError("NonCanonical", text, text=text)
    return Header(
        selected_step=selected_step,
        rng_state=rng_state,
        tokenizer_kind=TokenizerKind(kind),
        tokenizer_vocab_size=tokenizer_vocab_size,
        decoder=decoder,
        adamw=adamw,
        groups=groups,
        optimizer_step=optimizer_step,
        beta1_power=beta1_power,
        beta2_power=beta2_power,
        n_parameters=n_parameters,
        n_moment_pairs=n_moment_pairs,
        descriptors=descriptors,
    )


def _check_versions(reader: HeaderReader) -> None:
    layout_version = reader.u16("tokenizer layout version")
    if layout_version != TOKENIZER_LAYOUT_VERSION:
        raise CheckpointError(
            "UnsupportedTokenizerLayout",
            f"tokenizer layout version {layout_version} is not supported, "
            f"only {TOKENIZER_LAYOUT_VERSION}",
            found=layout_version,
        )
    algorithm = reader.u16("sampling RNG algorithm version")
    if algorithm != RNG_ALGORITHM_VERSION:
        raise CheckpointError(
            "UnsupportedRngAlgorithm",
            f"sampling RNG algorithm {algorithm} is not supported, only {RNG_ALGORITHM_VERSION}",
            found=algorithm,
        )


def _adamw_error(cause: OptimizerError) -> NoReturn:
    raise CheckpointError("AdamW", f"optimizer settings: {cause}", cause=cause) from cause


def _read_adamw(reader: HeaderReader) -> AdamWConfig:
    learning_rate = reader.f64("AdamW learning rate")
    beta1 = reader.f64("AdamW beta1")
    beta2 = reader.f64("AdamW beta2")
    eps = reader.f64("AdamW epsilon")
    weight_decay = reader.f64("AdamW weight decay")
    try:
        return AdamWConfig(learning_rate, (beta1, beta2), eps, weight_decay)
    except OptimizerError as cause:
        _adamw_error(cause)


def _read_groups(reader: HeaderReader) -> ParameterGroups | None:
    flag = reader.u8("groups flag")
    if flag not in (0, 1):
        text = f"the groups flag is {flag}, not 0 or 1"
        raise CheckpointError("NonCanonical", text, text=text)
    if flag == 0:
        return None
    decay = reader.names("decay group")
    no_decay = reader.names("no-decay group")
    try:
        return ParameterGroups(decay, no_decay)  # sorts: unsorted lists fail the canonical check
    except OptimizerError as cause:
        _adamw_error(cause)


def _read_descriptor(reader: HeaderReader) -> Descriptor:
    role = reader.u8("tensor role")
    if not Role.LITERAL_TOKEN <= role <= Role.OPTIMIZER_SECOND_MOMENT:
        raise CheckpointError("UnknownTensorRole", f"tensor role {role} is not known", tag=role)
    name = reader.text("tensor name")
    if not name:
        raise layout_error("a record has an empty name")
    dtype = reader.u8("tensor dtype")
    if not DType.U8 <= dtype <= DType.F64:
        raise CheckpointError(
            "UnknownDType", f"element type {dtype} of {name!r} is not known", tag=dtype
        )
    rank = reader.count("tensor rank", SMALLEST_DIMENSION)
    shape = tuple(reader.size("tensor dimension") for _ in range(rank))
    offset = reader.u64("payload offset")
    length = reader.u64("payload length")
    return Descriptor(Role(role), name, DType(dtype), shape, offset, length)


# --------------------------------------------------------------------------- C: record table
def check_record_table(header: Header, header_length: int, file_length: int) -> None:
    """Records must be distinct and lie one after the other from the header to the file's end.

    Raises
    ------
    CheckpointError
        ``Layout`` or, for a shape whose size is not a 64-bit number, ``SizeOverflow``.
    """
    seen = set()
    position = header_length
    for row in header.descriptors:
        what = f"{row.role.label} {row.name!r}"
        if (row.role, row.name) in seen:
            raise layout_error(f"{what} appears twice")
        seen.add((row.role, row.name))
        expected = byte_length(row.dtype, row.shape, f"size of {what}")
        if row.byte_length != expected:
            raise layout_error(
                f"{what} says {row.byte_length} bytes, shape {row.shape} of {row.dtype.label} "
                f"takes {expected}"
            )
        if row.offset != position:
            raise layout_error(f"{what} starts at {row.offset} instead of {position}")
        position += row.byte_length
        if position > U64_MAX:
            raise layout_error(f"{what} ends beyond 64 bits")
    if position != file_length:
        raise layout_error(f"the records end at {position}, the file at {file_length}")


# --------------------------------------------------------------------------- D: record counts
def check_record_counts(header: Header) -> None:
    """The table must hold the tokenizer's, the model's and twice the optimizer's records.

    Raises
    ------
    CheckpointError
        ``SizeOverflow`` when the counts have no 64-bit sum, ``Layout`` when they disagree.
    """
    expected = checked_sum(
        (header.n_tokenizer_records, header.n_parameters, 2 * header.n_moment_pairs),
        "record count",
        SIZE_MAX,
    )
    if len(header.descriptors) != expected:
        raise layout_error(
            f"{len(header.descriptors)} records, but {header.n_tokenizer_records} tokenizer, "
            f"{header.n_parameters} model and 2 x {header.n_moment_pairs} optimizer records "
            f"make {expected}"
        )
