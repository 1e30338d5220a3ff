"""What must be said of the models before they are scored: where they come from, what chose them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from llmcy.bigram import BigramModel
from llmcy.data import Partition
from llmcy.errors import FinalEvaluationError
from llmcy.model import Decoder
from llmcy.state import DecoderModelState

__all__ = ["EvaluationProvenance", "FrozenBigram", "SelectedDecoder"]


@dataclass(frozen=True)
class EvaluationProvenance:
    """What somebody asserts about where a model or an epoch comes from.

    Parameters
    ----------
    corpus, split, tokenizer
        Texts, for example digests; nothing is derived from data.
    context
        Tokens of a window.

    Raises
    ------
    FinalEvaluationError
        ``EmptyProvenance`` for the first blank text, ``ZeroContextLength``.
    """

    corpus: str
    split: str
    tokenizer: str
    context: int

    def __post_init__(self) -> None:
        for field in ("corpus", "split", "tokenizer"):
            if not getattr(self, field).strip():
                raise FinalEvaluationError(
                    "EmptyProvenance", f"provenance: {field} is blank", field=field
                )
        if self.context <= 0:
            raise FinalEvaluationError(
                "ZeroContextLength", f"provenance: context must be at least 1, got {self.context}"
            )


@dataclass(frozen=True, eq=False)
class SelectedDecoder:
    """A decoder, the state it was selected with, and what selected it.

    Raises
    ------
    FinalEvaluationError
        ``WrongSelectionPartition`` unless validation data selected it, ``InvalidSelectionLoss``.
    """

    state: DecoderModelState
    model: Decoder
    step: int
    validation_loss: float
    partition: Partition
    provenance: EvaluationProvenance

    def __post_init__(self) -> None:
        if self.partition is not Partition.VALIDATION:
            raise FinalEvaluationError(
                "WrongSelectionPartition",
                f"a decoder is selected on validation data, not on {self.partition}",
                actual=self.partition,
            )
        if not math.isfinite(self.validation_loss) or self.validation_loss < 0.0:
            raise FinalEvaluationError(
                "InvalidSelectionLoss",
                f"a selection loss is finite and >= 0, got {self.validation_loss!r}",
                value=self.validation_loss,
            )


@dataclass(frozen=True, eq=False)
class FrozenBigram:
    """The baseline, fitted on training data.

    Raises
    ------
    FinalEvaluationError
        ``WrongBaselinePartition``, ``UnfittedBigram`` when it has seen no document.
    """

    model: BigramModel
    partition: Partition
    provenance: EvaluationProvenance

    def __post_init__(self) -> None:
        if self.partition is not Partition.TRAIN:
            raise FinalEvaluationError(
                "WrongBaselinePartition",
                f"a baseline is fitted on training data, not on {self.partition}",
                actual=self.partition,
            )
        if self.model.document_count == 0:
            raise FinalEvaluationError("UnfittedBigram", "the bigram model has seen no document")
