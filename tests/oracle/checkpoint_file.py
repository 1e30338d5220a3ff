"""A version-1 checkpoint file as a plain list of parts: slow, obvious, and willing to be wrong.

``parse`` takes a valid file apart, ``build`` puts parts together again and reseals the checksum.
Tests alter a part in between, so every check of the loader can be met with a file that is right in
everything but one thing.  Nothing here uses the package.
"""

from __future__ import annotations

import copy
import struct
from dataclasses import dataclass, field

MAGIC = b"LLMCP35\0"
DECODER = ("vocab_size", "d_model", "n_heads", "d_ff", "n_layers", "max_seq_len")
CONSTANTS = ("rope_theta", "rms_norm_eps")
ADAMW = ("learning_rate", "beta1", "beta2", "eps", "weight_decay")
WIDTHS = {1: 1, 2: 4, 3: 8}


def fnv1a(data: bytes) -> int:
    state = 0xCBF29CE484222325
    for byte in data:
        state = ((state ^ byte) * 0x100000001B3) % 2**64
    return state


def seal(data: bytes) -> bytes:
    """The same file with the checksum that its bytes have."""
    blank = data[:30] + bytes(8) + data[38:]
    return data[:30] + struct.pack("<Q", fnv1a(blank)) + data[38:]


@dataclass
class Rec:
    role: int
    name: bytes
    dtype: int
    shape: list[int]
    payload: bytes
    offset: int | None = None  # None: where it belongs
    length: int | None = None  # None: as long as the payload

    def floats(self) -> list[float]:
        return list(struct.unpack(f"<{len(self.payload) // 8}d", self.payload))

    def set_floats(self, values: list[float]) -> None:
        self.payload = struct.pack(f"<{len(values)}d", *values)


@dataclass
class Parts:
    magic: bytes = MAGIC
    version: int = 1
    marker: int = 0x01020304
    header_length: int | None = None
    payload_length: int | None = None
    layout_version: int = 1
    rng_version: int = 1
    selected_step: int = 0
    rng_state: int = 0
    kind: int = 1
    tokenizer_vocab: int = 0
    decoder: dict[str, int] = field(default_factory=dict)
    constants: dict[str, float] = field(default_factory=dict)
    adamw: dict[str, float] = field(default_factory=dict)
    flag: int = 0
    groups: list[list[bytes]] | None = None
    optimizer_step: int = 0
    powers: list[float] = field(default_factory=lambda: [1.0, 1.0])
    n_parameters: int | None = None
    n_moments: int | None = None
    n_records: int | None = None
    records: list[Rec] = field(default_factory=list)
    header_tail: bytes = b""
    payload_tail: bytes = b""

    def copy(self) -> Parts:
        return copy.deepcopy(self)

    def of_role(self, *roles: int) -> list[Rec]:
        return [record for record in self.records if record.role in roles]

    def record(self, role: int, name: str) -> Rec:
        return next(r for r in self.records if r.role == role and r.name == name.encode())


def text(raw: bytes) -> bytes:
    return struct.pack("<I", len(raw)) + raw


def header(parts: Parts, offsets: list[int]) -> bytes:
    """The variable header, bytes 38 to H."""
    out = struct.pack("<HH", parts.layout_version, parts.rng_version)
    out += struct.pack("<QQB", parts.selected_step, parts.rng_state, parts.kind)
    out += struct.pack("<Q", parts.tokenizer_vocab)
    out += b"".join(struct.pack("<Q", parts.decoder[name]) for name in DECODER)
    out += b"".join(struct.pack("<d", parts.constants[name]) for name in CONSTANTS)
    out += b"".join(struct.pack("<d", parts.adamw[name]) for name in ADAMW)
    out += struct.pack("<B", parts.flag)
    for names in parts.groups or []:
        out += struct.pack("<I", len(names)) + b"".join(text(name) for name in names)
    out += struct.pack("<Qdd", parts.optimizer_step, *parts.powers)
    count = len(parts.of_role(3)) if parts.n_parameters is None else parts.n_parameters
    moments = len(parts.of_role(4)) if parts.n_moments is None else parts.n_moments
    total = len(parts.records) if parts.n_records is None else parts.n_records
    out += struct.pack("<III", count, moments, total)
    for record, offset in zip(parts.records, offsets, strict=True):
        out += struct.pack("<B", record.role) + text(record.name)
        out += struct.pack("<BI", record.dtype, len(record.shape))
        out += b"".join(struct.pack("<Q", size) for size in record.shape)
        length = len(record.payload) if record.length is None else record.length
        out += struct.pack("<QQ", offset, length)
    return out + parts.header_tail


def build(parts: Parts, *, sealed: bool = True) -> bytes:
    """The file that these parts make, right or wrong."""
    size = 38 + len(header(parts, [0] * len(parts.records)))
    offsets, position = [], size
    for record in parts.records:
        offsets.append(position if record.offset is None else record.offset)
        position += len(record.payload)
    payload = b"".join(record.payload for record in parts.records) + parts.payload_tail
    h = size if parts.header_length is None else parts.header_length
    p = len(payload) if parts.payload_length is None else parts.payload_length
    data = struct.pack("<8sHIQQQ", parts.magic, parts.version, parts.marker, h, p, 0)
    data += header(parts, offsets) + payload
    return seal(data) if sealed else data


class Cursor:
    def __init__(self, data: bytes, position: int):
        self.data, self.position = data, position

    def take(self, form: str):
        (value,) = struct.unpack_from("<" + form, self.data, self.position)
        self.position += struct.calcsize("<" + form)
        return value

    def text(self) -> bytes:
        length = self.take("I")
        self.position += length
        return self.data[self.position - length : self.position]


def parse(data: bytes) -> Parts:
    """Take a valid file apart; ``build(parse(data)) == data``."""
    at = Cursor(data, 38)
    parts = Parts(
        layout_version=at.take("H"),
        rng_version=at.take("H"),
        selected_step=at.take("Q"),
        rng_state=at.take("Q"),
        kind=at.take("B"),
        tokenizer_vocab=at.take("Q"),
        decoder={name: at.take("Q") for name in DECODER},
        constants={name: at.take("d") for name in CONSTANTS},
        adamw={name: at.take("d") for name in ADAMW},
        flag=at.take("B"),
    )
    if parts.flag:
        parts.groups = [[at.text() for _ in range(at.take("I"))] for _ in range(2)]
    parts.optimizer_step = at.take("Q")
    parts.powers = [at.take("d"), at.take("d")]
    at.take("Q")
    for _ in range(at.take("I")):
        role, name, dtype = at.take("B"), at.text(), at.take("B")
        shape = [at.take("Q") for _ in range(at.take("I"))]
        offset, length = at.take("Q"), at.take("Q")
        parts.records.append(Rec(role, name, dtype, shape, data[offset : offset + length]))
    return parts
