"""SplitMix64: the one source of random numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from llmcy._kernels import rng as _rng
from llmcy.errors import RangeError

__all__ = ["SplitMix64"]


def _checked_u64(name: str, value: int, lowest: int = 0) -> int:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, np.integer))
        or not lowest <= value < 2**64
    ):
        raise RangeError(
            "OutOfRange",
            f"{name} must be a whole number from {lowest} to 2**64 - 1, got {value!r}",
            name=name,
            value=value,
            expected=f"{lowest} <= {name} < 2**64",
        )
    return int(value)


class SplitMix64:
    """A stream of 64-bit draws; its whole state is one integer.

    Parameters
    ----------
    seed
        The raw state before the first draw, 0 <= seed < 2**64.

    Notes
    -----
    Advance and mix as in Steele, Lea and Flood, "Fast splittable pseudorandom number generators"
    (OOPSLA 2014); the constants are in docs/numerics.md, section 2.

    Compatibility guarantee: the draws, and the way every method uses them, never change.
    """

    __slots__ = ("state",)

    state: int

    def __init__(self, seed: int) -> None:
        self.state = _checked_u64("seed", seed)

    def next_u64(self) -> int:
        """The next draw, 0 <= draw < 2**64."""
        draw, self.state = _rng.next_u64(self.state)
        return draw

    def unit(self) -> float:
        """A float64 in [0, 1): the top 53 bits of one draw, times 2**-53 (exact)."""
        return (self.next_u64() >> 11) * 2.0**-53

    def below(self, n: int) -> int:
        """A whole number in [0, n), n >= 1; draws that would favour low residues are rejected."""
        value, self.state = _rng.below(self.state, _checked_u64("n", n, 1))
        return value

    def fill_unit(self, n: int) -> NDArray[np.float64]:
        """``n`` unit draws in order, as a float64 array."""
        out = np.empty(n, np.float64)
        self.state = _rng.fill_unit(self.state, out)
        return out

    def shuffle(self, rows: NDArray[np.int64]) -> None:
        """Shuffle the rows of a C-contiguous int64 array in place (descending Fisher-Yates)."""
        if rows.dtype != np.int64 or not rows.flags.c_contiguous or not rows.flags.writeable:
            raise RangeError(
                "OutOfRange",
                "rows must be a writeable C-contiguous int64 array",
                name="rows",
                value=rows.dtype,
                expected="int64, C-contiguous",
            )
        self.state = _rng.shuffle(self.state, rows)

    def __repr__(self) -> str:
        return f"SplitMix64(0x{self.state:016x})"
