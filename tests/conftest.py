"""Fixtures that every kernel test uses: instruction set, number of threads, dtype."""

from collections.abc import Iterator

import numpy as np
import pytest
from llmcy import _kernels


@pytest.fixture(params=_kernels.available_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test on each instruction set this machine has."""
    with _kernels.use_isa(request.param):
        yield request.param


@pytest.fixture(params=[1, 2, 3, 7])
def n_threads(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(params=["float64", "float32"])
def dtype(request: pytest.FixtureRequest) -> np.dtype:
    return np.dtype(request.param)
