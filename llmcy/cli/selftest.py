"""``llmcy selftest``: prove on this machine that results are the published ones."""

from __future__ import annotations

import sys

import click

__all__ = ["selftest"]


@click.command()
@click.option("--trace", is_flag=True, help="Print the trace of the published run and stop.")
@click.option("--figure", is_flag=True, help="Print the measured losses as marks and stop.")
@click.option(
    "--inference",
    is_flag=True,
    help="Print the reports of final evaluation, sampling and cached generation and stop.",
)
def selftest(trace: bool, figure: bool, inference: bool) -> None:
    """Run the published training run, its checkpoint and its replay, evaluate and sample from it,
    and compare every bit.

    Everything runs on each instruction set this processor has, with 1, 2 and 3 threads. The exit
    status is 0 when all values are the published ones, else 1.
    """
    from llmcy.reference import selftest as reference

    if trace or figure or inference:
        sys.exit(_print_one_run(trace=trace, figure=figure, inference=inference))
    problems = 0
    for line, is_problem in reference.run_selftest():
        problems += is_problem
        click.echo(line, err=is_problem)
    if problems:
        click.echo(f"selftest: {problems} values differ from the published ones", err=True)
    click.echo(f"selftest={'failed' if problems else 'passed'}")
    sys.exit(1 if problems else 0)


def _print_one_run(*, trace: bool, figure: bool, inference: bool) -> int:
    """Print what was asked for from one run; the status says whether it is the published one."""
    from llmcy.reference import selftest as reference
    from llmcy.reference.figure import loss_figure
    from llmcy.reference.inference import measure_inference

    published = reference.measure_published()
    problems = reference.compare(published)
    if trace:
        click.echo(published.trace, nl=False)
    if figure:
        click.echo(loss_figure(published.training.result.checkpoints), nl=False)
    if inference:
        measured = measure_inference(published.training, published.replay.encoded.bytes)
        problems += measured.problems()
        click.echo("".join(measured.reports().values()), nl=False)
    for problem in problems:
        click.echo(f"problem: {problem}", err=True)
    return 1 if problems else 0
