"""Compensated sums against one operation at a time."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcy import kernels
from llmcy.errors import DTypeError, ShapeError
from tests.oracle import sampling as oracle

NUMBERS = st.sampled_from([0.0, -0.0, 1.0, 1e-17, -1e-17, 1e16, 5e-324]) | st.floats(
    allow_nan=False, allow_infinity=False
)


def same(a: float, b: float) -> bool:
    """Equal bits, or both no number."""
    return np.float64(a).tobytes() == np.float64(b).tobytes() or (math.isnan(a) and math.isnan(b))


@given(st.lists(NUMBERS, max_size=40))
def test_the_sum(values: list[float]) -> None:
    x = np.array(values, np.float64)
    assert same(kernels.compensated_sum(x), oracle.kahan(values))
    if x.size % 2 == 0:
        assert same(kernels.compensated_sum(x.reshape(2, -1)), oracle.kahan(values))


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.integers(0, 9)), max_size=20))
def test_zeros_in_between(pairs: list[tuple[float, int]]) -> None:
    """After a number zeros may still bring back what it lost, and then nothing more."""
    values = [v for value, zeros in pairs for v in (value, *[0.0] * zeros)]
    assert same(kernels.compensated_sum(np.array(values)), oracle.kahan(values))


def test_what_a_plain_sum_loses() -> None:
    x = np.array([1.0, *[1e-16] * 10_000])
    assert kernels.compensated_sum(x) == 1.000000000001
    assert float(kernels.sum(x)) == 1.0
    assert kernels.compensated_sum(np.array([])) == 0.0


@given(
    st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30),
    st.floats(1e-3, 50.0),
    st.floats(-0.5, 1.5),
)
def test_how_far_it_takes(values: list[float], whole: float, share: float) -> None:
    sums = [oracle.kahan([value / whole for value in values[:r]]) for r in range(len(values))]
    expected = next((r for r, total in enumerate(sums) if total >= share), len(values))
    assert kernels.compensated_reach(np.array(values), whole, share) == expected


def test_what_is_refused() -> None:
    with pytest.raises(DTypeError):
        kernels.compensated_sum(np.ones(3, np.float32))
    with pytest.raises(DTypeError):
        kernels.compensated_sum(np.ones(6)[::2])
    with pytest.raises(ShapeError):
        kernels.compensated_reach(np.ones((2, 2)), 1.0, 0.5)
