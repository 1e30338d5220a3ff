"""Fixtures that every kernel test uses: instruction set, number of threads, dtype."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from llmcy import _kernels

# the fixtures below set nothing that an example could leave changed; time is never a criterion
settings.register_profile(
    "llmcy",
    deadline=None,
    derandomize=False,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
settings.load_profile("llmcy")


@pytest.fixture(params=_kernels.available_isas())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test on each instruction set this machine has."""
    with _kernels.use_isa(request.param):
        yield request.param


@pytest.fixture(params=[1, 2, 3, 7])
def n_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Run the test with as many threads, which share even the smallest work."""
    with _kernels.smallest_chunks():
        yield int(request.param)


@pytest.fixture(params=["float64", "float32"])
def dtype(request: pytest.FixtureRequest) -> np.dtype:
    return np.dtype(request.param)
