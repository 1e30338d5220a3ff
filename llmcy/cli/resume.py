"""``llmcy resume``: continue a run from its newest valid checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from llmcy.cli.jobs import (
    SCHEDULE,
    conclude,
    eval_at_option,
    given_options,
    job_options,
    read_rates,
    under_way,
    use_threads,
)
from llmcy.errors import ConfigError
from llmcy.run import Extension, RunPlan, resume_training
from llmcy.trainer import LearningRateSchedule

__all__ = ["resume"]


@click.command()
@click.argument("run", type=click.Path())
@click.option("--extend", default=0, help="Updates to add at the end of the plan.")
@click.option(
    "--extend-to",
    default=0,
    help="Last step of the run, instead of --extend; given again it adds nothing.",
)
@click.option(
    "--schedule", default="constant", show_default=True, type=SCHEDULE, help="Of the added updates."
)
@click.option("--learning-rate", default=None, type=float, help="Peak rate of the added updates.")
@click.option(
    "--min-learning-rate",
    default=None,
    type=float,
    help="Last rate of the added updates.  [default: a tenth of the peak]",
)
@click.option("--warmup-steps", default=0, show_default=True, help="Of the added updates.")
@click.option("--decay-steps", default=0, show_default=True, help="Of the added updates.")
@click.option(
    "--learning-rates",
    "rates_file",
    default=None,
    type=click.Path(),
    help="File with one rate a line: adds as many updates.",
)
@eval_at_option("Added steps to measure at, ascending; the last always is.")
@job_options
@click.option("--threads", default=None, type=int, help="No result depends on it.")
@click.option("--quiet", is_flag=True, help="Print the last lines only.")
def resume(run: str, threads: int | None, quiet: bool, **values: Any) -> None:
    """Continue the training of the run folder RUN, to the same bits as without the break.

    Takes the newest valid checkpoint; a newer one that is damaged is reported and skipped. How the
    run is carried out is as it was begun, unless options say otherwise.

    --extend or --extend-to adds updates, at the rates that --learning-rate and --schedule or
    --learning-rates give. A command that was killed may be given again: while the added updates are
    not done, it adds none; with --extend-to it never does.
    """
    use_threads(threads)
    given = given_options(values)
    extension = _extension(**values)
    with under_way(quiet) as (_, watcher, stop):
        summary = resume_training(run, given, extend=extension, watcher=watcher, stop=stop)
    conclude(summary)


def _extension(
    extend: int,
    extend_to: int,
    schedule: str,
    learning_rate: float | None,
    min_learning_rate: float | None,
    warmup_steps: int,
    decay_steps: int,
    rates_file: str | None,
    eval_at: tuple[int, ...],
) -> Callable[[RunPlan], Extension] | None:
    """The added updates, once it is known what is planned; None when there are none."""
    if extend == 0 and extend_to == 0 and learning_rate is None and rates_file is None:
        if eval_at:
            raise _bad("eval-at", eval_at, "it goes with --extend, --extend-to or --learning-rates")
        return None
    if extend and extend_to:
        raise _bad("extend-to", extend_to, "it takes the place of --extend")
    if rates_file is not None:
        rates = read_rates(rates_file)
        if extend not in (0, len(rates)):
            raise _bad("extend", extend, f"--learning-rates lists {len(rates)} rates")
        listed = LearningRateSchedule(rates)
        after = extend_to - len(rates) if extend_to else None
        return lambda plan: Extension(listed, eval_at=eval_at, after=after)
    if extend_to == 0 and extend < 1:
        raise _bad("extend", extend, "it must be at least 1 to add updates")
    if learning_rate is None:
        raise _bad("learning-rate", None, "added updates need it, or --learning-rates")
    peak = learning_rate

    def made(plan: RunPlan) -> Extension:
        after = plan.extended_to(extend_to) if extend_to else None
        steps = extend if after is None else extend_to - after
        if steps < 1:
            raise _bad("extend-to", extend_to, f"the run is planned to step {plan.steps} already")
        return Extension.by_formula(
            schedule,
            steps,
            learning_rate=peak,
            min_learning_rate=min_learning_rate,
            warmup_steps=warmup_steps,
            decay_steps=decay_steps,
            eval_at=eval_at,
            after=after,
        )

    return made


def _bad(name: str, value: object, problem: str) -> ConfigError:
    return ConfigError("InvalidSetting", f"--{name}: {problem}", name=name, value=value)
