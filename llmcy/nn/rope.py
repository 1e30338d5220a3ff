"""The rotary table of a model."""

from __future__ import annotations

import functools
from typing import Any

from numpy.typing import NDArray

from llmcy import kernels, ops
from llmcy.errors import ModelError
from llmcy.tape import Tensor

__all__ = ["RotaryTable", "rotary_table"]


class RotaryTable:
    """Cosines and sines of every position, made once per model and shared by its blocks.

    Parameters
    ----------
    max_seq_len
        Positions, C.
    head_dim
        Width of a head, w, even.
    theta
        Base of the frequencies ``theta ** (-2 j / w)``.
    dtype
        Type of the table.

    Attributes
    ----------
    cos, sin
        Read-only arrays (C, w / 2).

    Raises
    ------
    ModelError
        ``RotaryTableAllocationFailed`` when there is not enough memory.
    """

    __slots__ = ("cos", "head_dim", "max_seq_len", "sin", "theta")

    cos: NDArray[Any]
    sin: NDArray[Any]

    def __init__(self, max_seq_len: int, head_dim: int, theta: float, dtype: str) -> None:
        self.max_seq_len = max_seq_len
        self.head_dim = head_dim
        self.theta = theta
        try:
            self.cos, self.sin = kernels.rope_table(max_seq_len, head_dim, theta, dtype)
        except MemoryError as error:
            raise ModelError(
                "RotaryTableAllocationFailed",
                f"no memory for a rotary table of {max_seq_len} positions x {head_dim // 2} pairs",
                cause=error,
                max_seq_len=max_seq_len,
                pairs=head_dim // 2,
            ) from error
        self.cos.flags.writeable = False
        self.sin.flags.writeable = False

    def rotate(self, x: Tensor, n_heads: int, position: int = 0) -> Tensor:
        """Rotate every head of x (B, T, D); the first token stands at ``position``."""
        return ops.rope(x, self.cos, self.sin, n_heads=n_heads, position=position)


@functools.lru_cache(maxsize=4)
def rotary_table(max_seq_len: int, head_dim: int, theta: float, dtype: str) -> RotaryTable:
    """A table that models of one configuration may share: it is a function of its arguments."""
    return RotaryTable(max_seq_len, head_dim, theta, dtype)
