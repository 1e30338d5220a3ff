"""The gate: what is checked in front of it, what happens behind it."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from llmcy import kernels
from llmcy.bigram import BigramModel, score_probabilities
from llmcy.data import MiniBatchEpoch, Partition
from llmcy.errors import FinalEvaluationError, MetricError
from llmcy.final_evaluation.inspection import Inspection
from llmcy.final_evaluation.provenance import (
    EvaluationProvenance,
    FrozenBigram,
    SelectedDecoder,
)
from llmcy.final_evaluation.report import REPORT_VERSION, FinalEvaluationReport, Score
from llmcy.final_evaluation.watching import is_state_of, watched_evaluation

__all__ = ["FinalEvaluator"]

LN_2 = 0.6931471805599453  # nearest float64 to the natural logarithm of 2


class FinalEvaluator:
    """A gate in front of test windows that opens once.

    Parameters
    ----------
    epoch
        Windows of the test partition.
    provenance
        What both models must assert as well.
    target_byte_count
        Bytes of text that the targets stand for, for bits per byte.

    Raises
    ------
    FinalEvaluationError
        ``WrongTestPartition``, ``EmptyTestEpoch``, ``EpochContextMismatch``.
    """

    __slots__ = ("_access_count", "_bytes", "_epoch", "_provenance")

    def __init__(
        self,
        epoch: MiniBatchEpoch,
        provenance: EvaluationProvenance,
        *,
        target_byte_count: int | None = None,
    ) -> None:
        if epoch.partition is not Partition.TEST:
            raise FinalEvaluationError(
                "WrongTestPartition",
                f"the final evaluation is for test windows, not for {epoch.partition}",
                actual=epoch.partition,
            )
        if epoch.window_count == 0:
            raise FinalEvaluationError("EmptyTestEpoch", "the test epoch has no window")
        if epoch.context_length != provenance.context:
            raise FinalEvaluationError(
                "EpochContextMismatch",
                f"the epoch has windows of {epoch.context_length} tokens, "
                f"{provenance.context} are asserted",
                expected=provenance.context,
                actual=epoch.context_length,
            )
        self._epoch = epoch
        self._provenance = provenance
        self._bytes = target_byte_count
        self._access_count = 0

    @property
    def access_count(self) -> int:
        """How often the gate was opened: 0 or 1."""
        return self._access_count

    def __copy__(self) -> NoReturn:
        raise FinalEvaluationError("NotCopyable", "a copy of an evaluator would be a second use")

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self.__copy__()

    def __reduce__(self) -> NoReturn:
        self.__copy__()

    def evaluate_once(
        self, decoder: SelectedDecoder, bigram: FrozenBigram
    ) -> FinalEvaluationReport:
        """Score both models on the test windows.

        Raises
        ------
        FinalEvaluationError
            Before the gate, so that another attempt can follow: ``AlreadyEvaluated``,
            ``ProvenanceMismatch``, ``SelectedStateMismatch``, ``ModelContextMismatch``,
            ``VocabularyMismatch``, in this order.  Behind it: ``TargetAlignmentMismatch``,
            ``InputTokenOutOfRange``, ``TargetTokenOutOfRange``, ``MissingGradient``, ``Trainer``,
            ``GraphRecorded``, ``DecoderParameterChanged``, ``DecoderGradientChanged``,
            ``NonFiniteScore``, ``Bigram``, ``Metric``, ``TargetCountMismatch``.
        """
        self._check_before(decoder, bigram)
        self._access_count = 1
        vocab_size = decoder.model.config.vocab_size
        seen = Inspection(self._epoch, vocab_size)
        evaluation = watched_evaluation(decoder.model, self._epoch)
        scored = self._score(
            "decoder", evaluation.loss * float(evaluation.target_count),
            evaluation.target_count, evaluation.loss,
        )  # fmt: skip
        baseline = self._score_bigram(bigram.model)
        if not seen.slot_count == scored.target_count == baseline.target_count:
            raise FinalEvaluationError(
                "TargetCountMismatch",
                f"{seen.slot_count} slots, but the decoder scored {scored.target_count} and the "
                f"bigram model {baseline.target_count}",
                expected=seen.slot_count,
                decoder=scored.target_count,
                bigram=baseline.target_count,
            )
        return FinalEvaluationReport(
            version=REPORT_VERSION,
            selected_step=decoder.step,
            selected_validation_loss=decoder.validation_loss,
            provenance=self._provenance,
            document_ids=seen.document_ids,
            fingerprint=seen.fingerprint,
            window_count=self._epoch.window_count,
            batch_count=self._epoch.batch_count,
            slot_count=seen.slot_count,
            transition_count=seen.transition_count,
            transition_multiplicity_counts=seen.multiplicities,
            decoder=scored,
            bigram=baseline,
            access_count=self._access_count,
            recorded_graphs=evaluation.recorded_graphs,
            parameters_unchanged=True,  # anything else was an error
            gradients_unchanged=True,
        )

    # ------------------------------------------------------------------ in front of the gate
    def _check_before(self, decoder: SelectedDecoder, bigram: FrozenBigram) -> None:
        if self._access_count:
            raise FinalEvaluationError(
                "AlreadyEvaluated", "this evaluator has looked at the test partition already"
            )
        for who, asserted in (("decoder", decoder.provenance), ("bigram", bigram.provenance)):
            for field in ("corpus", "split", "tokenizer", "context"):
                mine, theirs = getattr(self._provenance, field), getattr(asserted, field)
                if mine != theirs:
                    raise FinalEvaluationError(
                        "ProvenanceMismatch",
                        f"the {who} asserts {field} {theirs!r}, the evaluation {mine!r}",
                        field=field,
                    )
        if not is_state_of(decoder.state, decoder.model):
            raise FinalEvaluationError(
                "SelectedStateMismatch", "the model is not in the state that was selected"
            )
        config = decoder.model.config
        if config.max_seq_len != self._provenance.context:
            raise FinalEvaluationError(
                "ModelContextMismatch",
                f"the model holds {config.max_seq_len} positions, "
                f"{self._provenance.context} are asserted",
                expected=self._provenance.context,
                actual=config.max_seq_len,
            )
        if config.vocab_size != bigram.model.vocab_size:
            raise FinalEvaluationError(
                "VocabularyMismatch",
                f"the decoder has {config.vocab_size} token ids, the bigram model "
                f"{bigram.model.vocab_size}",
                decoder=config.vocab_size,
                bigram=bigram.model.vocab_size,
            )

    # ------------------------------------------------------------------ scores
    def _score(self, who: str, total: float, count: int, mean: float) -> Score:
        perplexity = float(kernels.exp(np.array([mean]))[0])
        if not all(math.isfinite(value) for value in (total, mean, perplexity)):
            raise FinalEvaluationError(
                "NonFiniteScore",
                f"{who}: mean loss {mean!r}, total {total!r}, perplexity {perplexity!r}",
                model=who,
                mean_nll=mean,
            )
        bits = total / float(self._bytes) / LN_2 if self._bytes else None
        return Score(total, count, mean, perplexity, bits)

    def _score_bigram(self, model: BigramModel) -> Score:
        pieces: list[NDArray[np.float64]] = []
        for batch in self._epoch.batches:
            try:
                pieces.append(model.probabilities(batch.inputs, batch.targets).reshape(-1))
            except MetricError as error:
                raise FinalEvaluationError("Bigram", str(error), cause=error) from error
        try:
            found = score_probabilities(np.concatenate(pieces))
        except MetricError as error:
            raise FinalEvaluationError("Metric", str(error), cause=error) from error
        return self._score("bigram", found.total_nll, found.target_count, found.mean_nll)
