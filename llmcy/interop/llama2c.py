"""The ``.bin`` files of llama2.c: seven integers, then float32 weights in a fixed order.

=====  =======================================================================================
bytes  meaning
=====  =======================================================================================
28     int32: D, F, L, H, K, V (negative when the head is a table of its own), C
4 n    embedding; over all blocks each of attention norm, query, key, value, output,
       feed-forward norm, gate, down, up; final norm; cosines, sines (C, w / 2); the head's table
=====  =======================================================================================

A weight is stored (out, in); rotary neighbours are turned, as here.  The program itself fixes two
numbers: the base of the rotary frequencies is 10000 and the norm's epsilon is 1e-5.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmcy import kernels
from llmcy.config import ModelConfig
from llmcy.errors import InteropError
from llmcy.interop.files import corrupt, read_bytes, write
from llmcy.interop.imported import ImportedModel, numbered_tokens
from llmcy.interop.narrow import float32_parameters, state_of
from llmcy.state import DecoderModelState

__all__ = ["PROGRAM_EPS", "PROGRAM_THETA", "export_llama2c", "import_llama2c"]

Array = NDArray[Any]
HEADER = struct.Struct("<7i")
PROGRAM_THETA = 10000.0
PROGRAM_EPS = 1e-5
MAX_SIZE = 2**31 - 1
PER_BLOCK = (
    "attention_norm.gain",
    "attention.query.weight",
    "attention.key.weight",
    "attention.value.weight",
    "attention.output.weight",
    "ffn_norm.gain",
    "ffn.gate.weight",
    "ffn.down.weight",
    "ffn.up.weight",
)
TABLES = {"token_embedding.weight", "output_head.weight"}


def export_llama2c(state: DecoderModelState, path: str | os.PathLike[str]) -> Path:
    """Write a ``.bin`` file for llama2.c's ``run``.

    Parameters
    ----------
    state
        The model; float64 parameters are rounded once to float32.
    path
        The file; replaced when it exists.

    Raises
    ------
    InteropError
        ``UnsupportedFeature`` for another rotary base, for heads of a width of their own and for
        sizes beyond 31 bits; ``NotRepresentable``; ``Io``.

    Notes
    -----
    The norm's epsilon has no place in the file.  A model whose epsilon is not `PROGRAM_EPS` runs
    with that one there.
    """
    config = state.config
    _check(config)
    arrays = dict(float32_parameters(state))
    parts = [HEADER.pack(*_header(config))]
    for name in _order(config):
        array = arrays[name] if name in arrays else _table(config, name)
        stored = array if array.ndim == 1 or name not in arrays or name in TABLES else array.T
        parts.append(np.ascontiguousarray(stored, "<f4").tobytes())
    write(path, b"".join(parts))
    return Path(path)


def import_llama2c(
    path: str | os.PathLike[str],
    *,
    dtype: str = "float32",
    rope_theta: float = PROGRAM_THETA,
    rms_norm_eps: float = PROGRAM_EPS,
) -> ImportedModel:
    """Read a ``.bin`` file.

    Parameters
    ----------
    path
        The file.  It holds no tokenizer: tokens are numbered.
    dtype
        Type of the model; both keep every value.
    rope_theta, rms_norm_eps
        What the file does not say; by default what llama2.c computes with.

    Raises
    ------
    InteropError
        ``CorruptFile`` for a header or a length that fits no model; ``NonFinite``; ``Io``.
    ModelError
        For sizes that make no model.
    """
    file = Path(path)
    data = read_bytes(file)
    if len(data) < HEADER.size:
        raise corrupt(file, f"{len(data)} bytes do not hold the header")
    d_model, d_ff, n_layers, n_heads, kv_heads, vocab_size, max_seq_len = HEADER.unpack_from(data)
    if n_layers * 4 * len(PER_BLOCK) > len(data):
        raise corrupt(file, f"{len(data)} bytes do not hold {n_layers} layers")
    config = ModelConfig(
        vocab_size=abs(vocab_size),
        d_model=d_model,
        n_heads=n_heads,
        n_layers=n_layers,
        d_ff=d_ff,
        max_seq_len=max_seq_len,
        rope_theta=rope_theta,
        rms_norm_eps=rms_norm_eps,
        dtype=dtype,
        n_kv_heads=kv_heads,
        tied_head=vocab_size > 0,
    )
    shapes = config.parameter_shapes()
    tables = 2 * config.max_seq_len * (config.head_dim // 2)
    wanted = HEADER.size + 4 * (config.n_parameters + tables)
    if len(data) != wanted:
        raise corrupt(file, f"the header announces {wanted} bytes, the file has {len(data)}")
    values = np.frombuffer(data, "<f4", offset=HEADER.size)
    named: dict[str, Array] = {}
    start = 0
    for name in _order(config):
        if name not in shapes:
            start += tables // 2
            continue
        shape = shapes[name]
        size = int(np.prod(shape))
        stored = values[start : start + size]
        start += size
        if len(shape) == 2 and name not in TABLES:
            stored = stored.reshape(shape[::-1]).T
        named[name] = np.array(stored, dtype, order="C").reshape(shape)
    state = state_of(config, {name: named[name] for name in shapes})
    return ImportedModel(state, numbered_tokens(config.vocab_size))


def _header(config: ModelConfig) -> tuple[int, ...]:
    vocab_size = config.vocab_size if config.tied_head else -config.vocab_size
    return (
        config.d_model,
        config.d_ff,
        config.n_layers,
        config.n_heads,
        config.kv_heads,
        vocab_size,
        config.max_seq_len,
    )


def _order(config: ModelConfig) -> Iterator[str]:
    """Names in file order; ``cos`` and ``sin`` are the rotary tables."""
    yield "token_embedding.weight"
    for part in PER_BLOCK:
        for layer in range(config.n_layers):
            yield f"blocks.{layer}.{part}"
    yield from ("final_norm.gain", "cos", "sin")
    if not config.tied_head:
        yield "output_head.weight"


def _table(config: ModelConfig, name: str) -> Array:
    tables = kernels.rope_table(config.max_seq_len, config.head_dim, config.rope_theta, "float32")
    return tables[("cos", "sin").index(name)]


def _check(config: ModelConfig) -> None:
    for name, value, wanted in (
        ("rope_theta", config.rope_theta, PROGRAM_THETA),
        ("head_size", config.head_size, None),
    ):
        if value != wanted:
            raise InteropError(
                "UnsupportedFeature",
                f"this model has {name} = {value!r}, which llama2.c cannot run",
                name=name,
                value=value,
            )
    sizes = zip(("d_model", "d_ff", "n_layers", "n_heads", "n_kv_heads", "vocab_size",
                 "max_seq_len"), _header(config), strict=True)  # fmt: skip
    for name, size in sizes:
        if abs(size) > MAX_SIZE:
            raise InteropError(
                "UnsupportedFeature",
                f"this model has {name} = {abs(size)}, more than llama2.c's 32 bits hold",
                name=name,
                value=abs(size),
            )
