"""Compare gradients with central differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from llmcy.errors import AutodiffError, DTypeError
from llmcy.rng import SplitMix64
from llmcy.tape import Tensor, no_grad

__all__ = ["GradientComparison", "gradcheck"]


@dataclass(frozen=True)
class GradientComparison:
    """The element where the two gradients differ most.

    Attributes
    ----------
    tensor, index
        Which of the tensors, and the flat index in it.
    analytic, numeric
        The element's gradient by the tape and by central differences.
    error
        ``|analytic - numeric| / max(1, |analytic|, |numeric|)``.
    """

    tensor: int
    index: int
    analytic: float
    numeric: float
    error: float


def gradcheck(
    function: Callable[[], Tensor],
    tensors: Sequence[Tensor],
    *,
    step: float = 1e-6,
    tolerance: float = 1e-6,
) -> GradientComparison:
    """Check the gradients of a function of some leaf tensors.

    Parameters
    ----------
    function
        Computes a tensor of any shape from ``tensors``; called without arguments, twice for every
        element.
    tensors
        float64 leaves that require gradients.  Their values are changed and put back; their
        gradients are left as they were.
    step
        Distance of the two evaluations from the value, in relation to ``max(1, |value|)``.
    tolerance
        Largest error that passes.

    Returns
    -------
    GradientComparison
        The worst element.

    Raises
    ------
    AutodiffError
        ``GradientMismatch`` when the worst error is above ``tolerance``.
    DTypeError
        For tensors of another dtype: binary32 has too few digits for differences.

    Notes
    -----
    ``(f(x + h) - f(x - h)) / 2h`` with f the sum of all outputs, each weighted by a fixed number
    between 0.5 and 1.5, so that no two outputs can stand in for each other.
    """
    for tensor in tensors:
        if tensor.dtype != np.float64:
            raise DTypeError(
                "UnsupportedDType",
                f"gradcheck needs float64 tensors, got {tensor.dtype}",
                name="tensors",
                expected="float64",
                actual=tensor.dtype.name,
            )
    kept = [tensor.grad for tensor in tensors]
    try:
        for tensor in tensors:
            tensor.grad = None
        out = function()
        weights = SplitMix64(1).fill_unit(out.size).reshape(out.shape) + 0.5
        out.backward(seed=weights)
        analytic = [
            np.zeros(tensor.shape) if tensor.grad is None else tensor.grad for tensor in tensors
        ]
    finally:
        for tensor, grad in zip(tensors, kept, strict=True):
            tensor.grad = grad

    def weighted_sum() -> float:
        with no_grad():
            return float(np.sum(function().data * weights))

    worst = GradientComparison(0, 0, 0.0, 0.0, 0.0)
    for which, tensor in enumerate(tensors):
        for index in range(tensor.size):
            numeric = _central_difference(tensor, index, step, weighted_sum)
            exact = float(analytic[which].reshape(-1)[index])
            error = abs(exact - numeric) / max(1.0, abs(exact), abs(numeric))
            if error >= worst.error:
                worst = GradientComparison(which, index, exact, numeric, error)
    if not worst.error <= tolerance:
        raise AutodiffError(
            "GradientMismatch",
            f"gradient of tensor {worst.tensor} at flat index {worst.index} is {worst.analytic!r}, "
            f"central differences give {worst.numeric!r}",
            **asdict(worst),
        )
    return worst


def _central_difference(
    tensor: Tensor, index: int, step: float, evaluate: Callable[[], float]
) -> float:
    original = tensor.data.copy()
    value = float(original.reshape(-1)[index])
    results, points = [], []
    try:
        for direction in (1.0, -1.0):
            moved = original.copy()
            moved.reshape(-1)[index] = value + direction * step * max(1.0, abs(value))
            points.append(float(moved.reshape(-1)[index]))
            tensor.assign(moved)
            results.append(evaluate())
    finally:
        tensor.assign(original)
    return (results[0] - results[1]) / (points[0] - points[1])
