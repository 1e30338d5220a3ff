"""``llmcy eval``: the losses of a finished run; the test partition once."""

from __future__ import annotations

import json
from dataclasses import asdict

import click

from llmcy._threads import set_num_threads
from llmcy.data import Partition
from llmcy.final_evaluation import FinalEvaluationReport, Score
from llmcy.run import PartitionLoss, RunDirectory, evaluate_partition, evaluate_test

__all__ = ["eval"]


@click.command()
@click.argument("run", type=click.Path())
@click.option(
    "--partition",
    default="validation",
    show_default=True,
    type=click.Choice([partition.label for partition in Partition]),
    help="Documents to measure on; test opens the gate, which is noted in the run folder.",
)
@click.option("--again", is_flag=True, help="Open the gate to the test partition another time.")
@click.option(
    "--batch-size",
    default=32,
    show_default=True,
    type=click.IntRange(1),
    help="Windows a batch; the last bits of the loss depend on it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--threads", default=None, type=int, help="No result depends on it.")
def eval(
    run: str, partition: str, again: bool, batch_size: int, as_json: bool, threads: int | None
) -> None:
    """Measure the selected model of RUN, next to a bigram model fitted on the same training text.

    The test partition is for one look at the very end: the second one is refused unless --again
    is given.
    """
    if threads is not None:
        set_num_threads(threads)
    directory = RunDirectory.open(run)
    if partition == Partition.TEST.label:
        report = evaluate_test(directory, again=again, batch_size=batch_size)
        click.echo(json.dumps(report.to_dict(), indent=2) if as_json else _final(report))
    else:
        found = evaluate_partition(directory, Partition(partition), batch_size)
        click.echo(json.dumps(asdict(found), indent=2) if as_json else _plain(found))


def _plain(found: PartitionLoss) -> str:
    return (
        f"{found.partition}: loss {found.loss:.6f}, perplexity {found.perplexity:.4f}, "
        f"{found.bits_per_byte:.4f} bits a byte, {found.target_count:,} targets "
        f"(step {found.selected_step})\nbigram: loss {found.bigram_loss:.6f}"
    )


def _final(report: FinalEvaluationReport) -> str:
    lines = [
        f"test       {len(report.document_ids)} documents, {report.window_count:,} windows, "
        f"{report.slot_count:,} targets, {report.fingerprint}",
        f"selected   step {report.selected_step}, "
        f"validation loss {report.selected_validation_loss:.6f}",
        f"decoder    {_score(report.decoder)}",
        f"bigram     {_score(report.bigram)}",
        f"gap        {report.loss_gap:.6f}: the decoder's loss is "
        + ("lower" if report.decoder_has_lower_loss else "not lower"),
    ]
    return "\n".join(lines)


def _score(score: Score) -> str:
    bits = "" if score.bits_per_byte is None else f", {score.bits_per_byte:.4f} bits a byte"
    return f"loss {score.mean_nll:.6f}, perplexity {score.perplexity:.4f}{bits}"
