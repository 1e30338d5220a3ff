"""The command ``llmcy``: its sub-commands, and how errors are shown."""

from __future__ import annotations

import importlib
import keyword
import sys

import click

from llmcy._version import __version__
from llmcy.errors import LlmcyError, RunError

__all__ = ["main"]

STATUS = {"SaveFailed": 74, "Stopped": 75}  # as EX_IOERR and EX_TEMPFAIL of sysexits.h
COMMANDS = {  # name -> module that defines a click command of that name
    "bench": "llmcy.cli.bench",
    "diff": "llmcy.cli.diff",
    "eval": "llmcy.cli.eval",
    "generate": "llmcy.cli.generate",
    "export": "llmcy.cli.export",
    "import": "llmcy.cli.import_",
    "inspect": "llmcy.cli.inspect",
    "resume": "llmcy.cli.resume",
    "sample": "llmcy.cli.generate",
    "selftest": "llmcy.cli.selftest",
    "train": "llmcy.cli.train",
    "verify": "llmcy.cli.verify",
}


class LazyGroup(click.Group):
    """A group that imports a sub-command only when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        function = f"{cmd_name}_" if keyword.iskeyword(cmd_name) else cmd_name
        command: click.Command = getattr(importlib.import_module(COMMANDS[cmd_name]), function)
        return command


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="llmcy")
def cli() -> None:
    """Train, checkpoint and run small language models on CPUs, with results that depend on the
    inputs alone."""


def main() -> None:
    """Entry point: an error of llmcy becomes one line on stderr and an exit status.

    The status is 1, save for two outcomes of a run that scripts ask for (docs/runs.md): 75 when it
    was stopped by a signal and can be continued, 74 when a checkpoint or record could not be saved.
    """
    try:
        cli()
    except LlmcyError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(STATUS.get(error.kind, 1) if isinstance(error, RunError) else 1)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of a pipe went away; nothing to report
        sys.exit(1)
