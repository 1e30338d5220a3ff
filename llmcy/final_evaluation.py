"""The final evaluation: one look at the test partition, and everything that must hold before it.

The evaluator opens its gate once.  All that can be checked without looking at a test token is
checked first and may be repeated; once the gate has closed behind an attempt, no later failure
opens it again.  The one use belongs to one evaluator object: it is a reminder, not a record of
what anybody has ever looked at.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from llmcy import kernels
from llmcy.bigram import BigramModel, score_probabilities
from llmcy.checksum import OFFSET_BASIS, fnv1a64, label
from llmcy.config import ModelConfig
from llmcy.data import Batch, MiniBatchEpoch, Partition
from llmcy.errors import FinalEvaluationError, MetricError, TrainerError
from llmcy.evaluate import evaluate_no_grad
from llmcy.model import Decoder
from llmcy.state import DecoderModelState

__all__ = [
    "EvaluationProvenance",
    "FinalEvaluationReport",
    "FinalEvaluator",
    "FrozenBigram",
    "Score",
    "SelectedDecoder",
]

LN_2 = 0.6931471805599453  # nearest float64 to the natural logarithm of 2
REPORT_VERSION = 1


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


@dataclass(frozen=True)
class Score:
    """How one model did on the test windows, in nats a window slot.

    ``bits_per_byte`` is the total over the bytes of text that the slots stand for and ln 2; None
    when the number of bytes is not known.
    """

    total_nll: float
    target_count: int
    mean_nll: float
    perplexity: float
    bits_per_byte: float | None


@dataclass(frozen=True)
class FinalEvaluationReport:
    """What the one look at the test partition showed.

    Attributes
    ----------
    selected_step, selected_validation_loss, provenance
        Of the decoder.
    document_ids
        Test documents in the order they were first seen.
    fingerprint
        FNV-1a over every row: document id, 0xff, start (64 bits), then input and target of each
        slot (32 bits each), little-endian.
    window_count, batch_count, slot_count
        A slot is one position of one window.
    transition_count
        Different (document, position of the target): what the slots stand for without overlap.
    transition_multiplicity_counts
        Entry m - 1: how many transitions lie in m slots.
    decoder, bigram
        Scores on the same slots in the same order.
    access_count, recorded_graphs, parameters_unchanged, gradients_unchanged
        What was watched.
    """

    version: int
    selected_step: int
    selected_validation_loss: float
    provenance: EvaluationProvenance
    document_ids: tuple[str, ...]
    fingerprint: str
    window_count: int
    batch_count: int
    slot_count: int
    transition_count: int
    transition_multiplicity_counts: tuple[int, ...]
    decoder: Score
    bigram: Score
    access_count: int
    recorded_graphs: int
    parameters_unchanged: bool
    gradients_unchanged: bool

    @property
    def loss_gap(self) -> float:
        """Mean loss of the bigram model minus that of the decoder."""
        return self.bigram.mean_nll - self.decoder.mean_nll

    @property
    def decoder_has_lower_loss(self) -> bool:
        """Strictly lower than the bigram model's."""
        return self.decoder.mean_nll < self.bigram.mean_nll

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, the two derived ones included."""
        return asdict(self) | {
            "document_ids": list(self.document_ids),
            "transition_multiplicity_counts": list(self.transition_multiplicity_counts),
            "loss_gap": self.loss_gap,
            "decoder_has_lower_loss": self.decoder_has_lower_loss,
        }


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
        seen = _Inspection(self._epoch, vocab_size)
        evaluation = _watched_evaluation(decoder.model, self._epoch)
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
        if not _is_state_of(decoder.state, decoder.model):
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


class _Inspection:
    """Every test row looked at once: ids, fingerprint, and how often each transition appears."""

    def __init__(self, epoch: MiniBatchEpoch, vocab_size: int) -> None:
        state, self.slot_count = OFFSET_BASIS, 0
        documents: dict[str, None] = {}
        transitions: list[NDArray[np.int64]] = []
        for index, batch in enumerate(epoch.batches):
            _check_batch(index, batch, vocab_size)
            pairs = np.stack([batch.inputs, batch.targets], axis=-1).astype("<u4")
            for row, place in enumerate(batch.provenance):
                documents[place.document_id] = None
                head = place.document_id.encode() + b"\xff" + struct.pack("<Q", place.start)
                state = fnv1a64(head + pairs[row].tobytes(), state)
                positions = place.start + 1 + np.arange(batch.context_length)
                owner = np.full(batch.context_length, place.document_index)
                transitions.append(np.stack([owner, positions], axis=1))
            self.slot_count += batch.token_count
        self.fingerprint = label(state)
        self.document_ids = tuple(documents)
        _, multiplicity = np.unique(np.concatenate(transitions), axis=0, return_counts=True)
        self.transition_count = len(multiplicity)
        self.multiplicities = tuple(np.bincount(multiplicity)[1:].tolist())


def _check_batch(index: int, batch: Batch, vocab_size: int) -> None:
    inputs, targets = batch.inputs.reshape(-1), batch.targets.reshape(-1)
    if inputs.size != targets.size:
        raise FinalEvaluationError(
            "TargetAlignmentMismatch",
            f"batch {index} has {inputs.size} inputs and {targets.size} targets",
            batch=index,
            inputs=inputs.size,
            targets=targets.size,
        )
    wrong = (inputs < 0) | (inputs >= vocab_size)
    outside = np.flatnonzero(wrong | (targets < 0) | (targets >= vocab_size))
    if outside.size:
        position = int(outside[0])
        kind, what, ids = (
            ("InputTokenOutOfRange", "input", inputs)
            if wrong[position]
            else ("TargetTokenOutOfRange", "target", targets)
        )
        raise FinalEvaluationError(
            kind,
            f"batch {index}, position {position}: {what} {int(ids[position])} is outside the "
            f"vocabulary of {vocab_size}",
            batch=index,
            position=position,
            id=int(ids[position]),
            vocabulary_size=vocab_size,
        )


def _watched_evaluation(model: Decoder, epoch: MiniBatchEpoch) -> Any:
    """The graph-free evaluation, with bits of parameters and gradients compared around it."""
    parameters, gradients = _parameter_bits(model), _gradient_bits(model)
    try:
        evaluation = evaluate_no_grad(model, epoch)
    except TrainerError as error:
        raise FinalEvaluationError("Trainer", str(error), cause=error) from error
    if evaluation.recorded_graphs:
        raise FinalEvaluationError(
            "GraphRecorded",
            f"{evaluation.recorded_graphs} losses were recorded",
            count=evaluation.recorded_graphs,
        )
    if _parameter_bits(model) != parameters:
        raise FinalEvaluationError("DecoderParameterChanged", "a parameter has changed meanwhile")
    if _gradient_bits(model) != gradients:
        raise FinalEvaluationError("DecoderGradientChanged", "a gradient has changed meanwhile")
    return evaluation


def _parameter_bits(model: Decoder) -> list[bytes]:
    return [hashlib.blake2b(p.data.data).digest() for _, p in model.named_parameters()]


def _gradient_bits(model: Decoder) -> list[bytes]:
    bits = []
    for name, parameter in model.named_parameters():
        if parameter.grad_is_zero:
            bits.append(b"zero")
            continue
        gradient = parameter.grad
        if gradient is None:
            raise FinalEvaluationError(
                "MissingGradient", f"parameter {name!r} has no gradient to watch", name=name
            )
        bits.append(hashlib.blake2b(gradient.data).digest())
    return bits


def _is_state_of(state: DecoderModelState, model: Decoder) -> bool:
    """Whether configuration, names, shapes and every bit agree."""
    named = model.named_parameters()
    held = state.named_arrays()
    return (
        _config_bits(state.config) == _config_bits(model.config)
        and [name for name, _ in held] == [name for name, _ in named]
        and all(
            array.shape == parameter.shape and array.tobytes() == parameter.data.tobytes()
            for (_, array), (_, parameter) in zip(held, named, strict=True)
        )
    )


def _config_bits(config: ModelConfig) -> tuple[Any, ...]:
    return tuple(
        struct.pack("<d", value) if isinstance(value, float) else value
        for value in asdict(config).values()
    )
