"""The embedding table, which is also the output head."""

from __future__ import annotations

from numpy.typing import ArrayLike

from llmcy import ops
from llmcy.nn.module import Module, Parameter
from llmcy.tape import Tensor

__all__ = ["Embedding"]


class Embedding(Module):
    """A table of one vector per token id, used in both directions.

    Parameters
    ----------
    weight
        Shape (vocab_size, d_model).
    """

    def __init__(self, weight: Parameter) -> None:
        self.weight = weight

    def __call__(self, token_ids: ArrayLike) -> Tensor:
        """Vectors (B, T, D) of token ids (B, T)."""
        return ops.embedding(self.weight, token_ids)

    def logits(self, x: Tensor) -> Tensor:
        """``x @ weight.T``: a score (..., T, V) for every token id (Press and Wolf, 2017)."""
        return ops.tied_linear(x, self.weight)
