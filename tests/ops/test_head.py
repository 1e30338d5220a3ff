"""The loss of a head as one operation against ``tied_linear`` and ``cross_entropy``."""

import importlib

import numpy as np
import pytest

from llmcy import ops
from llmcy.errors import AutodiffError, RangeError
from llmcy.gradcheck import gradcheck
from llmcy.tape import CarriedGradients, Tensor, no_grad

in_blocks = importlib.import_module("llmcy.kernels.linear_cross_entropy")


@pytest.fixture(params=[1, 64, 2**21], ids="blocks of {}".format, autouse=True)
def block(request, monkeypatch):
    monkeypatch.setattr(in_blocks, "BLOCK", request.param)


def tensors(dtype, shape=(4, 3, 5), classes=7, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=shape).astype(dtype)
    table = rng.normal(size=(classes, shape[-1])).astype(dtype)
    ids = rng.integers(0, classes, shape[:-1])
    return Tensor(x, True), Tensor(table, True), ids


def composed(x, table, ids, *rest, **named):
    return ops.cross_entropy(ops.tied_linear(x, table), ids, *rest, **named)


def bits(*parts):
    return [None if t.grad is None else t.grad.tobytes() for t in parts]


@pytest.mark.parametrize("shape", [(4, 3, 5), (3, 5), (2, 2, 3, 5), (1, 1, 1)], ids=str)
@pytest.mark.parametrize("n_total", [None, 100])
@pytest.mark.parametrize("seed", [1.0, -0.7, 0.0])
def test_values_and_gradients_of_the_two_operations(dtype, shape, n_total, seed):
    results = []
    for loss_of in (composed, ops.linear_cross_entropy):
        x, table, ids = tensors(dtype, shape)
        row_losses = np.empty(ids.size)
        loss = loss_of(x, table, ids, n_total, row_losses=row_losses)
        loss.backward(seed, retain_graph=True)
        once = bits(x, table)
        loss.backward(seed)  # what the first pass was given is gone
        results.append((loss.data.tobytes(), row_losses.tobytes(), once, bits(x, table)))
    assert results[0] == results[1]


def test_the_loss_may_go_on_into_other_operations(dtype):
    results = []
    for loss_of in (composed, ops.linear_cross_entropy):
        x, table, ids = tensors(dtype)
        loss = loss_of(ops.silu(x), table, ids)
        ops.add(ops.scale(loss, 0.3), loss).backward()
        results.append(bits(x, table))
    assert results[0] == results[1]


@pytest.mark.parametrize("pieces", [(1, 1, 1, 1), (2, 2), (1, 3), (3, 1), (4,)])
def test_pieces_of_a_batch_carry_the_fold(dtype, pieces):
    x, table, ids = tensors(dtype)
    whole = ops.scale(x, 1.0)
    composed(whole, table, ids).backward()
    expected = bits(table)
    table.zero_grad()
    carry, start = CarriedGradients(), 0
    for rows in pieces:
        piece = slice(start, start + rows)
        start += rows
        part = ops.scale(Tensor(x.data[piece]), 1.0)
        ops.linear_cross_entropy(part, table, ids[piece], ids.size).backward(carry=carry)
    carry.commit()
    assert bits(table) == expected


def test_pieces_without_a_total_carry_the_fold_too(dtype):
    x, table, ids = tensors(dtype)
    results = []
    for loss_of in (composed, ops.linear_cross_entropy):
        carry = CarriedGradients()
        for rows in (slice(0, 1), slice(1, 4)):
            loss_of(Tensor(x.data[rows]), table, ids[rows]).backward(carry=carry)
        table.zero_grad()
        carry.commit()
        results.append(bits(table))
    assert results[0] == results[1]


def test_operands_that_want_no_gradient(dtype):
    for wanted in ((True, False), (False, True)):
        results = []
        for loss_of in (composed, ops.linear_cross_entropy):
            x, table, ids = tensors(dtype)
            x, table = (Tensor(t.data, w) for t, w in zip((x, table), wanted, strict=True))
            loss_of(x, table, ids).backward()
            results.append(bits(x, table))
        assert results[0] == results[1]
        assert [g is not None for g in results[1]] == list(wanted)


def test_nothing_is_recorded_without_need(dtype):
    x, table, ids = tensors(dtype)
    value = ops.linear_cross_entropy(x, table, ids)
    assert value.op == "cross_entropy"
    with no_grad():
        plain = ops.linear_cross_entropy(x, table, ids)
    constant = ops.linear_cross_entropy(Tensor(x.data), Tensor(table.data), ids)
    assert plain.op is None
    assert constant.op is None
    assert plain.data.tobytes() == constant.data.tobytes() == value.data.tobytes()


def test_gradients_agree_with_central_differences():
    x, table, ids = tensors("float64")
    assert gradcheck(lambda: ops.linear_cross_entropy(x, table, ids), [x, table]).error < 1e-7
    assert (
        gradcheck(
            lambda: ops.scale(ops.linear_cross_entropy(x, table, ids), -2.5), [x, table]
        ).error
        < 1e-7
    )


def failure(action):
    with pytest.raises(AutodiffError) as caught:
        action()
    error = caught.value
    return error.kind, error.op, error.index, str(error.value), str(error)


def huge(dtype):
    """Finite operands whose products overflow in row 2."""
    x, table, ids = tensors(dtype)
    data = x.data.copy()
    data[2, 1] = np.finfo(dtype).max / 2
    return Tensor(data, True), table, ids


@pytest.mark.parametrize("n_total", [None, 100])
def test_logits_that_are_not_finite_are_reported_as_before(dtype, n_total):
    row_losses = np.full(12, 7.0)
    found = []
    for loss_of in (composed, ops.linear_cross_entropy):
        x, table, ids = huge(dtype)
        found.append(failure(lambda: loss_of(x, table, ids, n_total, row_losses=row_losses)))  # noqa: B023
        with no_grad():
            assert failure(lambda: loss_of(x, table, ids, n_total)) == found[-1]  # noqa: B023
    assert found[0] == found[1]
    assert found[0][:2] == ("NonFiniteValue", "tied_linear")
    assert (row_losses == 7.0).all()


def test_a_mean_that_overflows_is_reported_as_before():
    found = []
    for loss_of in (composed, ops.linear_cross_entropy):
        x, table = Tensor([[1.0]], True), Tensor([[1.7e308], [-1.7e308]], True)
        found.append(failure(lambda: loss_of(x, table, [1])))  # noqa: B023
    assert found[0] == found[1]
    assert found[0][1] == "cross_entropy"


@pytest.mark.parametrize("large", ["table", "x"])
def test_gradients_that_are_not_finite_are_reported_as_before(dtype, large):
    """The gradient of one operand is a sum of values near the largest number of the other one."""
    top = float(np.finfo(dtype).max)
    of_x, of_table = (1.0 / top, top) if large == "table" else (top, 1.0 / top)
    found = []
    for loss_of in (composed, ops.linear_cross_entropy):
        x = Tensor(np.full((1, 4, 1), of_x, dtype), True)
        table = Tensor(np.array([[of_table], [-of_table]], dtype), True)
        loss = loss_of(x, table, np.ones((1, 4), np.int64))
        found.append(failure(lambda: loss.backward(12.0)))  # noqa: B023
        assert bits(x, table) == [None, None]
    assert found[0] == found[1]
    assert found[0][:2] == ("NonFiniteGradient", "tied_linear")


@pytest.mark.parametrize("seed", [1e308, -1e308, 1e40])
def test_an_adjoint_too_large_is_reported_as_before(seed):
    found = []
    for loss_of in (composed, ops.linear_cross_entropy):
        x, table, ids = tensors("float32")
        loss = loss_of(x, table, ids)
        found.append(failure(lambda: loss.backward(seed)))  # noqa: B023
        assert x.grad is None
        assert table.grad is None
    assert found[0] == found[1]
    assert found[0][:3] == ("NonFiniteGradient", "cross_entropy", 0)


def test_a_bad_target_is_an_error_before_anything_is_computed(dtype):
    x, table, ids = tensors(dtype)
    ids[2, 1] = 7
    row_losses = np.full(12, 7.0)
    with pytest.raises(RangeError, match="targets holds 7 at flat index 7"):
        ops.linear_cross_entropy(x, table, ids, row_losses=row_losses)
    assert (row_losses == 7.0).all()
