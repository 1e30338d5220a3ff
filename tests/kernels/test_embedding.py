"""Table look-up and its gradient against the slow scalar form, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcy import kernels
from llmcy.errors import DTypeError, RangeError, ShapeError
from tests.kernels.check import everywhere
from tests.oracle import embedding as oracle
from tests.oracle.scalar import assert_same_bits
from tests.strategies import filled, flavours, seeds

shapes = st.lists(st.integers(0, 6), max_size=2).map(tuple)


def check_table(weight, ids, d_out):
    everywhere(lambda n: kernels.embedding(weight, ids, n_threads=n), oracle.embedding(weight, ids))

    def scattered(n_threads):
        table = weight.copy()  # any start will do: contributions continue from it
        kernels.embedding_backward(d_out, ids, table, n_threads=n_threads)
        return table

    everywhere(scattered, oracle.embedding_backward(d_out, ids, weight))


@settings(max_examples=40)
@given(shape=shapes, V=st.integers(1, 5), D=st.integers(0, 9), seed=seeds, flavour=flavours)
def test_equal_to_the_scalar_form(dtype, shape, V, D, seed, flavour):
    rng = np.random.default_rng(seed)
    check_table(
        filled(rng, (V, D), dtype, flavour),
        np.array(rng.integers(0, V, shape)),
        filled(rng, (*shape, D), dtype, flavour),
    )


def test_long_arrays(dtype):
    rng = np.random.default_rng(1)
    check_table(
        filled(rng, (5, 211), dtype), rng.integers(0, 5, (3, 87)), filled(rng, (3, 87, 211), dtype)
    )


def test_contributions_arrive_in_token_order(isa, dtype):
    big = 2.0 ** (np.finfo(dtype).nmant + 2)
    d_out = np.array([[big], [1.0], [-big], [1.0]], dtype)
    table = np.zeros((2, 1), dtype)
    kernels.embedding_backward(d_out, np.array([1, 1, 1, 1]), table)
    assert table.tolist() == [[0.0], [1.0]]  # the first 1 is lost beside big, the last is not


def test_bad_ids_are_found_and_change_nothing(isa, dtype):
    weight = filled(np.random.default_rng(2), (3, 4), dtype)
    for bad in (3, -1, -(2**63), 2**63 - 1):
        ids = np.zeros(2000, np.int64)
        ids[[1500, 1999]] = bad
        with pytest.raises(RangeError, match=f"token_ids holds {bad} at flat index 1500"):
            kernels.embedding(weight, ids)
        table = weight.copy()
        with pytest.raises(RangeError) as caught:
            kernels.embedding_backward(np.ones((2000, 4), dtype), ids, table)
        assert_same_bits(table, weight)
        assert (caught.value.kind, caught.value.value) == ("TokenOutOfRange", bad)
    with pytest.raises(RangeError, match="flat index 0"):
        kernels.embedding(weight[:0], np.zeros(1, np.int64))


def test_bad_arguments_are_named(dtype):
    weight, ids = np.ones((3, 4), dtype), np.zeros((2, 2), np.int64)
    with pytest.raises(DTypeError, match="token_ids must have dtype int64"):
        kernels.embedding(weight, ids.astype(np.int32))
    with pytest.raises(DTypeError, match="token_ids must be a numpy array of int64, got list"):
        kernels.embedding(weight, [0])
    with pytest.raises(ShapeError, match=r"weight must have shape \(V, D\)"):
        kernels.embedding(weight[0], ids)
    with pytest.raises(ShapeError, match=r"weight must have shape \(V, D\)"):
        kernels.embedding(weight[None], ids)
    with pytest.raises(ShapeError, match=r"d_out must have shape \(2, 2, 4\)"):
        kernels.embedding_backward(np.ones((4, 4), dtype), ids, weight)
    table = np.ones((4, 4), dtype)
    with pytest.raises(DTypeError, match="d_weight shares memory with d_out"):
        kernels.embedding_backward(table[:3], ids[0, :1].repeat(3), table)
