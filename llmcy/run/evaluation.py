"""Evaluating the selected state of a finished run; the test partition once, and noted.

``test.json`` in the run folder lists every opening of the gate.  An entry is written before the
first test token is looked at, and completed with the report afterwards: an evaluation that fails
in between has used the gate all the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmcy import kernels
from llmcy.bigram import BigramModel, score_probabilities
from llmcy.data import MiniBatchEpoch, Partition, TextDataset, target_byte_count
from llmcy.errors import RunError
from llmcy.evaluate import evaluate_no_grad
from llmcy.final_evaluation import (
    EvaluationProvenance,
    FinalEvaluationReport,
    FinalEvaluator,
    FrozenBigram,
    SelectedDecoder,
)
from llmcy.model import Decoder
from llmcy.run.directory import RunDirectory
from llmcy.run.model_file import load_model
from llmcy.run.plan import RunPlan
from llmcy.run.training import BIGRAM_ALPHA, LN_2, read_run
from llmcy.state import DecoderModelState

__all__ = [
    "TEST_RECORD",
    "PartitionLoss",
    "evaluate_partition",
    "evaluate_test",
    "measure_test_again",
]

TEST_RECORD = "test.json"
Named = list[tuple[str, NDArray[Any]]]


@dataclass(frozen=True)
class PartitionLoss:
    """Losses of the selected model and of the bigram model on one partition."""

    partition: str
    selected_step: int
    loss: float
    perplexity: float
    bits_per_byte: float
    bigram_loss: float
    target_count: int


@dataclass(frozen=True)
class _Finished:
    """What an evaluation needs of a finished run."""

    plan: RunPlan
    dataset: TextDataset
    model: Decoder
    step: int
    validation_loss: float
    bigram: BigramModel

    def epoch(self, partition: Partition, batch_size: int) -> MiniBatchEpoch:
        return self.dataset.evaluation_epoch(
            partition, self.plan.settings.context_length, batch_size
        )


def _read_finished(run: RunDirectory) -> _Finished:
    if not (run.path / "summary.json").is_file():
        raise RunError(
            "NotFinished",
            f"the run {str(run.path)!r} is not finished: it has not selected a state yet",
            path=str(run.path),
        )
    summary = run.read_json("summary.json")
    plan, dataset = read_run(run)
    loaded = load_model(run.path)
    if loaded.fingerprint != summary["fingerprint"]:
        raise RunError(
            "RunChanged",
            f"the selected state has the digest {loaded.fingerprint}, the summary says "
            f"{summary['fingerprint']}",
            field="summary.fingerprint",
            expected=summary["fingerprint"],
            actual=loaded.fingerprint,
        )
    named = [(name, parameter.data) for name, parameter in loaded.model.named_parameters()]
    loss = float.fromhex(summary["validation_loss_hex"])
    return _finished(plan, dataset, named, int(summary["selected_step"]), loss)


def _finished(
    plan: RunPlan, dataset: TextDataset, named: Named, step: int, validation_loss: float
) -> _Finished:
    # windows are as long as in training: positions beyond them are left out, no bit depends on it
    config = replace(plan.model, max_seq_len=plan.settings.context_length)
    bigram = BigramModel.fit_training_partition(config.vocab_size, BIGRAM_ALPHA, dataset.documents)
    model = Decoder.from_parameters(config, named)
    return _Finished(plan, dataset, model, step, validation_loss, bigram)


def evaluate_partition(
    run: RunDirectory, partition: Partition, batch_size: int = 32
) -> PartitionLoss:
    """Losses on training or validation windows without overlap; may be repeated.

    Raises
    ------
    RunError
        ``NotFinished``, ``RunChanged``, and as :func:`llmcy.run.training.read_run`.
    TrainerError, DataError
        As :func:`llmcy.evaluate.evaluate_no_grad`; ``NoWindows``.
    """
    finished = _read_finished(run)
    epoch = finished.epoch(partition, batch_size)
    found = evaluate_no_grad(finished.model, epoch)
    total, count = 0.0, 0
    for batch in epoch.batches:
        score = score_probabilities(finished.bigram.probabilities(batch.inputs, batch.targets))
        total, count = total + score.total_nll, count + score.target_count
    n_bytes = target_byte_count(epoch, finished.dataset.tokenizer)
    return PartitionLoss(
        partition.label,
        finished.step,
        found.loss,
        _perplexity(found.loss),
        found.loss * found.target_count / n_bytes / LN_2,
        total / float(count),
        found.target_count,
    )


def _perplexity(loss: float) -> float:
    return float(kernels.exp(np.array([loss]))[0])


def evaluate_test(
    run: RunDirectory, *, again: bool = False, batch_size: int = 32
) -> FinalEvaluationReport:
    """The final evaluation of a run: opens the gate to the test partition and notes it.

    Parameters
    ----------
    run
        A finished run.
    again
        Open the gate although it was opened before; that is noted too.
    batch_size
        Windows a batch; the last bits of the decoder's loss depend on it.

    Raises
    ------
    RunError
        ``TestAlreadyOpened`` without ``again``, ``NotFinished``, ``RunChanged``, ``Locked``.
    FinalEvaluationError
        As :meth:`llmcy.final_evaluation.FinalEvaluator.evaluate_once`.
    """
    with run.locked():
        openings = _openings(run)
        if openings and not again:
            raise RunError(
                "TestAlreadyOpened",
                f"the test partition of {str(run.path)!r} has been evaluated {len(openings)} "
                "time(s) already; what is chosen after looking at it is no test any more; --again "
                "does it all the same and notes it",
                path=str(run.path),
                openings=len(openings),
            )
        evaluate = _gate(_read_finished(run), batch_size)
        opening: dict[str, Any] = {
            "opening": len(openings) + 1,
            "again": bool(openings),
            "batch_size": batch_size,
            "report": None,
        }
        run.write_json(TEST_RECORD, {"openings": [*openings, opening]})
        report = evaluate()
        opening["report"] = report.to_dict()
        run.write_json(TEST_RECORD, {"openings": [*openings, opening]})
        return report


def measure_test_again(
    plan: RunPlan,
    dataset: TextDataset,
    state: DecoderModelState,
    step: int,
    validation_loss: float,
    batch_size: int,
) -> FinalEvaluationReport:
    """What the final evaluation of a selected state shows; nothing is noted.

    For checking a report that is noted already.

    Raises
    ------
    FinalEvaluationError, DataError
        As :func:`evaluate_test`.
    """
    named = list(state.named_arrays())
    return _gate(_finished(plan, dataset, named, step, validation_loss), batch_size)()


def _gate(finished: _Finished, batch_size: int) -> Callable[[], FinalEvaluationReport]:
    """Everything is prepared and checked; calling it looks at the test tokens."""
    epoch = finished.epoch(Partition.TEST, batch_size)
    data = finished.plan.data
    provenance = EvaluationProvenance(
        data["corpus"], data["split"], data["tokenizer"], epoch.context_length
    )
    evaluator = FinalEvaluator(
        epoch,
        provenance,
        target_byte_count=target_byte_count(epoch, finished.dataset.tokenizer),
    )
    decoder = SelectedDecoder(
        DecoderModelState.snapshot(finished.model),
        finished.model,
        finished.step,
        finished.validation_loss,
        Partition.VALIDATION,
        provenance,
    )
    bigram = FrozenBigram(finished.bigram, Partition.TRAIN, provenance)
    return lambda: evaluator.evaluate_once(decoder, bigram)


def _openings(run: RunDirectory) -> list[dict[str, Any]]:
    if not (run.path / TEST_RECORD).is_file():
        return []
    openings: list[dict[str, Any]] = run.read_json(TEST_RECORD)["openings"]
    return openings
