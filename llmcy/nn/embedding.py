"""The embedding table, and the output head, which usually is the same table."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmcy import ops
from llmcy.nn.module import Module, Parameter
from llmcy.tape import Tensor

__all__ = ["Embedding", "OutputHead"]

FEW_LOGITS = 2**14
"""So few stay in the caches, and the tape may show them as the result of an operation."""


class OutputHead(Module):
    """A table of one vector per token id that scores.

    Parameters
    ----------
    weight
        Shape (vocab_size, d_model).
    """

    def __init__(self, weight: Parameter) -> None:
        self.weight = weight

    def logits(self, x: Tensor) -> Tensor:
        """``x @ weight.T``: a score (..., T, V) for every token id."""
        return ops.tied_linear(x, self.weight)

    def loss(
        self,
        x: Tensor,
        targets: ArrayLike,
        n_total: int | None = None,
        *,
        row_losses: NDArray[np.float64] | None = None,
    ) -> Tensor:
        """Cross-entropy of :meth:`logits`; where they are many, they are not kept.

        Parameters and bits are those of :func:`llmcy.ops.linear_cross_entropy`.
        """
        few = x.size // x.shape[-1] * self.weight.shape[0] <= FEW_LOGITS
        if few or getattr(self.logits, "__func__", None) is not _LOGITS:
            return ops.cross_entropy(self.logits(x), targets, n_total, row_losses=row_losses)
        return ops.linear_cross_entropy(x, self.weight, targets, n_total, row_losses=row_losses)


_LOGITS = OutputHead.logits


class Embedding(OutputHead):
    """A table of one vector per token id; a tied model uses it in both directions (Press and Wolf,
    2017).

    Parameters
    ----------
    weight
        Shape (vocab_size, d_model).
    """

    def __call__(self, token_ids: ArrayLike) -> Tensor:
        """Vectors (B, T, D) of token ids (B, T)."""
        return ops.embedding(self.weight, token_ids)
