"""Initial values of parameters (numerics contract, section 3)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from llmcy import kernels
from llmcy.rng import SplitMix64

__all__ = ["drawn_matrix", "unit_gain"]


def drawn_matrix(
    rows: int, columns: int, rng: SplitMix64, dtype: DTypeLike = np.float64
) -> NDArray[Any]:
    """Uniform values in [-limit, limit), ``limit = sqrt(6 / (rows + columns))``.

    One draw an element, row-major; ``limit * (2 u - 1)`` in binary64, rounded once to ``dtype``
    (Glorot and Bengio, 2010, without its gain).
    """
    limit = math.sqrt(6.0 / (rows + columns))
    values = rng.fill_unit(rows * columns)
    kernels.scale(values, 2.0, out=values)
    kernels.add(values, np.full(values.shape, -1.0), out=values)
    kernels.scale(values, limit, out=values)
    matrix = kernels.empty((rows, columns), dtype)
    matrix.reshape(-1)[:] = values
    return matrix


def unit_gain(size: int, dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Ones; a gain consumes no draw."""
    return np.ones(size, dtype)
