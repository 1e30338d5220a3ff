"""Products of a few rows with a wide matrix: the bits of the fold, on every path and edge."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcy.kernels import matmul
from tests.kernels.check import everywhere
from tests.kernels.test_matmul import sequential
from tests.oracle import matmul as oracle
from tests.strategies import filled, finite_flavours, flavours, seeds


@pytest.mark.parametrize("transpose_b", [False, True])
@settings(max_examples=25)
@given(
    m=st.integers(1, 5), n=st.integers(60, 140), k=st.integers(1, 40), seed=seeds, flavour=flavours
)
def test_few_rows_equal_the_scalar_fold(dtype, transpose_b, m, n, k, seed, flavour):
    rng = np.random.default_rng(seed)
    a = filled(rng, (m, k), dtype, flavour)
    b = filled(rng, (k, n), dtype, flavour)
    expected = oracle.matmul(a, b)
    stored = np.ascontiguousarray(b.T) if transpose_b else b
    everywhere(lambda t: matmul(a, stored, transpose_b=transpose_b, n_threads=t), expected)


@pytest.mark.parametrize("transpose_b", [False, True])
@settings(max_examples=10)
@given(
    m=st.integers(1, 4),
    n=st.sampled_from([64, 65, 127, 400, 1031]),
    k=st.sampled_from([7, 8, 9, 64, 100, 333]),
    seed=seeds,
    flavour=finite_flavours,
)
def test_larger_matrices(dtype, transpose_b, m, n, k, seed, flavour):
    rng = np.random.default_rng(seed)
    a = filled(rng, (m, k), dtype, flavour)
    b = filled(rng, (k, n), dtype, flavour)
    stored = np.ascontiguousarray(b.T) if transpose_b else b
    everywhere(
        lambda t: matmul(a, stored, transpose_b=transpose_b, n_threads=t),
        sequential(a, b),
        threads=(1, 3),
    )


@pytest.mark.parametrize("transpose_b", [False, True])
def test_nothing_beyond_the_matrices_is_read_into_a_result(isa, dtype, transpose_b):
    """The matrix lies in the middle of an array of NaNs."""
    m, n, k = 3, 77, 21
    frame = np.full(3 * n * k, np.nan, dtype)
    b = frame[n * k : 2 * n * k].reshape((n, k) if transpose_b else (k, n))
    b[...] = filled(np.random.default_rng(1), b.shape, dtype)
    a = filled(np.random.default_rng(2), (m, k), dtype)
    assert np.isfinite(matmul(a, b, transpose_b=transpose_b)).all()
