"""Elementwise kernels against the slow scalar form, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcy import kernels
from tests.kernels.check import everywhere
from tests.oracle import elementwise as oracle
from tests.oracle.scalar import assert_same_bits
from tests.strategies import filled, flavours, seeds

shapes = st.lists(st.integers(0, 9), max_size=3).map(tuple)
scalars = st.floats(allow_nan=False, width=64)
LONG = (3, 16411)  # enough elements for several chunks, and a remainder


def three(seed, shape, dtype, flavour):
    rng = np.random.default_rng(seed)
    return [filled(rng, shape, dtype, flavour) for _ in range(3)]


def check_all(a, b, d, s):
    everywhere(lambda n: kernels.add(a, b, n_threads=n), oracle.add(a, b))
    everywhere(lambda n: kernels.accumulate(a.copy(), b, n_threads=n), oracle.add(a, b))
    everywhere(lambda n: kernels.multiply(a, b, n_threads=n), oracle.multiply(a, b))
    everywhere(
        lambda n: kernels.multiply_backward(d, a, b, n_threads=n),
        oracle.multiply_backward(d, a, b),
    )
    everywhere(lambda n: kernels.scale(a, s, n_threads=n), oracle.scale(a, s))
    everywhere(lambda n: kernels.scale_backward(d, s, n_threads=n), oracle.scale_backward(d, s))


@settings(max_examples=30)
@given(shape=shapes, seed=seeds, flavour=flavours, s=scalars)
def test_equal_to_the_scalar_form(dtype, shape, seed, flavour, s):
    check_all(*three(seed, shape, dtype, flavour), s)


def test_long_arrays(dtype):
    check_all(*three(1, LONG, dtype, "plain"), 0.3)


def test_results_may_replace_an_argument(dtype):
    a, b, _ = three(2, (5, 7), dtype, "plain")
    for function, second in [(kernels.add, b), (kernels.multiply, b), (kernels.scale, 0.7)]:
        expected = function(a, second)
        copy = a.copy()
        assert function(copy, second, out=copy) is copy
        assert_same_bits(copy, expected)
    copy = a.copy()
    assert_same_bits(kernels.accumulate(copy, copy), kernels.add(a, a))


@pytest.mark.parametrize("size", [0, 1, 7, 1023, 1024, 1025, 5000])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_first_non_finite(isa, dtype, size, bad):
    x = filled(np.random.default_rng(size), size, dtype, "huge")
    assert kernels.first_non_finite(x) == -1
    for index in sorted({0, size // 2, size - 1} & set(range(size)), reverse=True):
        x[index] = bad  # from the end on: each one found before the later ones
        assert kernels.first_non_finite(x) == index


def test_contributions_hold_no_negative_zero(isa, dtype):
    minus = -np.zeros(3, dtype)
    one = np.ones(3, dtype)
    for contribution in (
        *kernels.multiply_backward(minus, one, one),
        kernels.scale_backward(minus, 1),
    ):
        assert not np.signbit(contribution).any()
    assert np.signbit(kernels.multiply(minus, one)).all()  # values keep theirs
