"""Adding updates at the end of a run, so that a command that is given twice adds them once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from llmcy.errors import LlmcyError, RunError
from llmcy.optim import LearningRateSchedule
from llmcy.run.canonical import first_difference, with_float_bits
from llmcy.run.plan import RunPlan
from llmcy.run.settings import make_schedule

__all__ = ["Extension", "extended_plan"]


@dataclass(frozen=True)
class Extension:
    """Updates to add at the end of a run.

    Attributes
    ----------
    schedule
        One rate an update.
    described
        How the rates were made, for the record; JSON values.
    eval_at
        Steps of the whole run to measure at; without any the run's own cadence goes on.  The last
        added step is always measured.
    after
        The step after which the updates come.  None: after the last planned one.
    """

    schedule: LearningRateSchedule
    described: dict[str, Any] = field(default_factory=lambda: {"schedule": "list"})
    eval_at: tuple[int, ...] = ()
    after: int | None = None

    @classmethod
    def by_formula(
        cls,
        name: str,
        steps: int,
        *,
        learning_rate: float,
        min_learning_rate: float | None = None,
        warmup_steps: int = 0,
        decay_steps: int = 0,
        eval_at: Iterable[int] = (),
        after: int | None = None,
    ) -> Extension:
        """Rates of :func:`llmcy.run.make_schedule`; the last rate is a tenth of the peak by itself.

        Raises
        ------
        TrainerError, ConfigError
            As :func:`llmcy.run.make_schedule`.
        """
        low = learning_rate / 10.0 if min_learning_rate is None else min_learning_rate
        formula = {
            "learning_rate": learning_rate,
            "min_learning_rate": low,
            "warmup_steps": warmup_steps,
            "decay_steps": decay_steps,
        }
        rates = make_schedule(name, steps, **formula)  # type: ignore[arg-type]
        return cls(rates, {"schedule": name, **formula}, tuple(eval_at), after)


def extended_plan(plan: RunPlan, extension: Extension, *, finished: bool) -> RunPlan:
    """The plan with the extension at its end; the plan as it is when that was added before.

    Parameters
    ----------
    plan
        Of the run, perhaps extended.
    extension
        To be added.
    finished
        Whether everything that is planned was done, the summary included.

    Raises
    ------
    RunError
        ``ExtensionRefused`` when other updates were added there, or others are not done yet.
    OptimizerError, TrainerError
        For rates or steps that make no plan.

    Notes
    -----
    With ``after``, the second delivery of a command finds its updates in the plan, always.  Without
    it, it is known by the last extension being the same and unfinished: a killed command may be
    given again, and only one that has done everything adds its updates once more.
    """
    after = plan.steps if extension.after is None else extension.after
    pending = extension.after is None and not finished and plan.extensions
    if pending:
        after = plan.extensions[-1]["after_step"]
    elif after == plan.steps:
        return plan.extended(extension.schedule, extension.described, extension.eval_at)
    last = after + extension.schedule.steps()
    try:
        before = plan.until(after)
    except KeyError:
        raise _refused(
            f"the run is planned to step {plan.steps}, and nothing was added after step {after}",
            after,
            last,
        ) from None
    try:
        again = before.extended(extension.schedule, extension.described, extension.eval_at)
        difference = _first_difference(again, plan)
    except LlmcyError:
        difference = "learning_rates"  # these cannot be the ones that were added
    if difference is None:
        return plan
    entry = next(e for e in plan.extensions if e["after_step"] == after)
    there = f"{entry['steps']} updates were added after step {after}"
    if pending:
        raise _refused(
            f"{there} and are not done yet; what is added now differs in {difference}. Continue "
            "without adding anything first",
            after,
            last,
        )
    raise _refused(f"{there}, which differ in {difference}", after, last)


def _first_difference(again: RunPlan, plan: RunPlan) -> str | None:
    """The first field in which the same stretch of two plans differs."""
    count = len(again.extensions)
    measured = tuple(s for s in plan.validation_steps if s <= again.steps)
    for name, expected, actual in (
        ("extensions", again.extensions[-1], plan.extensions[count - 1]),
        ("learning_rates", again.rates, plan.rates[: again.steps]),
        ("validation_steps", again.validation_steps, measured),
    ):
        found = first_difference(with_float_bits(expected), with_float_bits(actual))
        if found is not None:
            return found[0] if name == "extensions" else f"{name}{found[0]}"
    return None


def _refused(problem: str, after: int, last: int) -> RunError:
    return RunError(
        "ExtensionRefused",
        f"cannot add updates {after + 1} to {last}: {problem}",
        after=after,
        last=last,
        problem=problem,
    )
