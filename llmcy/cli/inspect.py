"""``llmcy inspect``: account for every byte of a checkpoint or state file."""

from __future__ import annotations

from pathlib import Path

import click

__all__ = ["inspect"]


@click.command()
@click.argument("checkpoint", type=click.Path())
@click.option("--fields", is_flag=True, help="Print every header field too: offset, width, value.")
def inspect(checkpoint: str, fields: bool) -> None:
    """Validate CHECKPOINT and print its prefix, sizes, record table and byte audit.

    A record line shows the first byte, the byte after the last one, role, element type, shape and
    name. A file that does not load is refused with the check that failed; its numbers would mean
    nothing. Of a job checkpoint or selected state of a run it prints what the metadata says, and
    every tensor with its digest.
    """
    from llmcy.checkpoint import inspect_file
    from llmcy.run.job_file import is_state_file, read_state_file

    if is_state_file(Path(checkpoint)):
        for line in read_state_file(Path(checkpoint)).summary_lines():
            click.echo(line)
        return
    inspection = inspect_file(checkpoint)
    for line in inspection.summary_lines():
        click.echo(line)
    if fields:
        click.echo("\n  offset  width  field")
        for line in inspection.field_lines():
            click.echo(line)
    click.echo("\n     start        end  record")
    for line in inspection.record_lines():
        click.echo(line)
