"""What a traced AdamW step went through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

__all__ = ["AdamWParameterTrace", "AdamWTrace"]

Array = NDArray[Any]


@dataclass(frozen=True)
class AdamWParameterTrace:
    """One parameter's part of a traced step; all arrays have the parameter's shape.

    Attributes
    ----------
    name, weight_decay
        The parameter, and its decay: 0 outside the decay group.
    gradient, value_before
        Copies of what went in.
    stages
        Every line of the formula in float64, by the names of ``llmcy.kernels.ADAMW_STAGES``.
    value_after, first_moment, second_moment
        Copies of what came out.
    """

    name: str
    weight_decay: float
    gradient: Array
    value_before: Array
    stages: dict[str, Array]
    value_after: Array
    first_moment: Array
    second_moment: Array


@dataclass(frozen=True)
class AdamWTrace:
    """What a traced step used and did.

    Attributes
    ----------
    step
        The committed step number.
    learning_rate
        The rate of this step.
    correction1, correction2
        Bias corrections ``1 - beta**step`` by accumulated products.
    parameters
        One entry a parameter, in the order of the step's list.
    """

    step: int
    learning_rate: float
    correction1: float
    correction2: float
    parameters: tuple[AdamWParameterTrace, ...]
