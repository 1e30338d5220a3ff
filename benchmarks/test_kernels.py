"""Every kernel forward and backward: ours, plain numpy, PyTorch; sizes of the 3.3M model."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from benchmarks.subjects import kernel, numbers
from llmcy.bench.cases import MEDIUM
from llmcy.bench.kernel_cases import KERNEL_CASES

TOLERANCE = {"float64": 1e-11, "float32": 2e-4}


@cache
def ours(name: str, dtype: str) -> list[np.ndarray]:
    """What our kernel gives; the test suite proves its bits, here the peers are held against it."""
    return numbers(kernel("llmcy", name, MEDIUM, dtype)())


@pytest.mark.parametrize("library", ["llmcy", "numpy", "torch"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", KERNEL_CASES)
def test_kernel(timed, name: str, dtype: str, threads: int, library: str) -> None:
    found = timed(library, "kernel", name, dtype, threads)
    wanted = ours(name, dtype)
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        scale = max(1e-3, float(np.abs(other).max()))
        np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE[dtype] * scale)
