"""What ``llmcy train`` and ``llmcy resume`` share: options, schedules, the last lines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import click

from llmcy._threads import set_num_threads
from llmcy.cli.progress import TrainingProgress
from llmcy.errors import ConfigError
from llmcy.run import JobOptions, StopRequest, TrainSummary, Watcher
from llmcy.run.settings import SCHEDULES

__all__ = [
    "SCHEDULE",
    "conclude",
    "eval_at_option",
    "given_options",
    "job_options",
    "read_rates",
    "under_way",
    "use_threads",
]

SCHEDULE = click.Choice([name for name in SCHEDULES if name != "list"])
HELP = {
    "checkpoint_every": "Updates between checkpoints; 0: only at the start and the end.",
    "keep_last": "Newest checkpoints that stay.",
    "keep_every": "Checkpoints at multiples of this step stay; 0: none.",
    "micro_batch_size": "Windows in memory at once; 0: a whole batch. No result depends on it.",
    "on_save_error": "When a checkpoint or record cannot be written.",
}


def job_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that fill `JobOptions`; those not given are None."""
    for field in reversed(fields(JobOptions)):
        kind: Any = click.Choice(["stop", "continue"]) if field.name == "on_save_error" else int
        command = click.option(
            f"--{field.name.replace('_', '-')}",
            field.name,
            default=None,
            type=kind,
            help=f"{HELP[field.name]}  [default: {field.default}]",
        )(command)
    return command


def given_options(values: dict[str, Any]) -> dict[str, Any]:
    """Take the options of `job_options` out of a command's values, without those not given."""
    taken = {field.name: values.pop(field.name) for field in fields(JobOptions)}
    return {name: value for name, value in taken.items() if value is not None}


class StepList(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """Whole numbers with commas between them."""

    name = "steps"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in value.split(",")]
        if not all(part.isascii() and part.isdecimal() for part in parts):
            self.fail(f"expected whole numbers as 3,7,20, got {value!r}", param, ctx)
        return tuple(map(int, parts))


def eval_at_option(help: str) -> Callable[..., Any]:
    """The option ``--eval-at``."""
    return click.option("--eval-at", default=(), type=StepList(), metavar="STEPS", help=help)


def use_threads(threads: int | None) -> None:
    """Set the number of threads, if one was given."""
    if threads is not None:
        set_num_threads(threads)


def read_rates(path: str) -> tuple[float, ...]:
    """Learning rates from a text file, one a line; decimals, or hexadecimal floats.

    Raises
    ------
    ConfigError
        ``InvalidSetting`` naming file and line.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise _bad_rates(f"cannot read {path!r}: {error}", path) from error
    rates = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if text:
            try:
                rates.append(float.fromhex(text) if "0x" in text.lower() else float(text))
            except (ValueError, OverflowError) as error:
                raise _bad_rates(f"{path!r}, line {number}: {text!r} is no rate", text) from error
    return tuple(rates)


def _bad_rates(message: str, value: str) -> ConfigError:
    return ConfigError("InvalidSetting", message, name="learning-rates", value=value)


@contextmanager
def under_way(quiet: bool) -> Iterator[tuple[TrainingProgress, Watcher, StopRequest]]:
    """Show progress, and let the first SIGINT or SIGTERM ask for a stop."""
    with TrainingProgress(quiet=quiet) as progress, StopRequest() as stop:
        watcher = Watcher(
            on_start=progress.on_start,
            on_step=progress.on_step,
            on_checkpoint=progress.on_checkpoint,
            on_save=progress.on_save,
            on_problem=progress.on_problem,
        )
        yield progress, watcher, stop


def conclude(summary: TrainSummary) -> None:
    """The last lines of a finished run."""
    click.echo(
        f"selected   step {summary.selected_step}, validation loss {summary.validation_loss:.4f} "
        f"({summary.bits_per_byte:.3f} bits a byte); a bigram model has {summary.bigram_loss:.4f}"
    )
    click.echo(f"run        {summary.run.path}")
    click.echo(f"history    {summary.history}")
    click.echo(f"parameters {summary.fingerprint}")
