"""Rotary tables and rotations against the slow scalar form, bit for bit."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcy import kernels
from llmcy.errors import DTypeError, RangeError, ShapeError
from tests.kernels.check import everywhere
from tests.oracle import rope as oracle
from tests.oracle.scalar import assert_same_bits
from tests.strategies import filled, flavours, seeds

GOLDEN = Path(__file__).parents[1] / "golden" / "rope_table.json"


def of_bits(words):
    return np.array([int(word, 16) for word in words], np.uint64).view(np.float64)


@settings(max_examples=15)
@given(
    positions=st.integers(0, 9), half=st.integers(0, 5),
    theta=st.sampled_from([10000.0, 500.0, 1.0, 0.3, 12345.678]),
)  # fmt: skip
def test_table_equals_the_scalar_form(dtype, positions, half, theta):
    everywhere(
        lambda n: kernels.rope_table(positions, 2 * half, theta, dtype, n_threads=n),
        tuple(oracle.rope_table(positions, 2 * half, theta, dtype)),
    )


def test_long_table(dtype):
    everywhere(
        lambda n: kernels.rope_table(600, 6, 10000.0, dtype, n_threads=n),
        tuple(oracle.rope_table(600, 6, 10000.0, dtype)),
    )


def test_table_of_correctly_rounded_functions(isa):
    golden = json.loads(GOLDEN.read_text())
    cos, sin = kernels.rope_table(golden["positions"], golden["width"], golden["theta"])
    assert_same_bits(cos.ravel(), of_bits(golden["cos"]))
    assert_same_bits(sin.ravel(), of_bits(golden["sin"]))


@settings(max_examples=40)
@given(
    rows=st.lists(st.integers(0, 3), max_size=2), tokens=st.integers(0, 5),
    heads=st.integers(0, 3), half=st.integers(0, 9), position=st.integers(0, 3),
    inverse=st.booleans(), seed=seeds, flavour=flavours,
)  # fmt: skip
def test_rotation_equals_the_scalar_form(
    dtype, rows, tokens, heads, half, position, inverse, seed, flavour
):
    cos, sin = kernels.rope_table(position + tokens, 2 * half, 100.0, dtype)
    x = filled(np.random.default_rng(seed), (*rows, tokens, heads, 2 * half), dtype, flavour)
    expected = oracle.rope(x, cos, sin, position, inverse)

    def turned(n_threads):
        return kernels.rope(x, cos, sin, position=position, inverse=inverse, n_threads=n_threads)

    def in_place(n_threads):
        copy = x.copy()
        kernels.rope(
            copy, cos, sin, position=position, inverse=inverse, out=copy, n_threads=n_threads
        )
        return copy

    everywhere(turned, expected)
    everywhere(in_place, expected)


def test_long_arrays(dtype):
    cos, sin = kernels.rope_table(41, 18, 10000.0, dtype)
    x = filled(np.random.default_rng(1), (7, 41, 5, 18), dtype)
    everywhere(lambda n: kernels.rope(x, cos, sin, n_threads=n), oracle.rope(x, cos, sin))


def test_position_zero_is_the_identity_and_zeros_become_positive(isa, dtype):
    cos, sin = kernels.rope_table(1, 4, 10000.0, dtype)
    x = np.array([[[1.5, -2.0, -0.0, 0.0]]], dtype)
    turned = kernels.rope(x, cos, sin)
    assert_same_bits(turned, np.array([[[1.5, -2.0, 0.0, 0.0]]], dtype))


def test_offset_continues_a_row(isa, dtype):
    cos, sin = kernels.rope_table(7, 6, 10000.0, dtype)
    x = filled(np.random.default_rng(8), (2, 7, 2, 6), dtype)
    whole = kernels.rope(x, cos, sin)
    for t in range(7):
        one = kernels.rope(np.ascontiguousarray(x[:, t : t + 1]), cos, sin, position=t)
        assert_same_bits(one, np.ascontiguousarray(whole[:, t : t + 1]))


def test_bad_arguments_are_named(dtype):
    cos, sin = kernels.rope_table(4, 6, 10000.0, dtype)
    x = np.ones((2, 4, 3, 6), dtype)
    with pytest.raises(RangeError, match="position must be at most 0 for 4 tokens"):
        kernels.rope(x, cos, sin, position=1)
    with pytest.raises(RangeError, match="position must be a whole number"):
        kernels.rope(x, cos, sin, position=-1)
    with pytest.raises(ShapeError, match="w even"):
        kernels.rope(np.ones((1, 1, 3), dtype), cos, sin)
    with pytest.raises(ShapeError, match=r"cos must have shape \(4, 2\), got \(4, 3\)"):
        kernels.rope(np.ones((1, 1, 4), dtype), cos, sin)
    with pytest.raises(ShapeError, match=r"sin must have shape \(4, 3\)"):
        kernels.rope(x, cos, sin[:2])
    buffer = np.ones(x.size + 6, dtype)
    first, shifted = buffer[:-6].reshape(x.shape), buffer[6:].reshape(x.shape)
    with pytest.raises(DTypeError, match="out shares memory with x"):
        kernels.rope(first, cos, sin, out=shifted)
    for theta in (0.0, -1.0, np.nan, np.inf):
        with pytest.raises(RangeError, match="theta must be"):
            kernels.rope_table(4, 6, theta)
    with pytest.raises(RangeError, match="head_dim must be an even number"):
        kernels.rope_table(4, 5, 10000.0)
    with pytest.raises(RangeError, match="max_seq_len must be a whole number"):
        kernels.rope_table(-1, 6, 10000.0)
    with pytest.raises(DTypeError, match="dtype must be float32 or float64"):
        kernels.rope_table(4, 6, 10000.0, np.float16)
