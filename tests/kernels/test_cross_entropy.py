"""The loss and its gradient against the slow scalar form, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcy import kernels
from llmcy.errors import DTypeError, RangeError, ShapeError
from tests.kernels.check import THREADS, everywhere
from tests.oracle import cross_entropy as oracle
from tests.oracle.scalar import assert_same_bits
from tests.strategies import filled, flavours, seeds

leading = st.lists(st.integers(1, 5), max_size=2)
classes = st.one_of(st.integers(1, 9), st.sampled_from([16, 33, 65]))


def problem(seed, shape, dtype, flavour="plain"):
    rng = np.random.default_rng(seed)
    return filled(rng, shape, dtype, flavour), np.array(rng.integers(0, shape[-1], shape[:-1]))


def check_loss(logits, targets, d_loss=1.0, n_total=None):
    loss = np.array(oracle.cross_entropy(logits, targets))
    p = np.empty_like(logits)

    def keeping(n):
        return np.array(kernels.cross_entropy(logits, targets, probabilities=p, n_threads=n))

    everywhere(lambda n: np.array(kernels.cross_entropy(logits, targets, n_threads=n)), loss)
    everywhere(keeping, loss)
    assert_same_bits(p, kernels.softmax(logits))
    everywhere(
        lambda n: kernels.cross_entropy_row_losses(logits, targets, n_threads=n),
        oracle.row_losses(logits, targets),
    )
    gradient = oracle.cross_entropy_backward(logits, targets, d_loss, n_total)
    arguments = (logits, targets, d_loss, n_total)
    everywhere(lambda n: kernels.cross_entropy_backward(*arguments, n_threads=n), gradient)
    everywhere(
        lambda n: kernels.cross_entropy_backward(*arguments, probabilities=p, n_threads=n),
        gradient,
    )
    buffer = p.copy()
    kernels.cross_entropy_backward(*arguments, probabilities=buffer, out=buffer)
    assert_same_bits(buffer, gradient)


@settings(max_examples=40)
@given(
    rows=leading, width=classes, seed=seeds, flavour=flavours,
    d_loss=st.sampled_from([1.0, -0.3, 0.0]), n_total=st.sampled_from([None, 1, 77]),
)  # fmt: skip
def test_equal_to_the_scalar_form(dtype, rows, width, seed, flavour, d_loss, n_total):
    check_loss(*problem(seed, (*rows, width), dtype, flavour), d_loss, n_total)


def test_long_arrays(dtype):
    check_loss(*problem(1, (41, 401), dtype))


def test_fallback_when_the_running_sum_overflows():
    logits = np.array([[1.5e308, 0.0], [1.5e308, 0.0], [0.0, 1.0]])
    targets = np.array([1, 1, 0])
    losses = kernels.cross_entropy_row_losses(logits, targets)
    assert np.isfinite(losses).all()
    assert sum(losses.tolist()) == np.inf
    check_loss(logits, targets)
    assert kernels.cross_entropy(logits, targets) == pytest.approx(1e308)


def test_fallback_when_a_row_loss_overflows():
    logits = np.array([[1.5e308, -1.5e308], [0.0, 0.0], [3.0, 1.0]])
    targets = np.array([1, 0, 1])
    assert kernels.cross_entropy_row_losses(logits, targets)[0] == np.inf
    check_loss(logits, targets)
    assert kernels.cross_entropy(logits, targets) == pytest.approx(1e308)


def test_a_mean_beyond_the_largest_number_is_infinite():
    logits = np.array([[1.7e308, -1.7e308]])
    assert kernels.cross_entropy(logits, np.array([1])) == np.inf


def test_the_float32_loss_is_a_binary64_number():
    logits, targets = problem(7, (3, 5), np.float32)
    huge = np.array([[3e38, -3e38]], np.float32)
    assert kernels.cross_entropy(huge, np.array([1])) == float(huge[0, 0]) * 2
    loss = kernels.cross_entropy(logits, targets)
    assert loss != float(np.float32(loss))


def test_a_certain_row_has_loss_plus_zero(isa, dtype):
    for logits in ([[-0.0]], [[0.0]], [[800.0, -800.0]]):
        loss = kernels.cross_entropy(np.array(logits, dtype), np.array([0]))
        assert_same_bits(np.array(loss), np.array(0.0))


def test_nan_shows_in_loss_and_gradient(isa, dtype):
    logits, targets = problem(3, (2, 4), dtype)
    logits[1, 2] = np.nan
    assert np.isnan(kernels.cross_entropy(logits, targets))
    gradient = kernels.cross_entropy_backward(logits, targets)
    assert np.isnan(gradient[1]).all()
    assert np.isfinite(gradient[0]).all()


def test_rows_of_a_batch_may_come_in_pieces(isa, dtype):
    logits, targets = problem(5, (6, 7), dtype)
    whole = kernels.cross_entropy_backward(logits, targets)
    for n_threads in THREADS:
        parts = [
            kernels.cross_entropy_backward(
                logits[rows], targets[rows], n_total=6, n_threads=n_threads
            )
            for rows in (slice(0, 1), slice(1, 6))
        ]
        assert_same_bits(np.concatenate(parts), whole)


def test_bad_arguments_are_named(dtype):
    logits, targets = problem(5, (2, 3, 4), dtype)
    with pytest.raises(ShapeError, match=r"targets must have shape \(2, 3\), got \(3, 2\)"):
        kernels.cross_entropy(logits, targets.reshape(3, 2))
    with pytest.raises(ShapeError, match="targets must have shape with at least one element"):
        kernels.cross_entropy(logits[:0], targets[:0])
    with pytest.raises(DTypeError, match="targets must have dtype int64"):
        kernels.cross_entropy(logits, targets.astype(np.int32))
    for bad in (-1, 4, 2**62):
        wrong = targets.copy()
        wrong[1, 2] = bad
        with pytest.raises(RangeError, match=f"targets holds {bad} at flat index 5") as caught:
            kernels.cross_entropy_backward(logits, wrong)
        error = caught.value
        assert (error.kind, error.index, error.value, error.vocab_size) == (
            "TokenOutOfRange", 5, bad, 4,
        )  # fmt: skip
    with pytest.raises(RangeError, match="n_total must be a whole number"):
        kernels.cross_entropy_backward(logits, targets, n_total=0)
    with pytest.raises(DTypeError, match="probabilities shares memory with logits"):
        kernels.cross_entropy(logits, targets, probabilities=logits)
