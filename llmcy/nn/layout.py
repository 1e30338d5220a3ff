"""Do named shapes make a decoder?  Answered from names and shapes alone.

Nothing here touches a value: no array is copied, no parameter node made.  A decoder built from
given parameters and a checkpoint being read share these rules, so both complain about the same
thing first.  The order is part of the file format (docs/formats.md, loading, the model).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import numpy as np

from llmcy import kernels
from llmcy.config import ModelConfig
from llmcy.errors import ModelError

__all__ = ["check_decoder_layout", "check_rotary_table", "parameter_names"]

MAX_SIZE = 2**64 - 1
MAX_TABLE_VALUES = (2**63 - 1) // 8
TENSORS_PER_BLOCK = 9

Shape = tuple[int, ...]


def parameter_names(n_layers: int, *, tied_head: bool = True) -> list[str]:
    """Names of a decoder's parameters in stable order (numerics contract, section 3)."""
    block = (
        "attention_norm.gain",
        "attention.query.weight",
        "attention.key.weight",
        "attention.value.weight",
        "attention.output.weight",
        "ffn_norm.gain",
        "ffn.gate.weight",
        "ffn.up.weight",
        "ffn.down.weight",
    )
    blocks = (f"blocks.{n}.{name}" for n in range(n_layers) for name in block)
    last = ["final_norm.gain"] if tied_head else ["final_norm.gain", "output_head.weight"]
    return list(chain(["token_embedding.weight"], blocks, last))


def check_decoder_layout(
    config: ModelConfig, names: Sequence[str], shapes: Sequence[Sequence[int]]
) -> None:
    """Check that parameters of these names and shapes make the decoder of ``config``.

    Parameters
    ----------
    config
        A configuration, valid by construction.
    names, shapes
        One entry a parameter, in the order in which they are given.

    Raises
    ------
    ModelError
        The first rule broken: the number of parameters, each name at its place, the embedding
        table on its own, every block on its own, the final norm, an untied head; and only when all
        of these hold the earliest disagreement of a width with ``config``.
    """
    expected_count = TENSORS_PER_BLOCK * config.n_layers + (2 if config.tied_head else 3)
    if expected_count > MAX_SIZE:
        raise ModelError(
            "ParameterAllocationFailed",
            f"{config.n_layers} layers have more parameters than a 64-bit size can count",
            n_layers=config.n_layers,
        )
    if len(names) != expected_count:
        raise ModelError(
            "ParameterCountMismatch",
            f"a decoder with {config.n_layers} layers has {expected_count} parameters, "
            f"got {len(names)}",
            expected=expected_count,
            actual=len(names),
        )
    expected_names = parameter_names(config.n_layers, tied_head=config.tied_head)
    for index, (expected, actual) in enumerate(zip(expected_names, names, strict=True)):
        if actual != expected:
            raise ModelError(
                "ParameterNameMismatch",
                f"parameter {index} must be named {expected!r}, got {actual!r}",
                index=index,
                expected=expected,
                actual=actual,
            )
    own = [tuple(shape) for shape in shapes]
    embedding = own[0]
    _check_matrix(_embedding_error, "Table", "token_embedding.weight", embedding)
    widths = []
    for layer in range(config.n_layers):
        start = 1 + TENSORS_PER_BLOCK * layer
        widths.append(_check_block(config, layer, own[start : start + TENSORS_PER_BLOCK]))
    gain = own[1 + TENSORS_PER_BLOCK * config.n_layers]
    _check_vector(_final_norm_error, "Gain", "final_norm.gain", gain)
    if not config.tied_head:
        _check_matrix(_output_head_error, "Table", "output_head.weight", own[-1])
    _check_agreement(config, embedding, widths, gain)
    if not config.tied_head:
        _check_head_agreement(config, own[-1])


# --------------------------------------------------------------------------- one tensor on its own
Complain = Callable[[str, str], ModelError]


def _embedding_error(problem: str, text: str) -> ModelError:
    return ModelError("Embedding", text, problem=problem)


def _final_norm_error(problem: str, text: str) -> ModelError:
    return ModelError("FinalNorm", text, problem=problem)


def _output_head_error(problem: str, text: str) -> ModelError:
    return ModelError("OutputHead", text, problem=problem)


def _check_vector(complain: Complain, part: str, name: str, shape: Shape) -> None:
    if len(shape) != 1:
        raise complain(f"{part}Rank", f"{name} must have one axis, got shape {shape}")
    if shape[0] == 0:
        raise complain(f"{part}Empty", f"{name} must not be empty")


def _check_matrix(complain: Complain, part: str, name: str, shape: Shape) -> None:
    if len(shape) != 2:
        raise complain(f"{part}Rank", f"{name} must have two axes, got shape {shape}")
    for axis, word in enumerate(("Rows", "Columns")):
        if shape[axis] == 0:
            raise complain(f"{part}{word}", f"{name} has no {word.lower()}, got shape {shape}")


# --------------------------------------------------------------------------- one block
def _check_block(config: ModelConfig, layer: int, shapes: Sequence[Shape]) -> tuple[int, int]:
    """Check a block against itself; return its model width and feed-forward width."""
    attention_gain, query, key, value, output, ffn_gain, gate, up, down = shapes

    def complain(problem: str, text: str) -> ModelError:
        return ModelError("Block", f"block {layer}: {text}", layer=layer, problem=problem)

    def same(problem: str, left: str, left_size: int, right: str, right_size: int) -> None:
        if left_size != right_size:
            raise complain(problem, f"{left} is {left_size}, but {right} is {right_size}")

    _check_vector(complain, "AttentionGain", "attention_norm.gain", attention_gain)
    _check_matrix(complain, "Query", "attention.query.weight", query)
    _check_matrix(complain, "Key", "attention.key.weight", key)
    _check_matrix(complain, "Value", "attention.value.weight", value)
    width = query[0]
    same("KeyInputWidth", "key input", key[0], "query input", width)
    same("ValueInputWidth", "value input", value[0], "query input", width)
    if config.n_kv_heads is None:
        same("KeyOutputWidth", "key output", key[1], "query output", query[1])
        same("ValueOutputWidth", "value output", value[1], "query output", query[1])
    _check_matrix(complain, "Output", "attention.output.weight", output)
    if config.head_size is None and width % config.n_heads:
        raise complain(
            "WidthNotDivisible", f"width {width} is not divisible by {config.n_heads} heads"
        )
    head_dim = width // config.n_heads if config.head_size is None else config.head_size
    if head_dim % 2:
        raise complain("OddHeadWidth", f"head width must be even for rotary pairs, got {head_dim}")
    together = "query input" if config.head_size is None else "the heads' width"
    heads = config.n_heads * head_dim
    same("QueryOutputWidth", "query output", query[1], together, heads)
    if config.n_kv_heads is not None:
        shared, kv_heads = "the key and value heads' width", config.n_kv_heads * head_dim
        same("KeyOutputWidth", "key output", key[1], shared, kv_heads)
        same("ValueOutputWidth", "value output", value[1], shared, kv_heads)
    same("OutputInputWidth", "output-projection input", output[0], together, heads)
    same("OutputOutputWidth", "output-projection output", output[1], "query input", width)
    problem = check_rotary_table(config.max_seq_len, head_dim, config.rope_theta, config.dtype)
    if problem is not None:
        raise complain(*problem)
    _check_vector(complain, "FeedForwardGain", "ffn_norm.gain", ffn_gain)
    _check_matrix(complain, "Gate", "ffn.gate.weight", gate)
    _check_matrix(complain, "Up", "ffn.up.weight", up)
    _check_matrix(complain, "Down", "ffn.down.weight", down)
    same("UpInputWidth", "up input", up[0], "gate input", gate[0])
    same("UpHiddenWidth", "up output", up[1], "gate output", gate[1])
    same("DownInputWidth", "down input", down[0], "gate output", gate[1])
    same("AttentionGainWidth", "attention_norm.gain", attention_gain[0], "block width", width)
    same("FeedForwardGainWidth", "ffn_norm.gain", ffn_gain[0], "block width", width)
    same("GateInputWidth", "gate input", gate[0], "block width", width)
    same("DownOutputWidth", "down output", down[1], "block width", width)
    return width, gate[1]


def check_rotary_table(
    max_seq_len: int, head_dim: int, theta: float, dtype: str = "float64"
) -> tuple[str, str] | None:
    """Would every value of the rotary table be a finite number?  The table is not built.

    Parameters
    ----------
    max_seq_len, head_dim
        The table would have ``max_seq_len * head_dim / 2`` cosines and as many sines.
    theta
        Base of the frequencies; finite, > 0.
    dtype
        The type the frequencies and angles are computed in.

    Returns
    -------
    tuple of str or None
        Nothing when the table is sound, else the problem's CamelCase word and an explanation.

    Notes
    -----
    Angles are ``position * theta ** (-2 j / head_dim)``.  They grow with the position, so one look
    at the last position of each pair decides, and a binary search names the first bad position.
    """
    pairs = head_dim // 2
    if max_seq_len * pairs > MAX_TABLE_VALUES:
        return (
            "RopeTableTooLarge",
            f"a rotary table of {max_seq_len} positions x {pairs} pairs cannot be addressed",
        )
    if theta >= 1.0:
        return None  # every frequency is at most 1 and every angle at most max_seq_len
    kind = np.dtype(dtype)
    exponents = np.array([(-2.0 * j) / head_dim for j in range(pairs)], kind)
    frequencies = kernels.pow(np.full(pairs, theta, kind), exponents)
    for pair, frequency in enumerate(frequencies):
        if not math.isfinite(frequency):
            return (
                "RopeFrequencyNotFinite",
                f"rotary frequency of pair {pair} with base {theta!r} is not a finite number",
            )
    largest = float(np.finfo(kind).max)
    for pair, frequency in enumerate(frequencies):
        if _angle_fits(max_seq_len - 1, float(frequency), largest, kind):
            continue
        low, high = 0, max_seq_len - 1  # the angle fits at low and does not at high
        while high - low > 1:
            middle = (low + high) // 2
            if _angle_fits(middle, float(frequency), largest, kind):
                low = middle
            else:
                high = middle
        return (
            "RopeAngleNotFinite",
            f"rotary angle of position {high}, pair {pair} with base {theta!r} "
            "is not a finite number",
        )
    return None


def _angle_fits(position: int, frequency: float, largest: float, kind: np.dtype[Any]) -> bool:
    with np.errstate(over="ignore"):
        return bool(kind.type(position) * kind.type(frequency) <= largest)


# --------------------------------------------------------------------------- against the config
def _check_agreement(
    config: ModelConfig, embedding: Shape, widths: Sequence[tuple[int, int]], gain: Shape
) -> None:
    if embedding[0] != config.vocab_size:
        raise ModelError(
            "EmbeddingVocabularyMismatch",
            f"token_embedding.weight has {embedding[0]} rows, vocab_size is {config.vocab_size}",
            expected=config.vocab_size,
            actual=embedding[0],
        )
    if embedding[1] != config.d_model:
        raise ModelError(
            "EmbeddingWidthMismatch",
            f"token_embedding.weight has {embedding[1]} columns, d_model is {config.d_model}",
            expected=config.d_model,
            actual=embedding[1],
        )
    for layer, (width, hidden) in enumerate(widths):
        if width != config.d_model:
            raise ModelError(
                "BlockModelWidthMismatch",
                f"block {layer} is {width} wide, d_model is {config.d_model}",
                layer=layer,
                expected=config.d_model,
                actual=width,
            )
        if hidden != config.d_ff:
            raise ModelError(
                "BlockFeedForwardWidthMismatch",
                f"block {layer} has feed-forward width {hidden}, d_ff is {config.d_ff}",
                layer=layer,
                expected=config.d_ff,
                actual=hidden,
            )
    if gain[0] != config.d_model:
        raise ModelError(
            "FinalNormWidthMismatch",
            f"final_norm.gain has {gain[0]} values, d_model is {config.d_model}",
            expected=config.d_model,
            actual=gain[0],
        )


def _check_head_agreement(config: ModelConfig, table: Shape) -> None:
    if table[0] != config.vocab_size:
        raise ModelError(
            "OutputHeadVocabularyMismatch",
            f"output_head.weight has {table[0]} rows, vocab_size is {config.vocab_size}",
            expected=config.vocab_size,
            actual=table[0],
        )
    if table[1] != config.d_model:
        raise ModelError(
            "OutputHeadWidthMismatch",
            f"output_head.weight has {table[1]} columns, d_model is {config.d_model}",
            expected=config.d_model,
            actual=table[1],
        )
