"""``llmcy verify``: prove that a run folder is what its settings, data and seeds lead to."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from llmcy.cli.jobs import use_threads

__all__ = ["verify"]


class ReplayRange(click.ParamType):  # type: ignore[type-arg,unused-ignore]
    """``all`` or ``A..B``."""

    name = "A..B|all"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from llmcy.run.verify import parse_replay

        try:
            return parse_replay(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)


@click.command()
@click.argument("run", type=click.Path())
@click.argument("sources", nargs=-1)
@click.option(
    "--replay",
    type=ReplayRange(),
    default=None,
    help="Execute steps again: all, or from one kept checkpoint to another; 0 is the beginning.",
)
@click.option(
    "--sample",
    type=click.IntRange(min=0),
    default=0,
    help="Execute this many random segments between neighbouring kept checkpoints again.",
)
@click.option("--seed", type=int, default=None, help="Of the choice of --sample; printed.")
@click.option("--split-manifest", default=None, help="Split manifest of a JSON corpus in SOURCES.")
@click.option("--threads", default=None, type=int, help="No result depends on it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def verify(
    run: str,
    sources: tuple[str, ...],
    replay: Any,
    sample: int,
    seed: int | None,
    split_manifest: str | None,
    threads: int | None,
    as_json: bool,
) -> None:
    """Check every file of the run folder RUN: digests, the chain of records, agreement with plan
    and data. Nothing in the folder is changed.

    With SOURCES, the texts as they were given for the training, documents are read, split and
    encoded again. With --replay or --sample, steps are executed again and every record line,
    parameter and moment must have the same bits.

    The exit status is 0 when everything that was asked for is proved, 1 when something is
    disproved (with the step, tensor and index), 2 when something could not be checked.
    """
    from llmcy.run.verify import Request, verify_run

    use_threads(threads)
    live = sys.stderr.isatty()

    def progress(step: int) -> None:
        if live:
            click.echo(f"\rstep {step} executed again", err=True, nl=False)

    request = Request(replay, sample, seed, sources, split_manifest)
    found = verify_run(run, request, progress=progress)
    if live:
        click.echo("\r\x1b[K", err=True, nl=False)
    if as_json:
        click.echo(json.dumps(found.to_dict(), indent=2))
    else:
        for line in found.lines():
            click.echo(line)
    sys.exit(found.exit_code)
