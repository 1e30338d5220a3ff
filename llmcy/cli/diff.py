"""``llmcy diff``: where two checkpoints or two runs part."""

from __future__ import annotations

import json
import sys

import click

from llmcy.errors import LlmcyError

__all__ = ["diff"]


@click.command()
@click.argument("a", type=click.Path())
@click.argument("b", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
def diff(a: str, b: str, as_json: bool) -> None:
    """Compare two checkpoints, or two run folders, bit by bit.

    A and B are version-1 checkpoints, model files or job checkpoints, in any combination, or two
    run folders. Printed are the first step, tensor and index that differ with both values, the
    largest distance in units in the last place, and a histogram of distances for each tensor.

    The exit status is 0 when nothing differs, 1 when something does, 2 when A or B cannot be read.
    """
    from llmcy.run.diff_runs import diff_paths

    try:
        difference = diff_paths(a, b)
    except LlmcyError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    if as_json:
        click.echo(json.dumps(difference.to_dict(), indent=2, allow_nan=False))
    else:
        for line in difference.lines():
            click.echo(line)
    sys.exit(0 if difference.equal else 1)
