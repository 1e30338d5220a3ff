"""What this machine can do at most, measured: multiply-adds a second, bytes read a second."""

from __future__ import annotations

import math

import numpy as np

from llmcy import _kernels
from llmcy.bench.timing import WALL, Clock, time_call

__all__ = ["arithmetic_peak", "read_bandwidth"]


def arithmetic_peak(dtype: str, threads: int, clock: Clock = WALL) -> float:
    """Operations a second of multiply-adds that stay in registers, in the contract's arithmetic.

    float64 counts a product and a sum, each rounded; float32 a fused multiply-add as two. The best
    sample counts: a peak is what nothing disturbed.
    """
    kernel = _kernels.for_dtype(np.dtype(dtype)).peak
    width = kernel.tile_width()
    row, out = np.full(width, 0.5, dtype), np.empty((threads, width), dtype)
    repeats = 100_000
    operations = kernel.multiply_adds(row, out, 1e-3, repeats, threads)

    def call() -> None:
        kernel.multiply_adds(row, out, 1e-3, repeats, threads)

    return float(operations / time_call(call, samples=15, clock=clock).best)


def read_bandwidth(size: int, threads: int, clock: Clock = WALL) -> float:
    """Bytes a second at which ``size`` bytes are read again and again; the best sample.

    Small sizes measure a cache, large ones main memory.
    """
    step = 4096 * threads  # whole passes of every thread's loop
    values = np.ones(max(1, math.ceil(size / 8 / step)) * step, np.float64)
    kernel = _kernels.active.f64.peak
    out = np.empty((threads, kernel.tile_width()), np.float64)

    def call() -> None:
        kernel.read_all(values, out, threads)

    return float(values.nbytes / time_call(call, samples=15, clock=clock).best)
