"""State files: parameters, both moments and one metadata entry, in the ``.safetensors`` form.

A *job checkpoint* holds everything a restart needs; a *selected state* holds the best measured one.
Both are described on docs/runs.md.  The metadata entry ``llmcy`` is canonical JSON (keys sorted, no
spaces, floats as hexadecimal bits), and the library orders the tensors itself, so that the same
state always gives the same bytes.  Two digests seal the file: one of every tensor with its name,
dtype and shape, and one of the metadata.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save as save_tensors

from llmcy._threads import num_threads
from llmcy.checkpoint.layout import MAGIC
from llmcy.config import ModelConfig
from llmcy.errors import LlmcyError, RunError
from llmcy.optim import (
    AdamW,
    AdamWConfig,
    AdamWState,
    AdamWStateEntry,
    OptimizerSnapshot,
    ParameterGroups,
)
from llmcy.run.canonical import canonical_json, float_from_bits, sha256_hex, with_float_bits
from llmcy.run.state_layout import METADATA_KEY, layout_of
from llmcy.state import DecoderModelState

__all__ = [
    "StateFile",
    "decode_state_file",
    "describe_state_file",
    "encode_state_file",
    "encode_state_pieces",
    "is_state_file",
    "read_state_file",
    "restored_optimizer",
]

FORMAT = "llmcy-state-1"
FIRST, SECOND = "first_moment:", "second_moment:"
DTYPES = {"F64": np.dtype("<f8"), "F32": np.dtype("<f4")}
MAX_HEADER_BYTES = 2**30
BLOCK = 1 << 20  # bytes from which on a tensor is written from where it lies

Array = NDArray[Any]


@dataclass(frozen=True)
class StateFile:
    """A state file that was read and found valid.

    Attributes
    ----------
    path
        Where it came from.
    described
        The metadata, floats still as bits; ``described["kind"]`` is ``job`` or ``selected``.
    model, optimizer
        The state.
    """

    path: Path
    described: dict[str, Any]
    model: DecoderModelState
    optimizer: OptimizerSnapshot

    @property
    def step(self) -> int:
        """The step after which the state was taken."""
        return self.optimizer.step

    @property
    def tensors_sha256(self) -> str:
        """Digest of all tensors with their names."""
        digest: str = self.described["tensors_sha256"]
        return digest

    def summary_lines(self) -> Iterator[str]:
        """For people: what the metadata says, then every tensor with its digest."""
        hidden = ("tensors", "tokenizer", "identity", "model", "optimizer")
        for key, value in _floats(self.described).items():
            if key not in hidden:
                yield f"{key:<16} {value}"
        for part in ("model", "optimizer"):
            for key, value in _floats(self.described[part]).items():
                if key != "groups":
                    yield f"{part + '.' + key:<24} {value}"
        tensors = dict(self.model.named_arrays())
        for entry in self.optimizer.state.entries:
            tensors[FIRST + entry.name] = entry.first_moment
            tensors[SECOND + entry.name] = entry.second_moment
        for name, digest in self.described["tensors"].items():
            array = tensors[name]
            yield f"{digest}  {array.dtype.name} {list(array.shape)} {name}"


def encode_state_file(
    model: DecoderModelState | list[tuple[str, Array]],
    config: ModelConfig,
    optimizer: OptimizerSnapshot,
    described: Mapping[str, Any],
) -> tuple[bytes, str]:
    """The bytes of a state file, and the digest of its tensors.

    Parameters
    ----------
    model
        Values of every parameter.
    config
        The model's configuration.
    optimizer
        Settings, groups and moments.
    described
        What else the metadata says: ``kind`` and its fields; floats may be floats.
    """
    pieces, digest = encode_state_pieces(model, config, optimizer, described)
    return b"".join(pieces), digest


def encode_state_pieces(
    model: DecoderModelState | list[tuple[str, Array]],
    config: ModelConfig,
    optimizer: OptimizerSnapshot,
    described: Mapping[str, Any],
) -> tuple[list[bytes | memoryview], str]:
    """As :func:`encode_state_file`, in pieces to be written one after the other.

    Notes
    -----
    Large tensors are not copied: the pieces are the memory of ``model`` and ``optimizer``, to be
    written before anything changes there.  Where each tensor lies is the library's decision
    (:mod:`llmcy.run.state_layout`), looked up while the tensors are hashed.
    """
    named = list(model.named_arrays()) if isinstance(model, DecoderModelState) else model
    tensors = {name: _held(array) for name, array in named}
    for entry in optimizer.state.entries:
        tensors[FIRST + entry.name] = _held(entry.first_moment)
        tensors[SECOND + entry.name] = _held(entry.second_moment)
    with _hashing(tensors) as digests_of:
        layout = layout_of(tensors)
        digests = digests_of()
    text = _sealed(_content(config, optimizer, described), digests)
    digest = sha256_hex(canonical_json(digests))
    if layout is None:
        return [save_tensors(tensors, metadata={METADATA_KEY: text})], digest
    return list(_blocks(layout.header(text), [_bytes(tensors[n]) for n in layout.order])), digest


def _blocks(header: bytes, parts: list[memoryview]) -> Iterator[bytes | memoryview]:
    """The same bytes in fewer pieces: small neighbours are joined, large parts are left alone."""
    small = [header]
    for part in parts:
        if len(part) < BLOCK:
            small.append(bytes(part))
        else:
            yield b"".join(small)
            yield part
            small = []
    yield b"".join(small)


def _content(
    config: ModelConfig, optimizer: OptimizerSnapshot, described: Mapping[str, Any]
) -> dict[str, Any]:
    """The metadata without digests."""
    groups = optimizer.groups
    content: dict[str, Any] = with_float_bits(
        {
            **described,
            "format": FORMAT,
            "model": config.to_dict(),
            "optimizer": {
                "name": "adamw",
                **optimizer.config.to_dict(),
                "groups": None
                if groups is None
                else {"decay": list(groups.decay), "no_decay": list(groups.no_decay)},
                "beta_powers": [optimizer.state.beta1_power, optimizer.state.beta2_power],
            },
            "step": optimizer.step,
        }
    )
    return content


def _sealed(content: dict[str, Any], digests: dict[str, str]) -> str:
    """The text of the metadata, with the digests of the tensors and its own."""
    whole = sha256_hex(canonical_json(digests))
    sealed = {**content, "tensors": digests, "tensors_sha256": whole}
    sealed.pop("sha256", None)
    sealed["sha256"] = sha256_hex(canonical_json(sealed))
    return canonical_json(sealed).decode("ascii")


def read_state_file(path: Path, kind: str | None = None) -> StateFile:
    """Read and check a state file.

    Raises
    ------
    RunError
        ``Io``; otherwise as :func:`decode_state_file`.
    """
    with _reading(path), path.open("rb") as file:
        data = file.read()
    return decode_state_file(data, path, kind)


def describe_state_file(path: Path) -> dict[str, Any]:
    """The metadata of a state file, checked on its own; the tensors are not read.

    Raises
    ------
    RunError
        ``Io``, ``InvalidJobFile``.
    """
    fail = _Failure(path)
    with _reading(path), path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > MAX_HEADER_BYTES:
            raise fail("header", f"its length, {length}, is out of range")
        raw = file.read(length)
    _, described = _parse_header(raw, length, fail)
    _check_seal(described, None, fail)
    return described


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunError(
            "Io",
            f"cannot read {str(path)!r}: {error.strerror}",
            cause=error,
            operation="read",
            path=str(path),
        ) from error


def is_state_file(path: Path) -> bool:
    """Does a file begin as a ``.safetensors`` file with this metadata entry does?"""
    with suppress(OSError), path.open("rb") as file:
        return file.read(200)[8:].startswith(b'{"__metadata__":{"llmcy":')
    return False


def decode_state_file(data: bytes, path: Path, kind: str | None = None) -> StateFile:
    """Check every byte of a state file and give what it holds.

    Parameters
    ----------
    data
        The whole file.
    path
        For messages.
    kind
        ``job`` or ``selected`` when only that will do.

    Raises
    ------
    RunError
        ``NotResumable`` for a version-1 checkpoint; ``InvalidJobFile`` naming the field or tensor.
    """
    fail = _Failure(path)
    if data[: len(MAGIC)] == MAGIC:
        raise RunError(
            "NotResumable",
            f"{str(path)!r} is a version-1 checkpoint: it holds a model and its optimizer, but no "
            "schedule, no place in the data and no history, so a run cannot continue from it",
            path=str(path),
            reason="version-1 checkpoint",
        )
    table, described, payload = _parse(data, fail)
    _check_seal(described, kind, fail)
    try:
        config = ModelConfig.from_dict(_floats(described["model"]))
    except (LlmcyError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise fail("model", str(error), error) from error
    if config.n_layers > len(table):  # before every tensor of these layers is named
        raise fail("model", f"{config.n_layers} layers, but {len(table)} tensors")
    tensors = _tensors(table, payload, config, described, fail)
    digests = described["tensors"]
    actual = _digests(tensors)
    for name in sorted(actual.keys() | digests.keys()):
        if actual.get(name) != digests.get(name):
            raise fail(f"tensor {name}", "its values are not those that were written")
    if sha256_hex(canonical_json(digests)) != described["tensors_sha256"]:
        raise fail("tensors_sha256", "it is not the digest of the list of tensors")
    try:
        model = DecoderModelState.from_named_arrays(
            config, [(name, tensors[name]) for name in config.parameter_shapes()]
        )
        optimizer = _optimizer(described, tensors, config)
    except (LlmcyError, KeyError, TypeError, ValueError, AttributeError) as error:
        raise fail("optimizer", f"{type(error).__name__}: {error}", error) from error
    return StateFile(path, described, model, optimizer)


class _Failure:
    """Makes the errors of one file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __call__(self, field: str, problem: str, cause: Exception | None = None) -> RunError:
        return RunError(
            "InvalidJobFile",
            f"{self.path!r}: {field}: {problem}",
            cause=cause,
            path=self.path,
            field=field,
            problem=problem,
        )


def _parse(data: bytes, fail: _Failure) -> tuple[dict[str, Any], dict[str, Any], memoryview]:
    """Header table, metadata and payload; the header must be in the one form that is written."""
    if len(data) < 8:
        raise fail("header", f"the file ends after {len(data)} bytes")
    length = int.from_bytes(data[:8], "little")
    if length > min(MAX_HEADER_BYTES, len(data) - 8):
        raise fail("header", f"its length, {length}, does not fit a file of {len(data)} bytes")
    table, described = _parse_header(data[8 : 8 + length], length, fail)
    return table, described, memoryview(data)[8 + length :]


def _parse_header(raw: bytes, length: int, fail: _Failure) -> tuple[dict[str, Any], dict[str, Any]]:
    if len(raw) != length:
        raise fail("header", f"its length, {length}, is more than the file holds")
    text = raw.rstrip(b" ")
    try:
        table = json.loads(text)
        metadata = table.pop("__metadata__")
        described = json.loads(metadata[METADATA_KEY])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise fail("header", f"it is not the header of a state file ({error!r})", error) from error
    again = {"__metadata__": metadata, **table}
    one_form = json.dumps(again, separators=(",", ":"), ensure_ascii=False).encode(
        "utf-8", "surrogatepass"
    )
    padded = len(one_form) + -len(one_form) % 8
    if text != one_form or len(raw) != padded or list(metadata) != [METADATA_KEY]:
        raise fail("header", "it is not in the form that is written")
    if not isinstance(described, dict) or canonical_json(described) != metadata[
        METADATA_KEY
    ].encode("utf-8", "surrogatepass"):
        raise fail("metadata", "it is not canonical JSON")
    return table, described


def _check_seal(described: dict[str, Any], kind: str | None, fail: _Failure) -> None:
    content = {key: value for key, value in described.items() if key != "sha256"}
    if sha256_hex(canonical_json(content)) != described.get("sha256"):
        raise fail("metadata", "its digest is not the one written in it")
    if described.get("format") != FORMAT:
        raise fail("format", f"it is {described.get('format')!r}, expected {FORMAT!r}")
    found = described.get("kind")
    if found not in ("job", "selected") or kind not in (None, found):
        raise fail("kind", f"it is {found!r}, expected {kind or 'job or selected'!r}")
    if not isinstance(described.get("tensors"), dict):
        raise fail("tensors", "the list of tensors is missing")


def _tensors(
    table: dict[str, Any],
    payload: memoryview,
    config: ModelConfig,
    described: dict[str, Any],
    fail: _Failure,
) -> dict[str, Array]:
    """Views of every tensor; names, dtypes, shapes and places must be the expected ones."""
    shapes = dict(config.parameter_shapes())
    if described.get("step") != 0:
        for prefix in (FIRST, SECOND):
            shapes |= {prefix + n: s for n, s in config.parameter_shapes().items()}
    for name in sorted(table.keys() ^ shapes.keys()):
        word = "missing" if name in shapes else "unknown"
        raise fail(f"tensor {name}", f"it is {word}")
    dtype = np.dtype(config.dtype)
    code = next(key for key, value in DTYPES.items() if value == dtype)
    tensors = {}
    position = 0
    for name, shape in ((name, shapes[name]) for name in table):
        size = math.prod(shape) * dtype.itemsize
        expected = {
            "dtype": code,
            "shape": list(shape),
            "data_offsets": [position, position + size],
        }
        if table[name] != expected:
            raise fail(f"tensor {name}", f"it is listed as {table[name]}, expected {expected}")
        part = payload[position : position + size]
        if len(part) != size:
            raise fail(f"tensor {name}", f"the file ends {size - len(part)} bytes too early")
        tensors[name] = np.frombuffer(part, dtype).reshape(shape)
        position += size
    if position != len(payload):
        raise fail("file", f"{len(payload) - position} bytes follow the last tensor")
    return tensors


def _optimizer(
    described: dict[str, Any], tensors: dict[str, Array], config: ModelConfig
) -> OptimizerSnapshot:
    settings = _floats(described["optimizer"])
    groups = settings["groups"]
    step = described["step"]
    names = config.parameter_shapes() if step else ()
    beta1_power, beta2_power = settings["beta_powers"]
    entries = [
        AdamWStateEntry(n, tensors[n].shape, tensors[FIRST + n], tensors[SECOND + n], copy=False)
        for n in names
    ]
    return OptimizerSnapshot(
        AdamWConfig(
            settings["learning_rate"],
            tuple(settings["betas"]),
            settings["eps"],
            settings["weight_decay"],
        ),
        None if groups is None else ParameterGroups(groups["decay"], groups["no_decay"]),
        AdamWState(step, beta1_power, beta2_power, entries),
    )


def restored_optimizer(snapshot: OptimizerSnapshot) -> AdamW:
    """A live optimizer with copies of the moments; no arithmetic."""
    return AdamW.from_state(snapshot.config, snapshot.groups, snapshot.state)


def _floats(value: Any) -> Any:
    """The inverse of `with_float_bits`; names of parameters never begin with its mark."""
    if isinstance(value, str) and value.startswith("f64:"):
        return float_from_bits(value)
    if isinstance(value, dict):
        return {key: _floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_floats(item) for item in value]
    return value


def _digests(tensors: Mapping[str, Array]) -> dict[str, str]:
    """SHA-256 of every tensor."""
    with _hashing(tensors) as digests_of:
        return digests_of()


@contextmanager
def _hashing(tensors: Mapping[str, Array]) -> Iterator[Callable[[], dict[str, str]]]:
    """Begin to hash every tensor; the function given waits for the digests.

    Hashing releases the interpreter, so threads share the work, also with what is done meanwhile.
    """
    with ThreadPoolExecutor(num_threads()) as pool:
        digests = pool.map(_digest, tensors.items())
        yield lambda: dict(zip(tensors, digests, strict=True))


def _digest(item: tuple[str, Array]) -> str:
    """SHA-256 of a tensor: one line of canonical JSON (name, dtype, shape), then its values."""
    name, array = item
    held = _held(array)
    state = hashlib.sha256(canonical_json([name, held.dtype.name, list(held.shape)]) + b"\n")
    state.update(_bytes(held))
    return state.hexdigest()


def _held(array: Array) -> Array:
    """The values as they are in the file; a copy only where memory holds them in another way."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<"))


def _bytes(held: Array) -> memoryview:
    return held.reshape(-1).view(np.uint8).data
