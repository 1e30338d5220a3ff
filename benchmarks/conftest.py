"""Settings of ``pytest benchmarks`` (pytest-benchmark, in the extra ``bench``).

    pytest benchmarks -k "rms_norm and float32"
    pytest benchmarks --benchmark-json=now.json

Cases of one group are the same work done by different libraries. They run one after the other in
this process; for figures worth keeping use ``python -m benchmarks.compare``, which takes turns.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from benchmarks.subjects import build, numbers

IDLE = 0.35  # seconds after which the waiting threads of other libraries have gone to sleep

pytest.importorskip("pytest_benchmark")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--large", action="store_true", help="also the cases that take minutes")


@pytest.fixture
def large(request: pytest.FixtureRequest) -> None:
    """Skip unless long cases were asked for."""
    if not request.config.getoption("--large"):
        pytest.skip("takes minutes; run with --large")


@pytest.fixture(autouse=True)
def _threads_of_numpy() -> Iterator[None]:
    """numpy's BLAS gets its threads back after a case that limited them."""
    try:
        from threadpoolctl import threadpool_limits
    except ImportError:  # nothing can have limited them
        yield
        return
    with threadpool_limits(None):
        yield


@pytest.fixture
def timed(benchmark: Any) -> Callable[..., Any]:
    """Time the subject of a library; returns the numbers of its first call."""

    def run(library: str, kind: str, name: str, dtype: str, threads: int) -> Any:
        if library.startswith("torch"):
            pytest.importorskip("torch")
        benchmark.group = f"{kind} {name} {dtype} {threads} threads"
        benchmark.extra_info.update(library=library, dtype=dtype, threads=threads)
        subject = build(library, kind, name, dtype, threads)
        first = [array.copy() for array in numbers(subject())]
        time.sleep(IDLE if threads > 1 else 0.0)
        benchmark(subject)
        return first

    return run
