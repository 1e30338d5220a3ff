"""Every kernel of a training step on the sizes of one decoder: inputs, call, work.

``KERNEL_CASES`` maps a name to a :class:`KernelCase`. The inputs are plain arrays, so another
library can be given the same ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmcy import kernels
from llmcy.bench.cases import StepCase

__all__ = ["KERNEL_CASES", "Draw", "KernelCase"]

Array = NDArray[Any]
Inputs = dict[str, Array]
Sizes = Callable[[StepCase], float]
EPS = 1e-6  # of RMSNorm
THETA = 10000.0


@dataclass(frozen=True)
class KernelCase:
    """A kernel with what it reads and how much it does.

    Attributes
    ----------
    inputs
        Makes the arrays for a decoder's sizes from a generator and a dtype.
    call
        Calls the kernel on them; returns its results.
    flops
        Additions and multiplications where products dominate, else 0.
    values
        Numbers read and written at least once: what bounds a kernel that computes little.
    """

    inputs: Callable[[StepCase, Draw], Inputs]
    call: Callable[[StepCase, Inputs], Any]
    flops: Sizes
    values: Sizes


class Draw:
    """Normal numbers of one dtype."""

    def __init__(self, dtype: str, seed: int = 0) -> None:
        self.dtype = np.dtype(dtype)
        self.generator = np.random.default_rng(seed)

    def __call__(self, *shape: int, scale: float = 1.0) -> Array:
        numbers: Array = (self.generator.standard_normal(shape) * scale).astype(self.dtype)
        return numbers

    def ids(self, case: StepCase) -> Array:
        return self.generator.integers(0, case.vocab_size, (case.batch_size, case.context_length))


def _tokens(case: StepCase) -> tuple[int, int]:
    return case.batch_size, case.context_length


def _none(case: StepCase) -> float:
    return 0.0


def _elements(per_token: Sizes, arrays: float) -> Sizes:
    return lambda case: arrays * case.tokens * per_token(case)


def _width(case: StepCase) -> float:
    return case.d_model


def _hidden(case: StepCase) -> float:
    return case.d_ff


def _vocab(case: StepCase) -> float:
    return case.vocab_size


# ---- projections -------------------------------------------------------------------------------
def _projection(case: StepCase, draw: Draw) -> Inputs:
    b, t = _tokens(case)
    d, f = case.d_model, case.d_ff
    return {"x": draw(b, t, d), "weight": draw(d, f, scale=0.1), "d_out": draw(b, t, f)}


def _projection_flops(case: StepCase) -> float:
    return 2.0 * case.tokens * case.d_model * case.d_ff


def _projection_values(case: StepCase) -> float:
    return case.tokens * (case.d_model + case.d_ff) + case.d_model * case.d_ff


# ---- attention ---------------------------------------------------------------------------------
def _heads(case: StepCase, draw: Draw) -> Inputs:
    shape = (*_tokens(case), case.d_model)
    return {name: draw(*shape) for name in ("q", "k", "v", "d_out")}


def _causal_product(case: StepCase) -> float:
    """One product of a query with all keys up to its own, for all heads: scores, or their mix."""
    return float(case.tokens * (case.context_length + 1) * case.d_model)


# ---- rows --------------------------------------------------------------------------------------
def _hidden_rows(case: StepCase, draw: Draw) -> Inputs:
    shape = (*_tokens(case), case.d_ff)
    return {name: draw(*shape) for name in ("gate", "up", "d_out")}


def _norm(case: StepCase, draw: Draw) -> Inputs:
    b, t = _tokens(case)
    x, gain = draw(b, t, case.d_model), draw(case.d_model)
    rows = kernels.rms_norm(x, gain, EPS)
    return {
        "x": x,
        "gain": gain,
        "d_out": draw(b, t, case.d_model),
        "inv_rms": rows.inv_rms,
        "mean_square_eps": rows.mean_square_eps,
    }


def _norm_backward(case: StepCase, given: Inputs) -> Any:
    d_x = kernels.zeros(given["x"].shape, given["x"].dtype)
    d_gain = kernels.zeros(given["gain"].shape, given["x"].dtype)
    kernels.rms_norm_backward(
        given["d_out"],
        given["x"],
        given["gain"],
        given["inv_rms"],
        given["mean_square_eps"],
        d_x=d_x,
        d_gain=d_gain,
    )
    return d_x, d_gain


def _scores(case: StepCase, draw: Draw) -> Inputs:
    t = case.context_length
    x = draw(case.batch_size * case.n_heads, t, t)
    return {"x": x, "p": kernels.causal_softmax(x), "d_p": draw(*x.shape)}


def _score_elements(arrays: float) -> Sizes:
    """Half of the square is behind the mask; its zeros are written all the same."""
    return lambda case: arrays * case.tokens * case.n_heads * case.context_length


def _logits(case: StepCase, draw: Draw) -> Inputs:
    return {"logits": draw(*_tokens(case), case.vocab_size), "targets": draw.ids(case)}


def _head(case: StepCase, draw: Draw) -> Inputs:
    return {
        "x": draw(*_tokens(case), case.d_model),
        "table": draw(case.vocab_size, case.d_model, scale=0.1),
        "targets": draw.ids(case),
    }


def _head_loss(case: StepCase, given: Inputs) -> Any:
    x, table = given["x"], given["table"]
    d_x, d_table = kernels.empty_like(x), kernels.empty_like(table)
    loss = kernels.linear_cross_entropy(x, table, given["targets"], d_x=d_x, d_table=d_table)
    return loss, d_x, d_table


def _head_flops(case: StepCase) -> float:
    """Logits and both gradients."""
    return 6.0 * case.tokens * case.d_model * case.vocab_size


def _head_values(case: StepCase) -> float:
    return 2.0 * case.d_model * (case.tokens + case.vocab_size)


def _rotary(case: StepCase, draw: Draw) -> Inputs:
    width = case.d_model // case.n_heads
    cos, sin = kernels.rope_table(case.context_length, width, THETA, draw.dtype)
    return {"x": draw(*_tokens(case), case.n_heads, width), "cos": cos, "sin": sin}


def _look_up(case: StepCase, draw: Draw) -> Inputs:
    return {
        "weight": draw(case.vocab_size, case.d_model),
        "token_ids": draw.ids(case),
        "d_out": draw(*_tokens(case), case.d_model),
    }


def _look_up_backward(case: StepCase, given: Inputs) -> Any:
    d_weight = kernels.zeros(given["weight"].shape, given["weight"].dtype)
    kernels.embedding_backward(given["d_out"], given["token_ids"], d_weight)
    return d_weight


def _plain(case: StepCase, draw: Draw) -> Inputs:
    shape = (*_tokens(case), case.d_model)
    return {"a": draw(*shape), "b": draw(*shape)}


# ---- the optimizer -----------------------------------------------------------------------------
def _parameter(case: StepCase, draw: Draw) -> Inputs:
    shape = (case.d_model, case.d_ff)
    return {
        "param": draw(*shape, scale=0.1),
        "grad": draw(*shape, scale=0.01),
        "first_moment": draw(*shape, scale=0.01),
        "second_moment": np.abs(draw(*shape, scale=1e-4)),
    }


def _parameter_values(arrays: float) -> Sizes:
    return lambda case: arrays * case.d_model * case.d_ff


def _adamw(case: StepCase, given: Inputs) -> Any:
    return kernels.adamw_update(
        given["param"],
        given["grad"],
        given["first_moment"],
        given["second_moment"],
        lr=1e-3,
        beta1=0.9,
        beta2=0.999,
        eps=1e-8,
        weight_decay=0.01,
        correction1=0.1,
        correction2=0.001,
    )


KERNEL_CASES: dict[str, KernelCase] = {
    "linear forward": KernelCase(
        _projection,
        lambda case, g: kernels.matmul(g["x"], g["weight"]),
        _projection_flops,
        _projection_values,
    ),
    "linear d_input": KernelCase(
        _projection,
        lambda case, g: kernels.matmul(g["d_out"], g["weight"], transpose_b=True),
        _projection_flops,
        _projection_values,
    ),
    "linear d_weight": KernelCase(
        _projection,
        lambda case, g: kernels.matmul_d_weight(g["x"], g["d_out"]),
        _projection_flops,
        _projection_values,
    ),
    "attention forward": KernelCase(
        _heads,
        lambda case, g: kernels.attention(g["q"], g["k"], g["v"], case.n_heads),
        lambda case: 2 * _causal_product(case),
        _elements(_width, 4),
    ),
    "attention backward": KernelCase(
        _heads,
        lambda case, g: kernels.attention_backward(
            g["d_out"], g["q"], g["k"], g["v"], case.n_heads
        ),
        lambda case: 5 * _causal_product(case),  # scores again, then four gradients
        _elements(_width, 7),
    ),
    "causal_softmax forward": KernelCase(
        _scores, lambda case, g: kernels.causal_softmax(g["x"]), _none, _score_elements(1.5)
    ),
    "causal_softmax backward": KernelCase(
        _scores,
        lambda case, g: kernels.causal_softmax_backward(g["p"], g["d_p"]),
        _none,
        _score_elements(2),
    ),
    "cross_entropy forward": KernelCase(
        _logits,
        lambda case, g: kernels.cross_entropy(g["logits"], g["targets"]),
        _none,
        _elements(_vocab, 1),
    ),
    "cross_entropy backward": KernelCase(
        _logits,
        lambda case, g: kernels.cross_entropy_backward(g["logits"], g["targets"]),
        _none,
        _elements(_vocab, 2),
    ),
    "head loss and gradients": KernelCase(_head, _head_loss, _head_flops, _head_values),
    "rms_norm forward": KernelCase(
        _norm,
        lambda case, g: kernels.rms_norm(g["x"], g["gain"], EPS)[0],
        _none,
        _elements(_width, 2),
    ),
    "rms_norm backward": KernelCase(_norm, _norm_backward, _none, _elements(_width, 4)),
    "swiglu forward": KernelCase(
        _hidden_rows,
        lambda case, g: kernels.swiglu(g["gate"], g["up"]),
        _none,
        _elements(_hidden, 3),
    ),
    "swiglu backward": KernelCase(
        _hidden_rows,
        lambda case, g: kernels.swiglu_backward(g["d_out"], g["gate"], g["up"]),
        _none,
        _elements(_hidden, 5),
    ),
    "silu forward": KernelCase(
        _hidden_rows, lambda case, g: kernels.silu(g["gate"]), _none, _elements(_hidden, 2)
    ),
    "silu backward": KernelCase(
        _hidden_rows,
        lambda case, g: kernels.silu_backward(g["d_out"], g["gate"]),
        _none,
        _elements(_hidden, 3),
    ),
    "rope forward": KernelCase(
        _rotary,
        lambda case, g: kernels.rope(g["x"], g["cos"], g["sin"]),
        _none,
        _elements(_width, 2),
    ),
    "rope backward": KernelCase(
        _rotary,
        lambda case, g: kernels.rope(g["x"], g["cos"], g["sin"], inverse=True),
        _none,
        _elements(_width, 2),
    ),
    "embedding forward": KernelCase(
        _look_up,
        lambda case, g: kernels.embedding(g["weight"], g["token_ids"]),
        _none,
        _elements(_width, 2),
    ),
    "embedding backward": KernelCase(_look_up, _look_up_backward, _none, _elements(_width, 3)),
    "add": KernelCase(
        _plain, lambda case, g: kernels.add(g["a"], g["b"]), _none, _elements(_width, 3)
    ),
    "multiply": KernelCase(
        _plain, lambda case, g: kernels.multiply(g["a"], g["b"]), _none, _elements(_width, 3)
    ),
    "first_non_finite": KernelCase(
        _plain, lambda case, g: kernels.first_non_finite(g["a"]), _none, _elements(_width, 1)
    ),
    "exp": KernelCase(_plain, lambda case, g: kernels.exp(g["a"]), _none, _elements(_width, 2)),
    "adamw": KernelCase(
        _parameter,
        _adamw,
        _none,
        _parameter_values(7),
    ),
    "grad_norm": KernelCase(
        _parameter,
        lambda case, g: kernels.grad_norm([g["grad"]]).norm,
        _none,
        _parameter_values(1),
    ),
}
