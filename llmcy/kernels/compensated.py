"""Compensated sums: one chain in memory order that carries along what rounding loses."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmcy import _check as check
from llmcy._kernels import compensated

__all__ = ["compensated_reach", "compensated_sum"]

Array = NDArray[Any]


def compensated_sum(x: Array) -> float:
    """Kahan's sum of all elements in row-major order.

    ``y = x_i - c; t = s + y; c = (t - s) - y; s = t``, with s and c from 0 (Kahan, "Further remarks
    on reducing truncation errors", 1965); every operation is rounded to binary64.

    Parameters
    ----------
    x
        float64, any shape, C-contiguous.

    Returns
    -------
    float
        0.0 for an array without elements.
    """
    check.float_array("x", x)
    check.like("x", x, np.dtype(np.float64), x.shape)
    return compensated.total(x.reshape(-1))


def compensated_reach(x: Array, whole: float, share: float) -> int:
    """How many leading elements it takes until their shares of ``whole`` sum to ``share``.

    The smallest r with a compensated sum of ``x_0 / whole``, ..., ``x_(r-1) / whole`` of at least
    ``share``; all elements when even their sum stays below.

    Parameters
    ----------
    x
        float64, one row.
    whole, share
        What every element is divided by; what the quotients have to reach.

    Returns
    -------
    int
        From 0, for a share that is not above 0, to the number of elements.
    """
    check.float_array("x", x)
    check.like("x", x, np.dtype(np.float64), (x.size,))
    return compensated.reach(x, whole, share)
