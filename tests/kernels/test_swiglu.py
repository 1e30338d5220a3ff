"""SiLU and SwiGLU with their gradients against the slow scalar form, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcy import kernels
from llmcy.errors import DTypeError, ShapeError
from tests.kernels.check import everywhere
from tests.oracle import swiglu as oracle
from tests.oracle.scalar import assert_same_bits
from tests.strategies import filled, flavours, seeds

shapes = st.one_of(
    st.lists(st.integers(0, 9), max_size=3).map(tuple), st.sampled_from([(63,), (255,), (257,)])
)


def check_gates(gate, up, d):
    everywhere(lambda n: kernels.silu(gate, n_threads=n), oracle.silu(gate))
    everywhere(lambda n: kernels.silu_backward(d, gate, n_threads=n), oracle.silu_backward(d, gate))
    product = oracle.swiglu(gate, up)
    gradients = oracle.swiglu_backward(d, gate, up)
    everywhere(lambda n: kernels.swiglu(gate, up, n_threads=n), product)
    everywhere(lambda n: kernels.swiglu_backward(d, gate, up, n_threads=n), gradients)
    kept = np.empty_like(gate)
    everywhere(lambda n: kernels.swiglu(gate, up, sigmoid=kept, n_threads=n), product)
    everywhere(lambda n: kernels.swiglu_backward(d, gate, up, sigmoid=kept, n_threads=n), gradients)


@settings(max_examples=40)
@given(shape=shapes, seed=seeds, flavour=flavours, spread=st.sampled_from([1, 100]))
def test_equal_to_the_scalar_form(dtype, shape, seed, flavour, spread):
    rng = np.random.default_rng(seed)
    gate, up, d = (filled(rng, shape, dtype, flavour) for _ in range(3))
    if flavour == "plain":
        gate = np.asarray(gate * dtype.type(spread))
    check_gates(gate, up, d)


def test_long_arrays(dtype):
    rng = np.random.default_rng(1)
    check_gates(*(filled(rng, (3, 3001), dtype) for _ in range(3)))


def test_extreme_and_special_values(isa, dtype):
    x = np.array([0.0, -0.0, 1e4, -1e4, np.nan, np.inf, -np.inf], dtype)
    assert_same_bits(kernels.silu(x), oracle.silu(x))
    assert kernels.silu(x)[:4].tolist() == [0.0, -0.0, 1e4, 0.0]
    d = np.ones_like(x)
    assert_same_bits(kernels.silu_backward(d, x), oracle.silu_backward(d, x))


def test_results_may_replace_an_argument(dtype):
    rng = np.random.default_rng(2)
    x, d = (filled(rng, (3, 300), dtype) for _ in range(2))
    expected = kernels.silu(x)
    gradient = kernels.silu_backward(d, x)
    assert_same_bits(kernels.silu_backward(d, x, out=d), gradient)
    assert_same_bits(kernels.silu(x, out=x), expected)


def test_bad_arguments_are_named(dtype):
    x = np.ones((2, 3), dtype)
    with pytest.raises(ShapeError, match="up must have shape"):
        kernels.swiglu(x, x[:1])
    with pytest.raises(DTypeError, match="out shares memory with gate"):
        kernels.swiglu(x, x.copy(), out=x)
    with pytest.raises(DTypeError, match="sigmoid shares memory with up"):
        kernels.swiglu(x.copy(), x, sigmoid=x)
    with pytest.raises(DTypeError, match="d_up shares memory with d_gate"):
        kernels.swiglu_backward(x, x, x, d_gate=(g := x.copy()), d_up=g)
    with pytest.raises(DTypeError, match="x must be a numpy array"):
        kernels.silu([1.0])
    with pytest.raises(ShapeError, match="d_out must have shape"):
        kernels.silu_backward(x[0], x)
