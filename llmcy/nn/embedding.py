"""The embedding table, and the output head, which usually is the same table."""

from __future__ import annotations

from numpy.typing import ArrayLike

from llmcy import ops
from llmcy.nn.module import Module, Parameter
from llmcy.tape import Tensor

__all__ = ["Embedding", "OutputHead"]


class Embedding(Module):
    """A table of one vector per token id; a tied model uses it in both directions.

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


class OutputHead(Module):
    """A table of one vector per token id that only scores.

    Parameters
    ----------
    weight
        Shape (vocab_size, d_model), the layout of the embedding.
    """

    def __init__(self, weight: Parameter) -> None:
        self.weight = weight

    def logits(self, x: Tensor) -> Tensor:
        """``x @ weight.T``: a score (..., T, V) for every token id."""
        return ops.tied_linear(x, self.weight)
