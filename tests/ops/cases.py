"""One case an operation: a function of leaf tensors, on small awkward shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from llmcy import kernels, ops
from llmcy.tape import Tensor


@dataclass(frozen=True)
class Case:
    """A function of tensors of the given shapes."""

    name: str
    function: Callable[..., Tensor]
    shapes: tuple[tuple[int, ...], ...]

    def tensors(self, dtype="float64", seed: int = 0, requires_grad: bool = True) -> list[Tensor]:
        rng = np.random.default_rng([seed, len(self.name)])
        return [
            Tensor(rng.normal(size=shape).astype(dtype), requires_grad=requires_grad)
            for shape in self.shapes
        ]


def _rope(x: Tensor, position: int = 0) -> Tensor:
    cos, sin = kernels.rope_table(7, 4, 30.0, x.dtype)
    return ops.rope(x, cos, sin, n_heads=2, position=position)


IDS = np.array([[3, 0, 3], [1, 3, 0]])

CASES = [
    Case("add", ops.add, ((2, 3), (2, 3))),
    Case("multiply", ops.multiply, ((2, 3), (2, 3))),
    Case("scale", lambda x: ops.scale(x, -0.7), ((3,),)),
    Case("matmul 2-D", ops.matmul, ((3, 4), (4, 2))),
    Case("matmul weight", ops.matmul, ((2, 2, 3, 4), (4, 2))),
    Case("matmul batched", ops.matmul, ((2, 2, 3, 4), (2, 2, 4, 1))),
    Case("linear", ops.linear, ((2, 3, 4), (4, 5))),
    Case("linear 2-D", ops.linear, ((3, 4), (4, 5))),
    Case("tied_linear", ops.tied_linear, ((2, 3, 4), (5, 4))),
    Case("softmax", ops.softmax, ((2, 5),)),
    Case("causal_softmax", ops.causal_softmax, ((2, 3, 3),)),
    Case("log_softmax", ops.log_softmax, ((2, 5),)),
    Case("cross_entropy", lambda x: ops.cross_entropy(x, IDS), ((2, 3, 5),)),
    Case("cross_entropy 1 row", lambda x: ops.cross_entropy(x, 2), ((5,),)),
    Case(
        "cross_entropy of a head",
        lambda x, e: ops.linear_cross_entropy(x, e, IDS),
        ((2, 3, 4), (5, 4)),
    ),
    Case("rms_norm", lambda x, g: ops.rms_norm(x, g, 1e-5), ((2, 3, 5), (5,))),
    Case("rms_norm 1 row", lambda x, g: ops.rms_norm(x, g, 0.0), ((4,), (4,))),
    Case("silu", ops.silu, ((2, 5),)),
    Case("swiglu", ops.swiglu, ((2, 5), (2, 5))),
    Case("rope", _rope, ((2, 3, 8),)),
    Case("rope later", lambda x: _rope(x, 4), ((2, 3, 8),)),
    Case("embedding", lambda e: ops.embedding(e, IDS), ((5, 2),)),
    Case("attention", lambda q, k, v: ops.attention(q, k, v, 2), ((2, 4, 6),) * 3),
    Case(
        "attention shared heads",
        lambda q, k, v: ops.attention(q, k, v, 4, n_kv_heads=2),
        ((2, 3, 8), (2, 3, 4), (2, 3, 4)),
    ),
    Case("attention 1 token", lambda q, k, v: ops.attention(q, k, v, 3), ((1, 1, 6),) * 3),
    Case("reshape", lambda x: ops.reshape(x, (3, -1)), ((2, 6),)),
    Case("sum", ops.sum, ((2, 3),)),
    Case("mean", ops.mean, ((2, 3),)),
]
