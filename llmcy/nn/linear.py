"""A projection without bias."""

from __future__ import annotations

from llmcy import ops
from llmcy.nn.module import Module, Parameter
from llmcy.tape import Tensor

__all__ = ["Linear"]


class Linear(Module):
    """``y = x @ weight``.

    Parameters
    ----------
    weight
        Shape (in_features, out_features): the transpose of PyTorch's layout.
    """

    def __init__(self, weight: Parameter) -> None:
        self.weight = weight

    def __call__(self, x: Tensor) -> Tensor:
        """Map x (..., T, in_features) to (..., T, out_features)."""
        return ops.linear(x, self.weight)
