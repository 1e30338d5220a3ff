"""The loss of a head in blocks against product, loss and gradients one after the other."""

import importlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcy import kernels
from llmcy.errors import DTypeError, NonFiniteError, RangeError, ShapeError
from tests.kernels.check import everywhere
from tests.oracle import cross_entropy as oracle
from tests.oracle import matmul as matmul_oracle
from tests.oracle.scalar import assert_same_bits
from tests.strategies import filled, seeds

in_blocks = importlib.import_module("llmcy.kernels.linear_cross_entropy")
leading = st.lists(st.integers(1, 4), max_size=2)


@pytest.fixture(params=[1, 13, 64, 2**21], ids="blocks of {}".format)
def block(request, monkeypatch):
    """Logits of a block: from one position (or row) at a time to all at once."""
    monkeypatch.setattr(in_blocks, "BLOCK", request.param)
    return request.param


def problem(seed, lead, length, width, classes, dtype, flavour="plain"):
    rng = np.random.default_rng(seed)
    x = filled(rng, (*lead, length, width), dtype, flavour)
    table = filled(rng, (classes, width), dtype)
    return x, table, np.array(rng.integers(0, classes, (*lead, length)))


def composed(x, table, targets, d_loss=1.0, n_total=None, start=None):
    """Loss, row losses, d_x, d_table and d_logits with all logits in one array."""
    logits = kernels.matmul(x, table, transpose_b=True)
    row_losses = np.empty(targets.size)
    loss = kernels.cross_entropy(logits, targets, row_losses=row_losses)
    d_logits = kernels.cross_entropy_backward(logits, targets, d_loss, n_total)
    d_table = np.zeros_like(table) if start is None else start.copy()
    kernels.matmul_d_weight(d_logits, x, out=d_table, accumulate=start is not None)
    return np.array(loss), row_losses, kernels.matmul(d_logits, table), d_table, d_logits


def of_blocks(x, table, targets, d_loss=1.0, n_total=None, start=None, n_threads=None):
    d_x, row_losses, out = np.empty_like(x), np.empty(targets.size), np.empty(())
    d_table = np.empty_like(table) if start is None else start.copy()
    loss = kernels.linear_cross_entropy(
        x, table, targets, d_loss, n_total, d_x=d_x, d_table=d_table,
        accumulate=start is not None, row_losses=row_losses, out=out, n_threads=n_threads,
    )  # fmt: skip
    assert loss == out
    return out, row_losses, d_x, d_table


@settings(max_examples=10)
@given(
    lead=leading, length=st.integers(1, 7), width=st.integers(1, 9), seed=seeds,
    classes=st.one_of(st.integers(1, 9), st.sampled_from([33, 65])),
    flavour=st.sampled_from(["plain", "zeros", "tiny"]),
    d_loss=st.sampled_from([1.0, -0.3, 0.0]), n_total=st.sampled_from([None, 77]),
    carried=st.booleans(),
)  # fmt: skip
def test_same_bits_as_the_kernels_one_after_the_other(
    dtype, block, lead, length, width, classes, seed, flavour, d_loss, n_total, carried
):
    arguments = problem(seed, lead, length, width, classes, dtype, flavour)
    table = arguments[1]
    start = filled(np.random.default_rng(seed), table.shape, dtype) if carried else None
    whole = composed(*arguments, d_loss, n_total, start)
    everywhere(
        lambda n: of_blocks(*arguments, d_loss, n_total, start, n_threads=n), whole[:4], (1, 3)
    )
    d_logits = np.empty_like(whole[4])
    kernels.linear_cross_entropy(*arguments, d_loss, n_total, d_logits=d_logits)
    assert_same_bits(d_logits, whole[4])


def test_same_bits_as_the_scalar_form(isa, dtype, block):
    x, table, targets = problem(3, (2, 2), 3, 4, 7, dtype)
    logits = matmul_oracle.matmul(x, np.ascontiguousarray(table.T))
    loss, row_losses, d_x, d_table = of_blocks(x, table, targets)
    d_logits = oracle.cross_entropy_backward(logits, targets)
    assert_same_bits(loss, np.array(oracle.cross_entropy(logits, targets)))
    assert_same_bits(row_losses, oracle.row_losses(logits, targets))
    assert_same_bits(d_x, matmul_oracle.matmul(d_logits, table))
    assert_same_bits(
        d_table, matmul_oracle.matmul_d_weight(d_logits.reshape(4, 3, 7), x.reshape(4, 3, 4))
    )


def test_more_rows_than_one_thread_takes_at_a_time(dtype, block):
    arguments = problem(1, (3,), 19, 17, 401, dtype)
    everywhere(lambda n: of_blocks(*arguments, n_threads=n), composed(*arguments)[:4])


def test_each_result_can_be_left_out(dtype, block):
    arguments = problem(5, (3,), 4, 6, 9, dtype)
    loss, _, d_x, d_table, _ = composed(*arguments)
    assert kernels.linear_cross_entropy(*arguments) == loss
    only = np.empty_like(d_x)
    assert kernels.linear_cross_entropy(*arguments, d_x=only) == loss
    assert_same_bits(only, d_x)
    only = np.empty_like(d_table)
    assert kernels.linear_cross_entropy(*arguments, d_table=only) == loss
    assert_same_bits(only, d_table)


def test_pieces_of_a_batch_continue_the_fold_over_rows(isa, dtype, block):
    x, table, targets = problem(7, (5,), 3, 4, 9, dtype)
    d_table = np.empty_like(table)
    for rows in (slice(0, 2), slice(2, 5)):
        kernels.linear_cross_entropy(
            x[rows], table, targets[rows], n_total=15, d_table=d_table, accumulate=rows.start > 0
        )
    assert_same_bits(d_table, composed(x, table, targets)[3])


@pytest.mark.parametrize(
    ("values", "targets"), [((1.5e308, 0.0), (1, 1, 0)), ((1.5e308, -1.5e308), (1, 0, 0))]
)
def test_the_mean_falls_back_when_a_sum_overflows(block, values, targets):
    x, table = np.ones((3, 1, 1)), np.array(values)[:, None]
    targets = np.array(targets)[:, None]
    whole = composed(x, table, targets)
    assert np.isfinite(whole[0])
    for actual, expected in zip(of_blocks(x, table, targets), whole[:4], strict=True):
        assert_same_bits(actual, expected)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("n_threads", [1, 3])
def test_the_first_logit_that_is_not_finite_is_named(isa, dtype, block, value, n_threads):
    x, table, targets = problem(2, (3,), 4, 2, 5, dtype)
    x[...] = np.abs(x)
    table[...] = np.abs(table)
    x[1, 2:], x[2, 0] = value, np.nan
    row_losses, out, d_x = np.full(12, 7.0), np.full((), 7.0), np.empty_like(x)
    with pytest.raises(NonFiniteError, match=f"logits hold {value} at flat index 30") as caught:
        kernels.linear_cross_entropy(
            x, table, targets, d_x=d_x, row_losses=row_losses, out=out, n_threads=n_threads
        )
    assert (caught.value.index, str(caught.value.value)) == (30, str(value))
    assert (row_losses == 7.0).all()
    assert out == 7.0


def test_bad_arguments_are_named(dtype):
    x, table, targets = problem(5, (2,), 3, 4, 6, dtype)
    run = kernels.linear_cross_entropy
    with pytest.raises(ShapeError, match=r"x must have shape \(\.\.\., T, D\), got \(4,\)"):
        run(x[0, 0], table, targets[0, 0])
    with pytest.raises(ShapeError, match=r"table must have shape \(6, 4\), got \(6, 3\)"):
        run(x, np.ascontiguousarray(table[:, :3]), targets)
    with pytest.raises(ShapeError, match=r"targets must have shape \(2, 3\), got \(3, 2\)"):
        run(x, table, targets.reshape(3, 2))
    with pytest.raises(ShapeError, match="targets must have shape with at least one element"):
        run(x[:0], table, targets[:0])
    with pytest.raises(DTypeError, match="targets must have dtype int64"):
        run(x, table, targets.astype(np.int32))
    with pytest.raises(ShapeError, match=r"d_table must have shape \(6, 4\) when accumulate"):
        run(x, table, targets, accumulate=True)
    with pytest.raises(DTypeError, match="d_x shares memory with x"):
        run(x, table, targets, d_x=x)
    with pytest.raises(ShapeError, match=r"d_logits must have shape \(2, 3, 6\)"):
        run(x, table, targets, d_logits=np.empty((2, 3, 4), dtype))
    with pytest.raises(RangeError, match="n_total must be a whole number"):
        run(x, table, targets, n_total=0)
    with pytest.raises(RangeError, match="d_loss must be finite"):
        run(x, table, targets, np.inf, d_x=np.empty_like(x))
    wrong = targets.copy()
    wrong[1, 2] = 6
    with pytest.raises(RangeError, match="targets holds 6 at flat index 5") as caught:
        run(x, table, wrong)
    assert (caught.value.kind, caught.value.vocab_size) == ("TokenOutOfRange", 6)
