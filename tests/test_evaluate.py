"""Measuring without a trace."""

import math
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from llmcy import ops
from llmcy.data import BatchOrder, Partition
from llmcy.errors import TrainerError
from llmcy.evaluate import Evaluation, evaluate_no_grad
from llmcy.model import Decoder
from llmcy.reference.fixtures import PUBLISHED, wide
from llmcy.state import DecoderModelState
from llmcy.tape import Tensor, is_recording, no_grad


def hexbits(value: float) -> str:
    return f"{np.float64(value).view(np.uint64):016x}"


@pytest.mark.feature("A10", "B21", "B53")
def test_the_report_of_an_evaluation() -> None:
    model = PUBLISHED.model()
    validation = evaluate_no_grad(model, PUBLISHED.validation_epoch())
    assert validation == Evaluation(validation.loss, 28, 4, 0)
    assert hexbits(validation.loss) == "3ffeb0d06616f846"
    train = evaluate_no_grad(model, PUBLISHED.train_evaluation_epoch())
    assert train == Evaluation(train.loss, 40, 4, 0)
    assert hexbits(train.loss) == "4000c297edddac56"


@pytest.mark.feature("A10", "A30", "D04")
def test_batches_are_weighted_by_their_targets() -> None:
    model, epoch = PUBLISHED.model(), PUBLISHED.validation_epoch()
    assert [batch.width for batch in epoch.batches] == [4, 4, 4, 2]
    with no_grad():
        losses = [model.loss(b.inputs, b.targets).item() for b in epoch.batches]
    weighted = total = 0.0
    for loss, batch in zip(losses, epoch.batches, strict=True):
        weighted, total = weighted + loss * batch.token_count, total + batch.token_count
    plain = sum(losses) / 4.0
    measured = evaluate_no_grad(model, epoch).loss
    assert measured == weighted / total
    assert abs(measured - plain) > 1e-3


@pytest.mark.feature("A18", "B12")
def test_nothing_changes() -> None:
    model, epoch = PUBLISHED.model(), PUBLISHED.validation_epoch()
    batch = PUBLISHED.update_epoch().batches[0]
    model.loss(batch.inputs, batch.targets).backward()
    state = DecoderModelState.snapshot(model)
    gradients = [p.grad.tobytes() for _, p in model.named_parameters()]
    revisions = [p.revision for _, p in model.named_parameters()]
    first = evaluate_no_grad(model, epoch)
    assert evaluate_no_grad(model, epoch) == first
    assert state.equal_bits(DecoderModelState.snapshot(model))
    assert [p.grad.tobytes() for _, p in model.named_parameters()] == gradients
    assert [p.revision for _, p in model.named_parameters()] == revisions
    assert is_recording()


def test_any_partition_can_be_measured() -> None:
    epoch = PUBLISHED.epoch([("t", range(5))], Partition.TEST, 2, BatchOrder.sequential())
    assert evaluate_no_grad(PUBLISHED.model(), epoch).target_count == 6


@pytest.mark.feature("B17")
@pytest.mark.parametrize(
    ("partition", "role"),
    [
        (Partition.TRAIN, "TrainEvaluation"),
        (Partition.VALIDATION, "ValidationSelection"),
        (Partition.TEST, "TrainEvaluation"),
    ],
)
def test_an_empty_epoch(partition: Partition, role: str) -> None:
    epoch = PUBLISHED.epoch([("short", [1, 2])], partition, 2, BatchOrder.sequential())
    with pytest.raises(TrainerError) as caught:
        evaluate_no_grad(PUBLISHED.model(), epoch)
    assert (caught.value.kind, caught.value.role) == ("EmptyEpoch", role)


TRUE_LOSS = Decoder.loss


def with_loss(monkeypatch: pytest.MonkeyPatch, loss: Callable[..., Tensor]) -> Decoder:
    """A model whose loss is replaced."""
    monkeypatch.setattr(Decoder, "loss", loss)
    return PUBLISHED.model()


@pytest.mark.feature("B18")
def test_a_tracked_loss_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def tracked(*arguments: Any) -> Tensor:
        calls.append(1)
        loss = TRUE_LOSS(*arguments)
        return Tensor(loss.data, requires_grad=len(calls) == 3)

    model = with_loss(monkeypatch, tracked)
    with pytest.raises(TrainerError) as caught:
        evaluate_no_grad(model, PUBLISHED.validation_epoch())
    assert caught.value.kind == "ValidationRecordedGraph"
    assert (caught.value.partition, caught.value.batch) == (Partition.VALIDATION, 2)


@pytest.mark.feature("B19")
@pytest.mark.parametrize("value", [1.0, -0.0])
def test_a_changed_gradient_bit_is_an_error(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    def meddling(model: Decoder, *batch: Any) -> Tensor:
        parameter = model.final_norm.gain
        gradient = np.zeros(parameter.shape)
        gradient[-1] = value
        parameter.grad = gradient
        return TRUE_LOSS(model, *batch)

    model = with_loss(monkeypatch, meddling)
    with pytest.raises(TrainerError) as caught:
        evaluate_no_grad(model, PUBLISHED.validation_epoch())
    assert caught.value.kind == "ValidationChangedGradient"


@pytest.mark.feature("B20")
def test_a_mean_that_is_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    for number, kind, fields in (
        (np.array(1e308), "NonFiniteLoss", {"value": math.inf}),
        (np.zeros(2), "NonScalarLoss", {"shape": (2,)}),
    ):
        model = with_loss(monkeypatch, lambda *_, number=number: Tensor(number))
        with pytest.raises(TrainerError) as caught:
            evaluate_no_grad(model, PUBLISHED.validation_epoch())
        assert caught.value.kind == kind
        for name, value in fields.items():
            assert getattr(caught.value, name) == value
        monkeypatch.undo()


@pytest.mark.feature("B16")
def test_finite_checks_run_while_measuring() -> None:
    model = PUBLISHED.model()
    weight = model.blocks[0].ffn.gate.weight
    weight.assign(np.full(weight.shape, 1e308))
    with pytest.raises(TrainerError) as caught:
        evaluate_no_grad(model, PUBLISHED.validation_epoch())
    assert caught.value.kind == "Autodiff"
    assert caught.value.cause.kind == "NonFiniteValue"


def test_a_token_outside_the_vocabulary() -> None:
    epoch = PUBLISHED.epoch([("v", [0, 1, 9])], Partition.VALIDATION, 2, BatchOrder.sequential())
    with pytest.raises(TrainerError) as caught:
        evaluate_no_grad(PUBLISHED.model(), epoch)
    assert (caught.value.kind, caught.value.cause.kind) == ("Model", "TokenOutOfBounds")


@pytest.mark.feature("B53")
def test_the_number_depends_on_the_batch_size_in_its_last_bits() -> None:
    """Published for the final state: sizes 1; 2, 4, 5; 20."""
    state = PUBLISHED.train_decoder().final_state
    model = state.restore_independent_model()
    bits = {
        size: hexbits(
            evaluate_no_grad(
                model,
                PUBLISHED.epoch(
                    PUBLISHED.validation, Partition.VALIDATION, size, BatchOrder.sequential()
                ),
            ).loss
        )
        for size in (1, 2, 4, 5, 20)
    }
    assert [bits[s][-4:] for s in (1, 2, 4, 5, 20)] == ["d64f", "d651", "d651", "d651", "d64e"]


def test_measuring_keeps_no_batch_and_no_copy_of_the_gradients() -> None:
    fixture = wide(1.0)
    model = fixture.model()
    documents = [("v", [k % 11 for k in range(3000)])]
    epoch = fixture.epoch(documents, Partition.VALIDATION, 4, BatchOrder.sequential())
    for _, parameter in model.named_parameters():
        parameter.grad = np.ones(parameter.shape)
    evaluate_no_grad(model, epoch)
    peaks = []
    for count in (100, 1500):
        part = fixture.epoch(
            [("v", documents[0][1][: 2 * count])], Partition.VALIDATION, 4, BatchOrder.sequential()
        )
        tracemalloc.start()
        try:
            evaluate_no_grad(model, part)
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0]


def test_operations_record_again_afterwards() -> None:
    evaluate_no_grad(PUBLISHED.model(), PUBLISHED.validation_epoch())
    x = Tensor(np.ones(2), requires_grad=True)
    assert ops.scale(x, 2.0).requires_grad


@pytest.mark.feature("E01", "E02X")
def test_a_frozen_state_goes_to_the_test_evaluation() -> None:
    """Published for the selected state: reversed cycles are worse for it than forward ones."""
    sealed = PUBLISHED.train_decoder().selected_training_state
    bits = sealed.model.bit_pattern().tolist()
    model = sealed.model.restore_independent_model()
    assert DecoderModelState.snapshot(model).bit_pattern().tolist() == bits
    for documents, mean in (
        ([[4, 3, 2, 1, 0, 4, 3, 2, 1], [3, 2, 1, 0, 4, 3, 2]], "3ff9b90e0a65976f"),
        ([[0, 1, 2, 3, 4, 0, 1, 2, 3], [2, 3, 4, 0, 1, 2, 3]], "3ff43c0f5b76ca21"),
    ):
        named = list(zip(("test-a", "test-b"), documents, strict=True))
        epoch = PUBLISHED.epoch(named, Partition.TEST, 4, BatchOrder.sequential())
        measured = evaluate_no_grad(model, epoch)
        assert measured.target_count == 24
        assert hexbits(measured.loss) == mean
    assert sealed.model.bit_pattern().tolist() == bits
    assert DecoderModelState.snapshot(model).bit_pattern().tolist() == bits
