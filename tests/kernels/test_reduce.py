"""Sums of whole arrays and sums over rows, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcy import kernels
from llmcy.errors import DTypeError, ShapeError
from tests.kernels.check import everywhere
from tests.oracle import reduce as oracle
from tests.oracle.scalar import assert_same_bits
from tests.strategies import filled, flavours, seeds

shapes = st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple)


def check_sums(x, into):
    with np.errstate(over="ignore"):  # a float32 sum may overflow when it is rounded
        total = np.array(oracle.total(x), x.dtype)
        everywhere(lambda n: kernels.sum(x), total, threads=(1,))
        if x.size:
            mean = np.array(oracle.total(x) / x.size, x.dtype)
            everywhere(lambda n: kernels.mean(x), mean, threads=(1,))
    everywhere(lambda n: kernels.sum_rows(x, n_threads=n), oracle.sum_rows(x, np.zeros_like(into)))
    everywhere(
        lambda n: kernels.sum_rows(x, into=into.copy(), n_threads=n), oracle.sum_rows(x, into)
    )


@settings(max_examples=40)
@given(shape=shapes, seed=seeds, flavour=flavours)
def test_equal_to_the_scalar_form(dtype, shape, seed, flavour):
    rng = np.random.default_rng(seed)
    check_sums(filled(rng, shape, dtype, flavour), filled(rng, shape[-1:], dtype))


def test_long_arrays(dtype):
    rng = np.random.default_rng(1)
    check_sums(filled(rng, (700, 131), dtype), filled(rng, (131,), dtype))


def test_rows_may_come_in_pieces(isa, dtype):
    x = filled(np.random.default_rng(3), (9, 5), dtype)
    whole = kernels.sum_rows(x)
    pieces = kernels.sum_rows(x[4:], into=kernels.sum_rows(x[:4]))
    assert_same_bits(pieces, whole)


def test_backward_spreads_the_gradient(dtype):
    d = np.array(-0.0, dtype)
    assert_same_bits(kernels.sum_backward(d, (2, 3)), np.full((2, 3), d))
    assert_same_bits(kernels.mean_backward(d, (2, 3)), np.zeros((2, 3), dtype))
    third = np.array(np.float64(1) / 3, dtype)
    assert_same_bits(kernels.mean_backward(np.array(1, dtype), (3,)), np.full(3, third))
    assert kernels.mean_backward(d, (0, 2)).shape == (0, 2)


def test_bad_arguments_are_named(dtype):
    with pytest.raises(ShapeError, match="x must have shape with at least one element"):
        kernels.mean(np.zeros((2, 0), dtype))
    with pytest.raises(ShapeError, match=r"x must have shape \(\.\.\., D\)"):
        kernels.sum_rows(np.array(1, dtype))
    with pytest.raises(ShapeError, match=r"into must have shape \(3,\)"):
        kernels.sum_rows(np.ones((2, 3), dtype), into=np.zeros(2, dtype))
    x = np.ones((2, 3), dtype)
    with pytest.raises(DTypeError, match="into shares memory with x"):
        kernels.sum_rows(x, into=x[1])
    with pytest.raises(ShapeError, match="d_out"):
        kernels.sum_backward(np.ones(1, dtype), (3,))
