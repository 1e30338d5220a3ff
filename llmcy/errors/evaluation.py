"""Baselines, scores and the final evaluation."""

from __future__ import annotations

from llmcy.errors.base import LlmcyError

__all__ = [
    "FinalEvaluationError",
    "MetricError",
]


class MetricError(LlmcyError, ValueError):
    """Baselines and scores."""

    KINDS = {
        "EmptyVocabulary": (),
        "InvalidAlpha": ("value",),
        "TableTooLarge": ("vocab_size",),
        "TooManyDocuments": ("maximum",),
        "TokenOutOfRange": ("document", "position", "token_id", "vocab_size"),
        "TooManyTransitions": ("document", "maximum"),
        "EmptyTargets": (),
        "InvalidProbability": ("index", "probability"),
    }


class FinalEvaluationError(LlmcyError, ValueError):
    """The one look at the test partition."""

    KINDS = {
        "EmptyProvenance": ("field",),
        "ZeroContextLength": (),
        "WrongSelectionPartition": ("actual",),
        "InvalidSelectionLoss": ("value",),
        "WrongBaselinePartition": ("actual",),
        "UnfittedBigram": (),
        "WrongTestPartition": ("actual",),
        "EmptyTestEpoch": (),
        "EpochContextMismatch": ("expected", "actual"),
        "NotCopyable": (),
        "AlreadyEvaluated": (),
        "ProvenanceMismatch": ("field",),
        "SelectedStateMismatch": (),
        "ModelContextMismatch": ("expected", "actual"),
        "VocabularyMismatch": ("decoder", "bigram"),
        "TargetAlignmentMismatch": ("batch", "inputs", "targets"),
        "InputTokenOutOfRange": ("batch", "position", "id", "vocabulary_size"),
        "TargetTokenOutOfRange": ("batch", "position", "id", "vocabulary_size"),
        "MissingGradient": ("name",),
        "GraphRecorded": ("count",),
        "DecoderParameterChanged": (),
        "DecoderGradientChanged": (),
        "NonFiniteScore": ("model", "mean_nll"),
        "TargetCountMismatch": ("expected", "decoder", "bigram"),
        "Trainer": (),
        "Metric": (),
        "Bigram": (),
    }
