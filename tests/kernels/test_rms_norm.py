"""RMSNorm and its gradients against the slow scalar form, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcy import kernels
from llmcy.errors import DTypeError, RangeError, ShapeError
from tests.kernels.check import everywhere
from tests.oracle import rms_norm as oracle
from tests.oracle.scalar import assert_same_bits
from tests.strategies import filled, flavours, seeds

leading = st.lists(st.integers(0, 5), max_size=2)
widths = st.one_of(st.integers(1, 9), st.sampled_from([16, 33, 65]))


def backward(saved, d_x, d_gain, n_threads):
    d_x, d_gain = d_x.copy(), d_gain.copy()
    kernels.rms_norm_backward(*saved, d_x=d_x, d_gain=d_gain, n_threads=n_threads)
    return d_x, d_gain


def check_norm(x, gain, eps, d_out, d_x, d_gain):
    expected = oracle.rms_norm(x, gain, eps)
    everywhere(lambda n: kernels.rms_norm(x, gain, eps, n_threads=n), expected)
    saved = (d_out, x, gain, expected[1], expected[2])
    everywhere(
        lambda n: backward(saved, d_x, d_gain, n), oracle.rms_norm_backward(*saved, d_x, d_gain)
    )


@settings(max_examples=60)
@given(
    rows=leading, width=widths, seed=seeds, flavour=flavours,
    eps=st.sampled_from([1e-6, 0.0, 5e-324, 1.0]), received=st.booleans(),
)  # fmt: skip
def test_equal_to_the_scalar_form(dtype, rows, width, seed, flavour, eps, received):
    rng = np.random.default_rng(seed)
    shape = (*rows, width)
    x, d_out = filled(rng, shape, dtype, flavour), filled(rng, shape, dtype, flavour)
    gain = filled(rng, (width,), dtype, "zeros" if flavour == "zeros" else "plain")
    d_x, d_gain = np.zeros_like(x), np.zeros_like(gain)
    if received:  # what other contributions left there
        d_x, d_gain = filled(rng, shape, dtype), filled(rng, (width,), dtype)
    check_norm(x, gain, eps, d_out, d_x, d_gain)


def test_long_arrays(dtype):
    rng = np.random.default_rng(1)
    x, d_out, d_x = (filled(rng, (211, 173), dtype) for _ in range(3))
    gain, d_gain = (filled(rng, (173,), dtype) for _ in range(2))
    check_norm(x, gain, 1e-6, d_out, d_x, d_gain)


def test_rows_of_a_batch_may_come_in_pieces(isa, dtype):
    rng = np.random.default_rng(4)
    x, d_out = filled(rng, (9, 5), dtype), filled(rng, (9, 5), dtype)
    gain = filled(rng, (5,), dtype)
    _, inv, st_ = kernels.rms_norm(x, gain, 1e-6)
    whole = backward((d_out, x, gain, inv, st_), np.zeros_like(x), np.zeros_like(gain), 1)
    d_x, d_gain = np.zeros_like(x), np.zeros_like(gain)
    for rows in (slice(0, 2), slice(2, 9)):
        kernels.rms_norm_backward(
            d_out[rows], x[rows], gain, inv[rows], st_[rows], d_x=d_x[rows], d_gain=d_gain
        )
    assert_same_bits(d_x, whole[0])
    assert_same_bits(d_gain, whole[1])


def test_large_float32_values_keep_their_mean_square(isa):
    x = np.array([[3e25, -1e25]], np.float32)
    result = kernels.rms_norm(x, np.ones(2, np.float32), 1e-6)
    assert result.mean_square_eps.dtype == np.float64
    np.testing.assert_allclose(result.out, x / np.sqrt(np.mean(x.astype(np.float64) ** 2)), 1e-6)
    d_x, d_gain = backward((x, x, np.ones(2, np.float32), *result[1:]), 0 * x, 0 * x[0], 1)
    assert np.isfinite(d_x).all()
    assert np.isfinite(d_gain).all()


def test_bad_arguments_are_named(dtype):
    x, gain = np.ones((2, 3), dtype), np.ones(3, dtype)
    out, inv, mean_square = kernels.rms_norm(x, gain, 1e-6)
    with pytest.raises(ShapeError, match=r"gain must have shape \(3,\), got \(2,\)"):
        kernels.rms_norm(x, gain[:2], 1e-6)
    with pytest.raises(ShapeError, match="D of at least 1"):
        kernels.rms_norm(x[:, :0].copy(), gain[:0], 1e-6)
    for eps in (-1.0, np.nan, np.inf, "1", True):
        with pytest.raises(RangeError, match="eps must be") as caught:
            kernels.rms_norm(x, gain, eps)
        assert caught.value.name == "eps"
    saved = (out, x, gain, inv, mean_square)
    with pytest.raises(DTypeError, match="d_x shares memory with d_out"):
        kernels.rms_norm_backward(*saved, d_x=out, d_gain=gain.copy())
    with pytest.raises(ShapeError, match="d_gain must have shape"):
        kernels.rms_norm_backward(*saved, d_x=x.copy(), d_gain=gain[:2].copy())
    read_only = x.copy()
    read_only.flags.writeable = False
    with pytest.raises(DTypeError, match="d_x is read-only"):
        kernels.rms_norm_backward(*saved, d_x=read_only, d_gain=gain.copy())
    with pytest.raises(DTypeError, match="mean_square_eps must have dtype float64"):
        kernels.rms_norm_backward(
            *saved[:4], mean_square.astype(np.float16), d_x=x.copy(), d_gain=gain.copy()
        )
