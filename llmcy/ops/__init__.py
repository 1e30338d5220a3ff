"""Differentiable operations: each runs a kernel and records the kernel of its gradient."""

from llmcy.ops.elementwise import add, mean, multiply, reshape, scale, silu, sum, swiglu
from llmcy.ops.head import linear_cross_entropy
from llmcy.ops.linear import linear, matmul, tied_linear
from llmcy.ops.rows import causal_softmax, cross_entropy, log_softmax, rms_norm, softmax
from llmcy.ops.sequence import attention, embedding, rope

__all__ = [
    "add",
    "attention",
    "causal_softmax",
    "cross_entropy",
    "embedding",
    "linear",
    "linear_cross_entropy",
    "log_softmax",
    "matmul",
    "mean",
    "multiply",
    "reshape",
    "rms_norm",
    "rope",
    "scale",
    "silu",
    "softmax",
    "sum",
    "swiglu",
    "tied_linear",
]
