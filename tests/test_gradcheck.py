"""The gradient checker finds wrong gradients and leaves everything as it was."""

import numpy as np
import pytest

from llmcy import kernels, ops
from llmcy.errors import AutodiffError, DTypeError
from llmcy.gradcheck import gradcheck
from llmcy.tape import Tensor, record


def test_a_right_gradient_passes_and_nothing_changes():
    x = Tensor([0.3, -1.2, 2.0], requires_grad=True)
    x.grad = np.array([1.0, 2.0, 3.0])
    values, gradient = x.data.tobytes(), x.grad
    worst = gradcheck(lambda: ops.silu(x), [x])
    assert worst.error < 1e-8
    assert x.data.tobytes() == values
    assert x.grad is gradient


def test_a_wrong_gradient_is_found_where_it_is():
    x = Tensor([1.0, 2.0], requires_grad=True)
    y = Tensor([1.0, 2.0, 3.0], requires_grad=True)

    def rule(node, d_out, to):
        d_out[1] *= 1.001
        to.give(node.inputs[0], d_out)

    def function():
        wrong = record("wrong", kernels.scale(y.data, 1.0), (y,), rule)
        return ops.add(ops.sum(ops.multiply(wrong, wrong)), ops.sum(x))

    with pytest.raises(AutodiffError) as caught:
        gradcheck(function, [x, y])
    error = caught.value
    assert (error.kind, error.tensor, error.index) == ("GradientMismatch", 1, 1)
    assert error.analytic == pytest.approx(1.001 * error.numeric, rel=1e-6)
    assert x.data.tolist() == [1.0, 2.0]
    assert y.data.tolist() == [1.0, 2.0, 3.0]
    assert y.grad is None


def test_a_missing_gradient_counts_as_zero():
    x = Tensor([1.0], requires_grad=True)
    y = Tensor([1.0], requires_grad=True)
    with pytest.raises(AutodiffError) as caught:
        gradcheck(lambda: ops.multiply(x, y.detach()), [x, y])
    assert (caught.value.tensor, caught.value.analytic) == (1, 0.0)


def test_outputs_cannot_stand_in_for_each_other():
    """Swapping the gradients of two outputs must not cancel in the sum."""
    x = Tensor([1.0, 2.0], requires_grad=True)

    def rule(node, d_out, to):
        to.give(node.inputs[0], d_out[::-1].copy())

    with pytest.raises(AutodiffError):
        gradcheck(lambda: record("swapped", x.data.copy(), (x,), rule), [x])


def test_values_are_put_back_when_the_function_fails():
    x = Tensor([1.0, 2.0], requires_grad=True)
    calls = []

    def function():
        calls.append(1)
        if len(calls) == 3:
            raise KeyError
        return ops.scale(x, 2.0)

    with pytest.raises(KeyError):
        gradcheck(function, [x])
    assert x.data.tolist() == [1.0, 2.0]
    assert x.grad is None


def test_float32_is_refused():
    x = Tensor(np.ones(1, np.float32), requires_grad=True)
    with pytest.raises(DTypeError):
        gradcheck(lambda: ops.sum(x), [x])
