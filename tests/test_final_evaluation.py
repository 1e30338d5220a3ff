"""The final evaluation: published numbers, the gate, every check in its order."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from llmcy import final_evaluation
from llmcy.bigram import BigramModel
from llmcy.data import BatchOrder, MiniBatchEpoch, Partition
from llmcy.errors import FinalEvaluationError, MetricError, TrainerError
from llmcy.evaluate import Evaluation
from llmcy.final_evaluation import (
    EvaluationProvenance,
    FinalEvaluator,
    FrozenBigram,
    SelectedDecoder,
    watching,
)
from llmcy.model import Decoder
from llmcy.reference.fixtures import PUBLISHED
from llmcy.state import DecoderModelState
from llmcy.trainer import TrainingResult

PROVENANCE = EvaluationProvenance("corpus", "split", "tokenizer", 2)
TEST = (("test-a", (4, 3, 2, 1, 0, 4, 3, 2, 1)), ("test-b", (3, 2, 1, 0, 4, 3, 2)))
FORWARD = (
    ("diagnostic-forward-a", (0, 1, 2, 3, 4, 0, 1, 2, 3)),
    ("diagnostic-forward-b", (2, 3, 4, 0, 1, 2, 3)),
)


@pytest.fixture(scope="module")
def trained() -> TrainingResult:
    return PUBLISHED.train_decoder()


def epoch(documents: Any = TEST, partition: Partition = Partition.TEST) -> MiniBatchEpoch:
    return PUBLISHED.epoch(documents, partition, 4, BatchOrder.sequential())


def selected(trained: TrainingResult, **changes: Any) -> SelectedDecoder:
    fields: dict[str, Any] = {
        "state": trained.selected_state,
        "model": trained.selected_state.restore_independent_model(),
        "step": trained.selected_step,
        "validation_loss": trained.selected_validation_loss,
        "partition": Partition.VALIDATION,
        "provenance": PROVENANCE,
    }
    return SelectedDecoder(**(fields | changes))


def bigram(vocab_size: int = 5, **changes: Any) -> FrozenBigram:
    fields: dict[str, Any] = {
        "model": BigramModel(vocab_size, 1.0, [tokens for _, tokens in PUBLISHED.train]),
        "partition": Partition.TRAIN,
        "provenance": PROVENANCE,
    }
    return FrozenBigram(**(fields | changes))


def hexbits(value: float) -> str:
    return f"{np.float64(value).view(np.uint64):016x}"


PUBLISHED_SCORES = [
    (TEST, "dac4bb4d76beeb59", "3fe42138b775585e",
     ("3ff9b90e0a65976f", "4013f7011d9776c6", "40434aca87cc3193"),
     ("4001e4d5331021cf", "4022b9b51d95518d", "404ad73fcc9832b6")),
    (FORWARD, "ccaa919d3dec4081", "bfe6afaa518e941b",
     ("3ff43c0f5b76ca21", "400c55cf40cd2fb3", "403e5a1709322f32"),
     ("3fe1c874655f0027", "3ffbe4204f108bb6", "402aacae980e803b")),
]  # fmt: skip


@pytest.mark.feature("E01")
@pytest.mark.parametrize(("documents", "label", "gap", "decoder", "baseline"), PUBLISHED_SCORES)
def test_the_published_scores(
    isa: str,
    trained: TrainingResult,
    documents: Any,
    label: str,
    gap: str,
    decoder: tuple[str, ...],
    baseline: tuple[str, ...],
) -> None:
    evaluator = FinalEvaluator(epoch(documents), PROVENANCE, target_byte_count=48)
    assert evaluator.access_count == 0
    report = evaluator.evaluate_once(selected(trained), bigram())
    assert evaluator.access_count == report.access_count == 1
    assert report.fingerprint == f"fnv1a64:{label}"
    for score, bits in ((report.decoder, decoder), (report.bigram, baseline)):
        assert (
            hexbits(score.mean_nll), hexbits(score.perplexity), hexbits(score.total_nll)
        ) == bits  # fmt: skip
        assert score.target_count == 24
        assert abs(score.total_nll / score.target_count - score.mean_nll) <= 1e-12
        assert score.bits_per_byte == score.total_nll / 48 / np.log(2.0)
    assert hexbits(report.loss_gap) == gap
    assert report.decoder_has_lower_loss is (report.loss_gap > 0)
    assert report.decoder_has_lower_loss is (documents is TEST)  # the order reverses
    assert report.document_ids == tuple(name for name, _ in documents)
    assert (report.window_count, report.batch_count, report.slot_count) == (12, 3, 24)
    assert (report.transition_count, report.transition_multiplicity_counts) == (14, (4, 10))
    assert sum(m * n for m, n in enumerate(report.transition_multiplicity_counts, start=1)) == 24
    assert (report.selected_step, hexbits(report.selected_validation_loss)) == (
        8, "3ff986566c06d651",
    )  # fmt: skip
    assert (report.version, report.provenance, report.recorded_graphs) == (1, PROVENANCE, 0)
    assert report.parameters_unchanged
    assert report.gradients_unchanged
    assert report.to_dict()["loss_gap"] == report.loss_gap


def test_the_gate_opens_once(trained: TrainingResult) -> None:
    evaluator = FinalEvaluator(epoch(), PROVENANCE)
    report = evaluator.evaluate_once(selected(trained), bigram())
    assert report.decoder.bits_per_byte is None
    with pytest.raises(FinalEvaluationError) as caught:
        evaluator.evaluate_once(selected(trained), bigram())
    assert caught.value.kind == "AlreadyEvaluated"
    assert evaluator.access_count == 1


@pytest.mark.feature("H08X")
def test_another_evaluator_over_the_same_windows_can_be_made(trained: TrainingResult) -> None:
    """The one use belongs to an object, not to history."""
    reports = [
        FinalEvaluator(epoch(), PROVENANCE).evaluate_once(selected(trained), bigram())
        for _ in range(2)
    ]
    assert reports[0] == reports[1]
    assert "belongs to one evaluator" in " ".join((final_evaluation.__doc__ or "").split())


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, pickle.dumps])
def test_an_evaluator_is_not_copied(make: Callable[[object], object]) -> None:
    with pytest.raises(FinalEvaluationError) as caught:
        make(FinalEvaluator(epoch(), PROVENANCE))
    assert caught.value.kind == "NotCopyable"


# ---------------------------------------------------------------------- what is asserted
@pytest.mark.parametrize(
    ("arguments", "kind", "field"),
    [
        ((" ", "", "", 0), "EmptyProvenance", "corpus"),
        (("c", "\t", "", 0), "EmptyProvenance", "split"),
        (("c", "s", "\n", 0), "EmptyProvenance", "tokenizer"),
        (("c", "s", "t", 0), "ZeroContextLength", None),
    ],
)
def test_provenance_says_something(arguments: Any, kind: str, field: str | None) -> None:
    with pytest.raises(FinalEvaluationError) as caught:
        EvaluationProvenance(*arguments)
    assert (caught.value.kind, caught.value.fields.get("field")) == (kind, field)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"partition": Partition.TEST, "validation_loss": -1.0}, "WrongSelectionPartition"),
        ({"partition": Partition.TRAIN}, "WrongSelectionPartition"),
        ({"validation_loss": -0.1}, "InvalidSelectionLoss"),
        ({"validation_loss": float("nan")}, "InvalidSelectionLoss"),
        ({"validation_loss": float("inf")}, "InvalidSelectionLoss"),
    ],
)
def test_a_decoder_was_selected(
    trained: TrainingResult, changes: dict[str, Any], kind: str
) -> None:
    with pytest.raises(FinalEvaluationError) as caught:
        selected(trained, **changes)
    assert caught.value.kind == kind


def test_a_baseline_was_fitted() -> None:
    empty = BigramModel(5, 1.0, [])
    with pytest.raises(FinalEvaluationError) as caught:
        bigram(partition=Partition.TEST, model=empty)
    assert (caught.value.kind, caught.value.actual) == ("WrongBaselinePartition", Partition.TEST)
    with pytest.raises(FinalEvaluationError) as caught:
        bigram(model=empty)
    assert caught.value.kind == "UnfittedBigram"


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ((epoch((), Partition.TRAIN), replace(PROVENANCE, context=3)), "WrongTestPartition"),
        ((epoch(()), replace(PROVENANCE, context=3)), "EmptyTestEpoch"),
        ((epoch(), replace(PROVENANCE, context=3)), "EpochContextMismatch"),
    ],
)
def test_an_evaluator_wants_test_windows(given: Any, kind: str) -> None:
    with pytest.raises(FinalEvaluationError) as caught:
        FinalEvaluator(*given)
    assert caught.value.kind == kind


# ---------------------------------------------------------------------- in front of the gate
def other_context(trained: TrainingResult) -> SelectedDecoder:
    model = trained.selected_state.restore_independent_model()
    config = replace(model.config, max_seq_len=3)
    wider = Decoder(config, [parameter for _, parameter in model.named_parameters()])
    return selected(trained, model=wider, state=DecoderModelState.snapshot(wider))


def touched(trained: TrainingResult) -> SelectedDecoder:
    found = selected(trained)
    gain = found.model.final_norm.gain
    gain.assign(gain.data * np.nextafter(1.0, 2.0))
    return found


def other_epsilon(trained: TrainingResult) -> SelectedDecoder:
    model = trained.selected_state.restore_independent_model()
    config = replace(model.config, rms_norm_eps=1e-7)
    return selected(
        trained, model=Decoder(config, [parameter for _, parameter in model.named_parameters()])
    )


def with_provenance(field: str) -> EvaluationProvenance:
    return replace(PROVENANCE, **{field: 3 if field == "context" else "another"})


BEFORE: list[tuple[Callable[[TrainingResult], tuple[SelectedDecoder, FrozenBigram]], str, Any]] = [
    *(
        (lambda t, f=f: (selected(t, provenance=with_provenance(f)), bigram(6)),
         "ProvenanceMismatch", f)
        for f in ("corpus", "split", "tokenizer", "context")
    ),
    (lambda t: (touched(t), bigram(provenance=with_provenance("split"))),
     "ProvenanceMismatch", "split"),
    (lambda t: (touched(t), bigram(6)), "SelectedStateMismatch", None),
    (lambda t: (other_epsilon(t), bigram(6)), "SelectedStateMismatch", None),
    (lambda t: (other_context(t), bigram(6)), "ModelContextMismatch", None),
    (lambda t: (selected(t), bigram(6)), "VocabularyMismatch", None),
]  # fmt: skip


@pytest.mark.parametrize(("prepare", "kind", "field"), BEFORE)
def test_a_failure_in_front_of_the_gate_leaves_it_closed(
    trained: TrainingResult,
    prepare: Callable[[TrainingResult], tuple[SelectedDecoder, FrozenBigram]],
    kind: str,
    field: str | None,
) -> None:
    evaluator = FinalEvaluator(epoch(), PROVENANCE)
    with pytest.raises(FinalEvaluationError) as caught:
        evaluator.evaluate_once(*prepare(trained))
    assert (caught.value.kind, caught.value.fields.get("field")) == (kind, field)
    assert evaluator.access_count == 0
    assert evaluator.evaluate_once(selected(trained), bigram()).access_count == 1


# ---------------------------------------------------------------------- behind the gate
def failing(
    trained: TrainingResult, kind: str, windows: MiniBatchEpoch | None = None, **changes: Any
) -> FinalEvaluationError:
    """The error of an evaluation whose gate has closed all the same."""
    evaluator = FinalEvaluator(windows or epoch(), PROVENANCE)
    with pytest.raises(FinalEvaluationError) as caught:
        evaluator.evaluate_once(
            changes.get("decoder") or selected(trained), changes.get("baseline") or bigram()
        )
    assert caught.value.kind == kind
    assert evaluator.access_count == 1
    with pytest.raises(FinalEvaluationError) as again:
        evaluator.evaluate_once(selected(trained), bigram())
    assert again.value.kind == "AlreadyEvaluated"
    return caught.value


def test_tokens_are_inside_the_vocabulary(trained: TrainingResult) -> None:
    # the last token of a document is a target only; in the middle the input is met first
    error = failing(trained, "TargetTokenOutOfRange", epoch((("t", (4, 3, 7)),)))
    assert (error.batch, error.position, error.id, error.vocabulary_size) == (0, 1, 7, 5)
    error = failing(trained, "InputTokenOutOfRange", epoch((("t", (9, 3, 2)),)))
    assert (error.batch, error.position, error.id) == (0, 0, 9)
    error = failing(trained, "TargetTokenOutOfRange", epoch((("t", (4, 9, 2)),)))
    assert (error.position, error.id) == (0, 9)


def test_rows_are_aligned(trained: TrainingResult, monkeypatch: pytest.MonkeyPatch) -> None:
    real = MiniBatchEpoch.batch

    def shorter(self: MiniBatchEpoch, index: int) -> Any:
        batch = real(self, index)
        batch.targets = batch.targets[:, :1]
        return batch

    monkeypatch.setattr(MiniBatchEpoch, "batch", shorter)
    error = failing(trained, "TargetAlignmentMismatch")
    assert (error.batch, error.inputs, error.targets) == (0, 8, 4)


def test_a_failing_decoder(trained: TrainingResult) -> None:
    model = trained.selected_state.restore_independent_model()
    model.final_norm.gain.assign(np.full(4, 1.7e308))
    decoder = selected(trained, model=model, state=DecoderModelState.snapshot(model))
    error = failing(trained, "Trainer", decoder=decoder)
    assert isinstance(error.cause, TrainerError)


def stubbed(
    monkeypatch: pytest.MonkeyPatch, act: Callable[[Decoder], None], **changes: Any
) -> None:
    real = watching.evaluate_no_grad

    def evaluate(model: Decoder, windows: MiniBatchEpoch) -> Evaluation:
        found = real(model, windows)
        act(model)
        return replace(found, **changes)

    monkeypatch.setattr(watching, "evaluate_no_grad", evaluate)


def test_an_evaluation_that_leaves_traces(
    trained: TrainingResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(model: Decoder) -> None:
        gain = model.final_norm.gain
        gain.assign(gain.data * 2.0)

    def differentiate(model: Decoder) -> None:
        model.loss([[0, 1]], [[1, 2]]).backward()

    def nothing(model: Decoder) -> None:
        pass

    stubbed(monkeypatch, nothing, recorded_graphs=2)
    assert failing(trained, "GraphRecorded").count == 2
    monkeypatch.undo()
    stubbed(monkeypatch, change)
    failing(trained, "DecoderParameterChanged")
    monkeypatch.undo()
    stubbed(monkeypatch, differentiate)
    failing(trained, "DecoderGradientChanged")
    monkeypatch.undo()
    stubbed(monkeypatch, nothing, loss=1000.0)  # its perplexity is beyond float64
    error = failing(trained, "NonFiniteScore")
    assert (error.model, error.mean_nll) == ("decoder", 1000.0)
    monkeypatch.undo()
    stubbed(monkeypatch, nothing, target_count=23)
    error = failing(trained, "TargetCountMismatch")
    assert (error.expected, error.decoder, error.bigram) == (24, 23, 24)


def test_gradients_must_be_there_to_be_watched(trained: TrainingResult) -> None:
    decoder = selected(trained)
    decoder.model.final_norm.gain._grad = None
    assert failing(trained, "MissingGradient", decoder=decoder).name == "final_norm.gain"


def test_a_failing_baseline(trained: TrainingResult, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = MetricError("EmptyTargets", "nothing")

    def refuse(*_: Any) -> None:
        raise wrong

    monkeypatch.setattr(BigramModel, "probabilities", refuse)
    assert failing(trained, "Bigram").cause is wrong
    monkeypatch.setattr(BigramModel, "probabilities", lambda s, a, b: np.full(a.shape, 1.5))
    assert failing(trained, "Metric").cause.kind == "InvalidProbability"
    monkeypatch.setattr(BigramModel, "probabilities", lambda s, a, b: np.zeros(a.shape))
    error = failing(trained, "NonFiniteScore")
    assert (error.model, error.mean_nll) == ("bigram", float("inf"))


def test_gradients_that_are_there_are_left_alone(trained: TrainingResult) -> None:
    decoder = selected(trained)
    decoder.model.loss([[0, 1]], [[1, 2]]).backward()
    before = [p.grad.tobytes() for _, p in decoder.model.named_parameters()]
    FinalEvaluator(epoch(), PROVENANCE).evaluate_once(decoder, bigram())
    assert [p.grad.tobytes() for _, p in decoder.model.named_parameters()] == before


def test_the_baseline_reads_training_documents_only() -> None:
    class Documents:
        def of(self, partition: Partition) -> Any:
            assert partition is Partition.TRAIN
            return epoch(PUBLISHED.train, Partition.TRAIN).documents

    fitted = BigramModel.fit_training_partition(5, 1.0, Documents())  # type: ignore[arg-type]
    assert (fitted.document_count, fitted.transition_count) == (2, 22)
    assert fitted.probability(0, 1) == bigram().model.probability(0, 1)
