"""The yardsticks count what they do, and timing repeats short calls."""

import numpy as np
import pytest

from llmcy import _kernels, available_isas
from llmcy.bench.timing import time_call


@pytest.mark.parametrize("n_threads", [1, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("isa", available_isas())
def test_multiply_adds_are_done_and_counted(isa: str, dtype: str, n_threads: int) -> None:
    with _kernels.use_isa(isa):
        kernel = _kernels.for_dtype(np.dtype(dtype)).peak
        width = kernel.tile_width()
        row = np.arange(width, dtype=dtype)
        out = np.zeros((n_threads, width), dtype)
        counted = kernel.multiply_adds(row, out, 0.5, 10, n_threads)
        # every thread: some rows of a tile, 10 times row * 0.5 in each element
        rows = counted / (2 * width * 10 * n_threads)
        assert rows == int(rows) > 1
        assert (out == rows * 10 * 0.5 * row).all()


def test_reading_sees_every_value() -> None:
    kernel = _kernels.active.f64.peak
    values = np.ones(3 * 4096, np.float64)
    out = np.zeros((3, kernel.tile_width()))
    kernel.read_all(values, out, 3)
    assert out.sum() == values.size


def test_short_calls_are_repeated_within_a_sample() -> None:
    calls = []
    timing = time_call(lambda: calls.append(None), samples=4)
    assert len(timing.samples) == 4
    assert len(calls) > 1000
    assert 0 < timing.best <= timing.median
