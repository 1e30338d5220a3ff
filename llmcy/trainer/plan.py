"""The plan of a run: complete and checked before the first forward pass."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from llmcy._check import real_number, whole_number
from llmcy.errors import TrainerError
from llmcy.optim.schedule import LearningRateSchedule

__all__ = ["UPDATE_EVENT_ORDER", "TrainerConfig", "earliest_minimum"]

UPDATE_EVENT_ORDER: tuple[str, ...] = (
    "forward",
    "backward",
    "finite-check",
    "clip",
    "adamw-step",
    "zero-grad",
)
"""What happens in an update, in order."""


def earliest_minimum(losses: Sequence[float]) -> int:
    """Index of the smallest loss, the first one among equals: the rule of selection."""
    best = 0
    for index, loss in enumerate(losses):
        if loss < losses[best]:
            best = index
    return best


class TrainerConfig:
    """How long to train, at which rates, how to clip, and when to measure.

    Parameters
    ----------
    schedule
        One learning rate an update.
    validation_steps
        Steps after which both losses are measured: 0 first, then ascending, the last update last.
    max_grad_norm
        Ceiling of the global gradient norm; finite, > 0.
    micro_batch_size
        Rows of a batch that are in memory at once, >= 1; None takes whole batches.  Results do not
        depend on it.

    Raises
    ------
    TrainerError
        The first of ``InvalidMaximumGradientNorm``, ``EmptyValidationSteps``,
        ``ValidationMustStartAtZero``; walking the list, ``ValidationStepOutOfRange`` or
        ``ValidationStepsNotIncreasing``; ``ValidationMustEndAtFinalStep``.
    RangeError
        For a ceiling that is no number, or a step or size that is no whole number.
    """

    __slots__ = ("_max_grad_norm", "_micro_batch_size", "_schedule", "_validation_steps")

    def __init__(
        self,
        schedule: LearningRateSchedule,
        validation_steps: Iterable[int],
        max_grad_norm: float,
        *,
        micro_batch_size: int | None = None,
    ) -> None:
        max_grad_norm = real_number("max_grad_norm", max_grad_norm)
        if not math.isfinite(max_grad_norm) or max_grad_norm <= 0.0:
            raise TrainerError(
                "InvalidMaximumGradientNorm",
                f"max_grad_norm must be finite and > 0, got {max_grad_norm!r}",
                value=max_grad_norm,
            )
        measured = tuple(
            whole_number("validation_steps", step, -(2**63)) for step in validation_steps
        )
        _check_validation_steps(measured, schedule.steps())
        self._schedule = schedule
        self._validation_steps = measured
        self._max_grad_norm = max_grad_norm
        self._micro_batch_size = (
            None
            if micro_batch_size is None
            else whole_number("micro_batch_size", micro_batch_size, 1)
        )

    @classmethod
    def every(
        cls,
        schedule: LearningRateSchedule,
        interval: int,
        max_grad_norm: float,
        *,
        micro_batch_size: int | None = None,
    ) -> TrainerConfig:
        """Measure at step 0, after every ``interval`` updates, and after the last update."""
        final = schedule.steps()
        measured = range(0, final, whole_number("interval", interval, 1))
        return cls(schedule, [*measured, final], max_grad_norm, micro_batch_size=micro_batch_size)

    @classmethod
    def at(
        cls,
        schedule: LearningRateSchedule,
        steps: Sequence[int],
        max_grad_norm: float,
        *,
        micro_batch_size: int | None = None,
    ) -> TrainerConfig:
        """Measure at step 0, after the updates listed, and after the last update.

        ``steps`` increase; they may have 0 and the last update or not.
        """
        final = schedule.steps()
        measured = [*([] if steps and steps[0] == 0 else [0]), *steps]
        if measured[-1] != final:
            measured.append(final)
        return cls(schedule, measured, max_grad_norm, micro_batch_size=micro_batch_size)

    @property
    def schedule(self) -> LearningRateSchedule:
        """One rate an update."""
        return self._schedule

    @property
    def validation_steps(self) -> tuple[int, ...]:
        """Steps at which both losses are measured."""
        return self._validation_steps

    @property
    def max_grad_norm(self) -> float:
        """Ceiling of the global gradient norm."""
        return self._max_grad_norm

    @property
    def micro_batch_size(self) -> int | None:
        """Rows of a batch that are in memory at once; None for all of them."""
        return self._micro_batch_size

    def __repr__(self) -> str:
        return (
            f"TrainerConfig({self._schedule!r}, {len(self._validation_steps)} measurements, "
            f"max_grad_norm={self._max_grad_norm!r})"
        )


def _check_validation_steps(steps: tuple[int, ...], final: int) -> None:
    if not steps:
        raise TrainerError("EmptyValidationSteps", "validation_steps must not be empty")
    if steps[0] != 0:
        raise TrainerError(
            "ValidationMustStartAtZero",
            f"validation_steps must start at 0, got {steps[0]}",
            actual=steps[0],
        )
    previous = None
    for step in steps:
        if step > final:
            raise TrainerError(
                "ValidationStepOutOfRange",
                f"validation step {step} is beyond the last update, {final}",
                step=step,
                final_step=final,
            )
        if previous is not None and step <= previous:
            raise TrainerError(
                "ValidationStepsNotIncreasing",
                f"validation steps must increase, got {step} after {previous}",
                previous=previous,
                next=step,
            )
        previous = step
    if steps[-1] != final:
        raise TrainerError(
            "ValidationMustEndAtFinalStep",
            f"validation_steps must end at the last update, {final}, got {steps[-1]}",
            expected=final,
            actual=steps[-1],
        )
