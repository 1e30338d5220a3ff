"""``llmcy bench``: how fast this machine is, and what share of it the kernels reach."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from llmcy.bench.record import Measurement

__all__ = ["bench"]

UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
TOLD = 0.03  # changes below this share are noise more often than not
BIGGER_IS_BETTER = ("flop/s", "bytes/s", "tokens/s", "ratio")


@click.command()
@click.option("--model", "models", multiple=True, help="Training steps to time; repeatable.")
@click.option("--kernels-of", default="3.3M", show_default=True, help="Sizes for single kernels.")
@click.option("--dtype", "dtypes", multiple=True, type=click.Choice(["float32", "float64"]))
@click.option("--threads", "threads", multiple=True, type=click.IntRange(1, 256))
@click.option("--samples", default=7, show_default=True, type=click.IntRange(1))
@click.option("--no-kernels", is_flag=True, help="Leave single kernels out.")
@click.option("--no-steps", is_flag=True, help="Leave training steps out.")
@click.option(
    "--processor-time", is_flag=True, help="One thread: count processor time, not the clock's."
)
@click.option("--json", "target", type=click.Path(path_type=Path), help="Also write FILE.")
@click.option(
    "--compare",
    nargs=2,
    type=click.Path(path_type=Path),
    metavar="OLD NEW",
    help="Measure nothing; show two files of measurements side by side.",
)
def bench(
    models: tuple[str, ...],
    kernels_of: str,
    dtypes: tuple[str, ...],
    threads: tuple[int, ...],
    samples: int,
    no_kernels: bool,
    no_steps: bool,
    processor_time: bool,
    target: Path | None,
    compare: tuple[Path, Path] | None,
) -> None:
    """Measure the machine's peak, the share of it each kernel and training step reaches.

    The peak is a loop of multiply-adds that never leaves registers; kernels that compute little are
    measured against reading as many bytes. Medians; a machine that is busy with other programs
    measures those too.
    """
    if compare:
        _show_changes(*compare)
        return
    from llmcy import num_threads
    from llmcy.bench.cases import STEPS, step_case
    from llmcy.bench.machine import machine_facts
    from llmcy.bench.record import write_results
    from llmcy.bench.suite import Suite

    known = [case.name for case in STEPS]
    for name in (*models, kernels_of):
        if name not in known:
            raise click.BadParameter(f"{name!r} is none of {', '.join(known)}")
    facts = machine_facts()
    for name, fact in facts.items():
        click.echo(f"{name}: {fact}")
    suite = Suite(
        dtypes or ("float32", "float64"),
        threads or tuple(sorted({1, num_threads()})),
        samples,
        processor_time,
    )
    results: list[Measurement] = []
    parts = [suite.machine()]
    if not no_kernels:
        parts.append(suite.kernels(step_case(kernels_of)))
    if not no_steps:
        parts.append(suite.steps([step_case(name) for name in models or known]))
    group = ""
    for part in parts:
        for result in part:
            if result.group != group:
                group = result.group
                click.echo(f"\n{group}")
            click.echo(_line(result))
            results.append(result)
    if target is not None:
        write_results(target, facts, results)


def _line(result: Measurement) -> str:
    """One row of the table."""
    facts = []
    for name, value in result.facts.items():
        facts.append(
            f"{value:6.1%} {name[6:]}" if name.startswith("share ") else _rate(value, name)
        )
    told = _time(result.value) if result.unit == "s" else _rate(result.value, result.unit)
    return (
        f"  {result.case:28} {result.dtype:8} {result.threads:2} threads {told:>16}  "
        + "  ".join(facts)
    ).rstrip()


def _rate(value: float, unit: str) -> str:
    for size, prefix in UNITS:
        if value >= size:
            return f"{value / size:7.1f} {prefix}{unit}"
    return f"{value:7.3f} {unit}"


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.2f} us"


def _show_changes(old: Path, new: Path) -> None:
    from llmcy.bench.record import compare, read_results

    old_machine, old_results = read_results(old)
    new_machine, new_results = read_results(new)
    for name in {**old_machine, **new_machine}:
        before, after = old_machine.get(name), new_machine.get(name)
        if before != after:
            click.echo(f"{name}: {before} -> {after}")
    ratios = []
    group = ""
    for change in compare(old_results, new_results):
        new_result = change.new
        gain = change.ratio if new_result.unit in BIGGER_IS_BETTER else 1.0 / change.ratio
        ratios.append(gain)
        if new_result.group != group:
            group = new_result.group
            click.echo(f"\n{group}")
        told = "" if abs(gain - 1.0) < TOLD else "faster" if gain > 1.0 else "slower"
        click.echo(
            f"  {new_result.case:28} {new_result.side:8} {new_result.dtype:8} "
            f"{new_result.threads:2} threads  {gain:6.3f}x  {told}".rstrip()
        )
    if ratios:
        middle = math.exp(sum(map(math.log, ratios)) / len(ratios))
        click.echo(f"\n{len(ratios)} figures in both files, {middle:.3f}x on (geometric) average")
    else:
        click.echo("the files have no figure in common")
