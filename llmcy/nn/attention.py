"""Causal self-attention with rotary positions."""

from __future__ import annotations

from llmcy import ops
from llmcy.nn.linear import Linear
from llmcy.nn.module import Module
from llmcy.nn.rope import RotaryTable
from llmcy.tape import Tensor

__all__ = ["Attention"]


class Attention(Module):
    """Every token attends to itself and what came before it (Vaswani et al., 2017).

    Parameters
    ----------
    query, output
        Projections (D, H * w) and (H * w, D); head h owns columns ``h * w`` to ``(h + 1) * w - 1``.
    key, value
        Projections (D, K * w); query head h uses head ``h // (H / K)`` of both.
    n_heads, n_kv_heads
        Number of query heads, H, and of key and value heads, K.
    rotary
        The model's table; queries and keys are rotated, values are not.
    """

    def __init__(
        self,
        query: Linear,
        key: Linear,
        value: Linear,
        output: Linear,
        *,
        n_heads: int,
        n_kv_heads: int,
        rotary: RotaryTable,
    ) -> None:
        self.query = query
        self.key = key
        self.value = value
        self.output = output
        self.n_heads = n_heads
        self.n_kv_heads = n_kv_heads
        self.rotary = rotary

    def __call__(self, x: Tensor) -> Tensor:
        """Map x (B, T, D) to (B, T, D).

        The operand order query, key, value of the attention operation makes the gradient of ``x``
        arrive from value, then key, then query (numerics contract, section 8, number 18).
        """
        q = self.rotary.rotate(self.query(x), self.n_heads)
        k = self.rotary.rotate(self.key(x), self.n_kv_heads)
        v = self.value(x)
        return self.output(ops.attention(q, k, v, self.n_heads, n_kv_heads=self.n_kv_heads))
