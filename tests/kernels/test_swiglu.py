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


ARGUMENTS = ("d_out", "gate", "up", "sigmoid")
results = st.sampled_from([None, *ARGUMENTS])


@settings(max_examples=40)
@given(
    shape=shapes,
    seed=seeds,
    flavour=flavours,
    places=st.tuples(results, results).filter(lambda p: p == (None, None) or p[0] != p[1]),
    stored=st.booleans(),
)
def test_gradients_of_swiglu_may_replace_any_arguments(dtype, shape, seed, flavour, places, stored):
    rng = np.random.default_rng(seed)
    given_arrays = {name: filled(rng, shape, dtype, flavour) for name in ARGUMENTS[:3]}
    given_arrays["sigmoid"] = np.empty_like(given_arrays["gate"])
    kernels.swiglu(given_arrays["gate"], given_arrays["up"], sigmoid=given_arrays["sigmoid"])
    if not stored:
        places = tuple(None if place == "sigmoid" else place for place in places)
        del given_arrays["sigmoid"]
    expected = kernels.swiglu_backward(**given_arrays)

    def in_place(n):
        arrays = {name: array.copy() for name, array in given_arrays.items()}
        targets = [arrays.get(place) for place in places]
        d_gate, d_up = targets
        gradients = kernels.swiglu_backward(**arrays, d_gate=d_gate, d_up=d_up, n_threads=n)
        for target, gradient in zip(targets, gradients, strict=True):
            assert target is None or gradient is target
        for name, array in arrays.items():
            if name not in places:
                assert_same_bits(array, given_arrays[name])
        return gradients

    everywhere(in_place, expected, (1, 2, 3))


def test_long_gradients_in_place(dtype):
    rng = np.random.default_rng(3)
    d, gate, up = (filled(rng, (3, 3001), dtype) for _ in range(3))
    sigmoid = np.empty_like(gate)
    kernels.swiglu(gate, up, sigmoid=sigmoid)
    expected = kernels.swiglu_backward(d, gate, up)

    def in_place(n):
        a, s = d.copy(), sigmoid.copy()
        return kernels.swiglu_backward(a, gate, up, sigmoid=s, d_gate=a, d_up=s, n_threads=n)

    everywhere(in_place, expected, (1, 2, 3))
    silu = kernels.silu_backward(d, gate)
    everywhere(lambda n: kernels.silu_backward(a := d.copy(), gate, out=a, n_threads=n), silu)


def test_gradients_of_swiglu_may_not_lie_across_arrays(dtype):
    rng = np.random.default_rng(4)
    d, sigmoid, other = (filled(rng, 13, dtype) for _ in range(3))
    gate, up = (filled(rng, 12, dtype) for _ in range(2))
    before = [x.tobytes() for x in (d, sigmoid, other)]
    for d_gate, d_up, message in (
        (d[1:], None, "d_gate shares memory with d_out"),
        (None, d[1:], "d_up shares memory with d_out"),
        (sigmoid[1:], None, "d_gate shares memory with sigmoid"),
        (d[:12], sigmoid[1:], "d_up shares memory with sigmoid"),
        (d[:12], d[:12], "d_up shares memory with d_gate"),
        (other[:12], other[1:], "d_up shares memory with d_gate"),
    ):
        with pytest.raises(DTypeError, match=message) as caught:
            kernels.swiglu_backward(
                d[:12], gate, up, sigmoid=sigmoid[:12], d_gate=d_gate, d_up=d_up
            )
        assert caught.value.kind == "Overlap"
    assert [x.tobytes() for x in (d, sigmoid, other)] == before


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
