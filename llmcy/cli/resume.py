"""``llmcy resume``: continue a run from its newest valid checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from llmcy.cli.jobs import (
    SCHEDULE,
    conclude,
    given_options,
    job_options,
    read_rates,
    under_way,
    use_threads,
)
from llmcy.errors import ConfigError
from llmcy.run import Extension, JobOptions, make_schedule, resume_training
from llmcy.run.training import open_run
from llmcy.trainer import LearningRateSchedule

__all__ = ["resume"]


@click.command()
@click.argument("run", type=click.Path())
@click.option("--extend", default=0, help="Updates to add at the end of the plan.")
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
@job_options
@click.option("--threads", default=None, type=int, help="No result depends on it.")
@click.option("--quiet", is_flag=True, help="Print the last lines only.")
def resume(run: str, threads: int | None, quiet: bool, **values: Any) -> None:
    """Continue the training of the run folder RUN, to the same bits as without the break.

    Takes the newest valid checkpoint; a newer one that is damaged is reported and skipped. How the
    run is carried out is as it was begun, unless options say otherwise. --extend adds updates, at
    the rates that --learning-rate and --schedule or --learning-rates give.
    """  # fmt: skip
    use_threads(threads)
    given = given_options(values)
    extension = _extension(**values)
    options = None
    if given:
        begun = open_run(run).read_json("config.json")["options"]
        options = replace(JobOptions(**begun), **given)
    with under_way(quiet) as (_, watcher, stop):
        summary = resume_training(run, options, extend=extension, watcher=watcher, stop=stop)
    conclude(summary)


def _extension(
    extend: int,
    schedule: str,
    learning_rate: float | None,
    min_learning_rate: float | None,
    warmup_steps: int,
    decay_steps: int,
    rates_file: str | None,
) -> Extension | None:
    """The added updates, or None when there are none."""
    if rates_file is not None:
        rates = read_rates(rates_file)
        if extend not in (0, len(rates)):
            raise _bad("extend", extend, f"--learning-rates lists {len(rates)} rates")
        return Extension(LearningRateSchedule(rates), {"schedule": "list"})
    if extend == 0 and learning_rate is None:
        return None
    if extend < 1:
        raise _bad("extend", extend, "it must be at least 1 to add updates")
    if learning_rate is None:
        raise _bad("learning-rate", None, "--extend needs --learning-rate or --learning-rates")
    low = learning_rate / 10.0 if min_learning_rate is None else min_learning_rate
    described = {
        "schedule": schedule,
        "learning_rate": learning_rate,
        "min_learning_rate": low,
        "warmup_steps": warmup_steps,
        "decay_steps": decay_steps,
    }
    rates_made = make_schedule(
        schedule,
        extend,
        learning_rate=learning_rate,
        min_learning_rate=low,
        warmup_steps=warmup_steps,
        decay_steps=decay_steps,
    )
    return Extension(rates_made, described)


def _bad(name: str, value: object, problem: str) -> ConfigError:
    return ConfigError("InvalidSetting", f"--{name}: {problem}", name=name, value=value)
