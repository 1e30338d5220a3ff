"""The report of the final evaluation: the published decoder and a bigram model, once, on test text.

The three last entries of ``evidence`` say how the test documents were made; nothing measures them.
"""

from __future__ import annotations

from dataclasses import dataclass

from llmcy.bigram import BigramModel
from llmcy.data import BatchOrder, Partition
from llmcy.final_evaluation import (
    EvaluationProvenance,
    FinalEvaluationReport,
    FinalEvaluator,
    FrozenBigram,
    Score,
    SelectedDecoder,
)
from llmcy.reference.fixtures import Documents
from llmcy.reference.text import record
from llmcy.reference.training import MeasuredTraining

__all__ = ["FORWARD", "TEST", "MeasuredEvaluation", "evaluation_report", "measure_evaluation"]

TEST: Documents = (
    ("test-a", (4, 3, 2, 1, 0, 4, 3, 2, 1)),
    ("test-b", (3, 2, 1, 0, 4, 3, 2)),
)
FORWARD: Documents = (  # the cycle of the training text: here the bigram model is better
    ("diagnostic-forward-a", (0, 1, 2, 3, 4, 0, 1, 2, 3)),
    ("diagnostic-forward-b", (2, 3, 4, 0, 1, 2, 3)),
)
ALPHA, BATCH_SIZE = 1.0, 4
CORPUS, SPLIT, TOKENIZER = "ch33-34-synthetic-v1", "fixed-role-split-v1", "literal-u32-v1"
TOLERANCE = 1e-12


@dataclass(frozen=True)
class MeasuredEvaluation:
    """The one look at the test documents, and what was seen around it.

    Attributes
    ----------
    report
        What the evaluator gave.
    baseline
        The bigram model.
    vocab_size
        Of the decoder.
    test_partition_rejected
        Training had refused a test epoch.
    openings_before, openings_after
        How often the gate had been opened.
    provenance_match
        Decoder, baseline and evaluator assert the same.
    baseline_unchanged
        Every probability of the bigram model had the same bits afterwards.
    """

    report: FinalEvaluationReport
    baseline: FrozenBigram
    vocab_size: int
    test_partition_rejected: bool
    openings_before: int
    openings_after: int
    provenance_match: bool
    baseline_unchanged: bool


def measure_evaluation(
    training: MeasuredTraining, documents: Documents = TEST
) -> MeasuredEvaluation:
    """Evaluate the selected decoder of a training run on ``documents``."""
    fixture, result = training.fixture, training.result
    provenance = EvaluationProvenance(CORPUS, SPLIT, TOKENIZER, fixture.context_length)
    vocab_size = fixture.model_config.vocab_size
    decoder = SelectedDecoder(
        result.selected_state,
        result.selected_model,
        result.selected_step,
        result.selected_validation_loss,
        Partition.VALIDATION,
        provenance,
    )
    bigram = BigramModel(vocab_size, ALPHA, [tokens for _, tokens in fixture.train])
    baseline = FrozenBigram(bigram, Partition.TRAIN, provenance)
    epoch = fixture.epoch(documents, Partition.TEST, BATCH_SIZE, BatchOrder.sequential())
    evaluator = FinalEvaluator(epoch, provenance)
    before, table = evaluator.access_count, _probabilities(bigram)
    report = evaluator.evaluate_once(decoder, baseline)
    return MeasuredEvaluation(
        report,
        baseline,
        vocab_size,
        training.test_partition_rejected,
        before,
        evaluator.access_count,
        provenance_match=decoder.provenance == baseline.provenance == report.provenance,
        baseline_unchanged=_probabilities(bigram) == table,
    )


def evaluation_report(measured: MeasuredEvaluation) -> str:
    """All lines of the report, each ending in a newline."""
    report, bigram = measured.report, measured.baseline.model
    openings = measured.openings_before, measured.openings_after
    unchanged = report.parameters_unchanged and report.gradients_unchanged
    rejected = measured.test_partition_rejected
    lines = [
        record(
            "selection",
            step=report.selected_step,
            validation_loss=report.selected_validation_loss,
            criterion=f"{Partition.VALIDATION.label}-only",
            test_partition_rejected=rejected,
        ),
        record(
            "provenance",
            corpus=report.provenance.corpus,
            split=report.provenance.split,
            tokenizer=report.provenance.tokenizer,
            vocabulary=measured.vocab_size,
            context=report.provenance.context,
        ),
        record(
            "baseline",
            alpha=bigram.alpha,
            fitted_partition=measured.baseline.partition.label,
            documents=bigram.document_count,
            transitions=bigram.transition_count,
            frozen=measured.baseline_unchanged,
        ),
        record(
            "test",
            documents=len(report.document_ids),
            windows=report.window_count,
            batches=report.batch_count,
            targets=report.slot_count,
            gate_openings_before=openings[0],
            gate_openings_after=openings[1],
            fingerprint=report.fingerprint,
        ),
        record(
            "decoder",
            mean_nll=report.decoder.mean_nll,
            perplexity=report.decoder.perplexity,
            total_nll=report.decoder.total_nll,
            graphs=report.recorded_graphs,
            parameters_unchanged=report.parameters_unchanged,
            gradients_unchanged=report.gradients_unchanged,
        ),
        record(
            "bigram",
            mean_nll=report.bigram.mean_nll,
            perplexity=report.bigram.perplexity,
            total_nll=report.bigram.total_nll,
        ),
        record(
            "comparison",
            lower_loss="selected-decoder" if report.decoder_has_lower_loss else "frozen-bigram",
            gap=report.loss_gap,
            same_targets=report.decoder.target_count
            == report.bigram.target_count
            == report.slot_count,
        ),
        record(
            "evidence",
            scope="fixed-fixture-regression",
            within_run_selection_isolated=rejected
            and openings == (0, 1)
            and report.recorded_graphs == 0
            and unchanged,
            fixture_selected_for_ordering=True,
            independent_generalization_estimate=False,
            architecture_superiority_evidence=False,
        ),
        record(
            "proof",
            token_weighted=_weighted(report.decoder) and _weighted(report.bigram),
            provenance_assertions_match=measured.provenance_match,
            selection_closed=rejected,
            report_version=report.version,
        ),
        "next=write-down-what-was-evaluated",
    ]
    return "\n".join(lines) + "\n"


def _weighted(score: Score) -> bool:
    return abs(score.total_nll / score.target_count - score.mean_nll) <= TOLERANCE


def _probabilities(model: BigramModel) -> list[float]:
    ids = range(model.vocab_size)
    return [model.probability(first, second) for first in ids for second in ids]
