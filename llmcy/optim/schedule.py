"""Learning-rate schedules: one rate an update, all written down before training starts.

A schedule is a list of numbers, so a run can be repeated from its record alone.  The constructors
below fill the list from a formula; they use IEEE operations, square roots and correctly rounded
cosines only, hence every machine gets the same list.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from llmcy import kernels
from llmcy._check import positive, real_number, whole_number
from llmcy.errors import TrainerError

__all__ = ["LearningRateSchedule"]


class LearningRateSchedule:
    """One learning rate for each update.

    Parameters
    ----------
    rates
        Rate of update 1, 2, ...; each finite and > 0.  Their number is the length of the run.

    Raises
    ------
    TrainerError
        ``EmptyLearningRateSchedule``, or ``InvalidScheduledLearningRate`` with the 1-based step.
    RangeError
        For a rate that is no number.
    """

    __slots__ = ("_rates",)

    def __init__(self, rates: Iterable[float]) -> None:
        self._rates = tuple(real_number("rates", rate) for rate in rates)
        if not self._rates:
            raise TrainerError(
                "EmptyLearningRateSchedule", "a learning-rate schedule needs at least one rate"
            )
        for step, rate in enumerate(self._rates, start=1):
            if not math.isfinite(rate) or rate <= 0.0:
                raise TrainerError(
                    "InvalidScheduledLearningRate",
                    f"the learning rate of step {step} must be finite and > 0, got {rate!r}",
                    step=step,
                    value=rate,
                )

    @classmethod
    def constant(cls, learning_rate: float, steps: int) -> LearningRateSchedule:
        """The same rate for ``steps`` updates."""
        return cls([learning_rate] * whole_number("steps", steps))

    @classmethod
    def segments(cls, segments: Iterable[tuple[float, int]]) -> LearningRateSchedule:
        """Constant pieces, each given as (rate, number of updates)."""
        return cls(rate for rate, steps in segments for _ in range(whole_number("steps", steps)))

    @classmethod
    def warmup_inverse_sqrt(
        cls, peak: float, warmup_steps: int, steps: int
    ) -> LearningRateSchedule:
        """Linear warmup to ``peak``, then decay with the inverse square root of the step.

        Rate of step s, with w warmup steps: ``peak * (s / w)`` for s <= w, and
        ``peak * (sqrt(w) / sqrt(s))`` after that.

        Notes
        -----
        With ``peak = 1 / sqrt(d_model * w)`` this is ``d_model**-0.5 * min(s**-0.5, s * w**-1.5)``
        of Vaswani et al., "Attention is all you need" (2017), up to rounding.
        """
        peak = positive("peak", peak)
        w = whole_number("warmup_steps", warmup_steps, 1)
        root = math.sqrt(w)
        return cls(
            peak * (s / w) if s <= w else peak * (root / math.sqrt(s))
            for s in range(1, whole_number("steps", steps) + 1)
        )

    @classmethod
    def warmup_cosine(
        cls, peak: float, warmup_steps: int, steps: int, min_learning_rate: float
    ) -> LearningRateSchedule:
        """Linear warmup to ``peak``, then half a cosine down to ``min_learning_rate``.

        Rate of step s, with w warmup steps and S steps: ``peak * (s / w)`` for s <= w, and
        ``low + (peak - low) * (0.5 * (1.0 + cos(pi * ((s - w) / (S - w)))))`` after that, with pi
        the float64 nearest to it and the cosine correctly rounded.
        """
        peak, low = positive("peak", peak), positive("min_learning_rate", min_learning_rate)
        w, last = whole_number("warmup_steps", warmup_steps), whole_number("steps", steps)
        warmup = [peak * (s / w) for s in range(1, min(w, last) + 1)]
        angles = np.array([math.pi * ((s - w) / (last - w)) for s in range(w + 1, last + 1)])
        cosines = kernels.cos(angles).tolist() if angles.size else []
        return cls(warmup + [low + (peak - low) * (0.5 * (1.0 + c)) for c in cosines])

    @classmethod
    def warmup_linear(
        cls, peak: float, warmup_steps: int, steps: int, min_learning_rate: float
    ) -> LearningRateSchedule:
        """Linear warmup to ``peak``, then a straight line down to ``min_learning_rate``.

        Rate of step s, with w warmup steps and S steps: ``peak * (s / w)`` for s <= w, and
        ``low + (peak - low) * ((S - s) / (S - w))`` after that; the last rate is ``low`` exactly.
        """
        last, w = whole_number("steps", steps), whole_number("warmup_steps", warmup_steps)
        return cls.warmup_stable_decay(peak, w, last, max(0, last - w), min_learning_rate)

    @classmethod
    def warmup_stable_decay(
        cls,
        peak: float,
        warmup_steps: int,
        steps: int,
        decay_steps: int,
        min_learning_rate: float,
    ) -> LearningRateSchedule:
        """Linear warmup, a long stretch at ``peak``, and a straight line down at the end.

        Rate of step s, with w warmup steps, S steps and d decay steps: ``peak * (s / w)`` for
        s <= w; ``peak`` up to step S - d; ``low + (peak - low) * ((S - s) / d)`` after that.  Where
        warmup and decay overlap, the warmup comes first.

        Notes
        -----
        The shape of Hu et al., "MiniCPM" (2024), with a linear decay.
        """
        peak, low = positive("peak", peak), positive("min_learning_rate", min_learning_rate)
        w, last = whole_number("warmup_steps", warmup_steps), whole_number("steps", steps)
        d = whole_number("decay_steps", decay_steps)

        def rate(s: int) -> float:
            if s <= w:
                return peak * (s / w)
            if s <= last - d:
                return peak
            return low + (peak - low) * ((last - s) / d)

        return cls(rate(s) for s in range(1, last + 1))

    def steps(self) -> int:
        """Number of updates."""
        return len(self._rates)

    def learning_rate(self, step: int) -> float | None:
        """Rate of update ``step``, 1-based; nothing for 0 and beyond the last update."""
        return self._rates[step - 1] if 1 <= step <= len(self._rates) else None

    def rates(self) -> tuple[float, ...]:
        """All rates in order."""
        return self._rates

    def __len__(self) -> int:
        return len(self._rates)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LearningRateSchedule) and self._rates == other._rates

    def __hash__(self) -> int:
        return hash(self._rates)

    def __repr__(self) -> str:
        return f"LearningRateSchedule({self.steps()} steps, first rate {self._rates[0]!r})"
