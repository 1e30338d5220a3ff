"""Softmax, causal softmax and log-softmax against the slow scalar form, bit for bit."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcy import kernels
from llmcy.errors import DTypeError, ShapeError
from tests.kernels.check import everywhere
from tests.oracle import softmax as oracle
from tests.oracle.scalar import assert_same_bits
from tests.strategies import filled, flavours, seeds

leading = st.lists(st.integers(0, 5), max_size=2)
widths = st.one_of(st.integers(0, 9), st.sampled_from([16, 17, 64, 65, 130]))


def check_rows(x, d):
    p = oracle.by_rows(oracle.softmax_row, x)
    log_p = oracle.by_rows(oracle.log_softmax_row, x)
    everywhere(lambda n: kernels.softmax(x, n_threads=n), p)
    everywhere(lambda n: kernels.log_softmax(x, n_threads=n), log_p)
    everywhere(
        lambda n: kernels.softmax_backward(p, d, n_threads=n),
        oracle.by_rows(oracle.softmax_backward_row, p, d),
    )
    everywhere(
        lambda n: kernels.log_softmax_backward(log_p, d, n_threads=n),
        oracle.by_rows(oracle.log_softmax_backward_row, log_p, d),
    )


def check_squares(x, d):
    p = oracle.by_rows(oracle.softmax_row, x, causal=True)
    everywhere(lambda n: kernels.causal_softmax(x, n_threads=n), p)
    everywhere(
        lambda n: kernels.causal_softmax_backward(p, d, n_threads=n),
        oracle.by_rows(oracle.softmax_backward_row, p, d, causal=True),
    )


@settings(max_examples=40)
@given(rows=leading, width=widths, seed=seeds, flavour=flavours, spread=st.sampled_from([1, 30]))
def test_equal_to_the_scalar_form(dtype, rows, width, seed, flavour, spread):
    rng = np.random.default_rng(seed)
    x = filled(rng, (*rows, width), dtype, flavour)
    if flavour == "plain":
        x *= dtype.type(spread)
    check_rows(x, filled(rng, x.shape, dtype))


@settings(max_examples=30)
@given(rows=leading, width=st.integers(0, 19), seed=seeds, flavour=flavours)
def test_causal_equal_to_the_scalar_form(dtype, rows, width, seed, flavour):
    rng = np.random.default_rng(seed)
    x = filled(rng, (*rows, width, width), dtype, flavour)
    check_squares(x, filled(rng, x.shape, dtype))


def test_long_arrays(dtype):
    rng = np.random.default_rng(1)
    x = filled(rng, (37, 611), dtype)
    check_rows(x, filled(rng, x.shape, dtype))
    x = filled(rng, (3, 61, 61), dtype)
    check_squares(x, filled(rng, x.shape, dtype))


def test_of_equal_maxima_only_the_first_leaves_the_tail(isa, dtype):
    # 1 + (exp(-1) + 1): the second maximum is an entry of the tail like any other
    x = np.array([[-1.0, 0.0, 0.0]], dtype)
    e = oracle.softmax_row(x[0].tolist(), dtype)
    assert_same_bits(kernels.softmax(x)[0], np.array(e, dtype))
    x = np.zeros((1, 4), dtype)
    assert kernels.softmax(x).tolist() == [[0.25] * 4]
    mixed = np.array([[-0.0, 0.0, -0.0]], dtype)
    assert_same_bits(kernels.softmax(mixed), kernels.softmax(np.zeros((1, 3), dtype)))


@pytest.mark.parametrize(
    "row",
    [[math.nan, 1.0], [1.0, math.nan], [math.inf, 1.0], [math.inf, math.inf], [-math.inf] * 2],
    ids=str,
)
def test_rows_without_a_finite_maximum_are_nan(isa, dtype, row):
    x = np.array([row], dtype)
    for function in (kernels.softmax, kernels.log_softmax):
        assert np.isnan(function(x)).all()


def test_minus_infinity_has_probability_zero(isa, dtype):
    x = np.array([[0.0, -np.inf, 0.0]], dtype)
    assert kernels.softmax(x).tolist() == [[0.5, 0.0, 0.5]]


def test_causal_softmax_never_reads_above_the_diagonal(isa, dtype):
    x = filled(np.random.default_rng(2), (2, 5, 5), dtype)
    clean = kernels.causal_softmax(x)
    x[:, np.triu(np.ones((5, 5), bool), 1)] = np.nan
    assert_same_bits(kernels.causal_softmax(x), clean)
    assert_same_bits(np.triu(clean, 1), np.zeros_like(clean))


def test_bad_arguments_are_named(dtype):
    x = np.ones((2, 3), dtype)
    with pytest.raises(ShapeError, match=r"x must have shape \(\.\.\., n\)"):
        kernels.softmax(np.array(1, dtype))
    with pytest.raises(ShapeError, match=r"x must have shape \(\.\.\., T, T\), got \(2, 3\)"):
        kernels.causal_softmax(x)
    with pytest.raises(ShapeError, match="d_p must have shape"):
        kernels.softmax_backward(x, x[:1])
    with pytest.raises(DTypeError, match="out shares memory with x"):
        kernels.softmax(x, out=x)
    with pytest.raises(DTypeError, match="x must have dtype float32 or float64"):
        kernels.log_softmax(np.ones((2, 3), np.int64))
