"""The gated feed-forward layer."""

from __future__ import annotations

from llmcy import ops
from llmcy.nn.linear import Linear
from llmcy.nn.module import Module
from llmcy.tape import Tensor

__all__ = ["SwiGLU"]


class SwiGLU(Module):
    """``down(silu(gate(x)) * up(x))`` (Shazeer, "GLU variants improve transformer", 2020).

    Parameters
    ----------
    gate, up
        Projections (d_model, d_ff).
    down
        Projection (d_ff, d_model).
    """

    def __init__(self, gate: Linear, up: Linear, down: Linear) -> None:
        self.gate = gate
        self.up = up
        self.down = down

    def __call__(self, x: Tensor) -> Tensor:
        """Map x (B, T, d_model) to (B, T, d_model)."""
        return self.down(ops.swiglu(self.gate(x), self.up(x)))
