"""Root-mean-square normalisation."""

from __future__ import annotations

from llmcy import ops
from llmcy.nn.module import Module, Parameter
from llmcy.tape import Tensor

__all__ = ["RMSNorm"]


class RMSNorm(Module):
    """``x / sqrt(mean(x**2) + eps) * gain`` over the last axis.

    Parameters
    ----------
    gain
        Shape (d_model,).
    eps
        Added to the mean square; >= 0.
    """

    def __init__(self, gain: Parameter, eps: float) -> None:
        self.gain = gain
        self.eps = eps

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise x (..., d_model)."""
        return ops.rms_norm(x, self.gain, self.eps)
