"""The plan, the checks before a run, and what a run promises."""

import dataclasses
import gc
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from llmcy.config import ModelConfig
from llmcy.data import BatchOrder, Partition
from llmcy.errors import OptimizerError, RangeError, TrainerError
from llmcy.model import Decoder
from llmcy.nn.module import Parameter
from llmcy.optim import AdamW
from llmcy.reference.fixtures import PUBLISHED, TrainingFixture, wide
from llmcy.tape import Tensor
from llmcy.trainer import (
    DecoderModelState,
    LearningRateSchedule,
    LossCheckpoint,
    TrainerConfig,
    TrainingResult,
    TrainingStep,
    earliest_minimum,
    train_decoder,
)

RATES = LearningRateSchedule([0.1, 0.1])
TRUE_LOSS = Decoder.loss


def run(fixture: TrainingFixture = PUBLISHED, **changes: Any) -> TrainingResult:
    """Train the fixture with some of the arguments exchanged."""
    arguments = {
        "model": changes.pop("model", None) or fixture.model(),
        "optimizer": changes.pop("optimizer", None) or fixture.optimizer(),
        "update_epoch": changes.pop("update_epoch", None) or fixture.update_epoch(),
        "train_evaluation_epoch": changes.pop("train_evaluation_epoch", None)
        or fixture.train_evaluation_epoch(),
        "validation_epoch": changes.pop("validation_epoch", None) or fixture.validation_epoch(),
        "config": changes.pop("config", None) or fixture.trainer_config(),
    }
    return train_decoder(**arguments, **changes)


def plan(rates: list[float], validation_steps: list[int] | None = None) -> TrainerConfig:
    steps = [0, len(rates)] if validation_steps is None else validation_steps
    return TrainerConfig(LearningRateSchedule(rates), steps, 0.35)


def epoch(documents: list[list[int]], partition: Partition, size: int = 2, **changes: int) -> Any:
    fixture = dataclasses.replace(PUBLISHED, **changes)
    named = [(f"d{k}", tokens) for k, tokens in enumerate(documents)]
    return fixture.epoch(named, partition, size, BatchOrder.sequential())


# --------------------------------------------------------------------------- the plan
PLAN_FAULTS: list[Any] = [
    *[
        pytest.param(
            "InvalidMaximumGradientNorm", {"value": c}, c, [0, 2], marks=pytest.mark.feature("B04")
        )
        for c in (0.0, -1.0, math.inf, -math.inf)
    ],
    pytest.param("InvalidMaximumGradientNorm", {}, math.nan, [0, 2]),
    pytest.param("EmptyValidationSteps", {}, 1.0, [], marks=pytest.mark.feature("B05")),
    pytest.param("ValidationMustStartAtZero", {"actual": 1}, 1.0, [1, 2],
                 marks=pytest.mark.feature("B06")),
    pytest.param("ValidationStepsNotIncreasing", {"previous": 1, "next": 1}, 1.0, [0, 1, 1, 2],
                 marks=pytest.mark.feature("B07")),
    pytest.param("ValidationStepsNotIncreasing", {"previous": 2, "next": 1}, 1.0, [0, 2, 1],
                 marks=pytest.mark.feature("B07")),
    pytest.param("ValidationStepOutOfRange", {"step": 3, "final_step": 2}, 1.0, [0, 3],
                 marks=pytest.mark.feature("B08")),
    pytest.param("ValidationMustEndAtFinalStep", {"expected": 2, "actual": 1}, 1.0, [0, 1],
                 marks=pytest.mark.feature("B09")),
    # several faults: the earlier check decides
    pytest.param("InvalidMaximumGradientNorm", {}, -1.0, [], marks=pytest.mark.feature("B10")),
    pytest.param("ValidationMustStartAtZero", {"actual": 9}, 1.0, [9, 9],
                 marks=pytest.mark.feature("B10")),
    pytest.param("ValidationStepOutOfRange", {"step": 3}, 1.0, [0, 3, 3],
                 marks=pytest.mark.feature("B10")),
    pytest.param("ValidationStepsNotIncreasing", {"next": 0}, 1.0, [0, 0],
                 marks=pytest.mark.feature("B10")),
]  # fmt: skip


@pytest.mark.feature("A06")
@pytest.mark.parametrize(("kind", "fields", "ceiling", "steps"), PLAN_FAULTS)
def test_a_bad_plan_is_refused(
    kind: str, fields: dict[str, object], ceiling: float, steps: list[int]
) -> None:
    with pytest.raises(TrainerError) as caught:
        TrainerConfig(RATES, steps, ceiling)
    assert caught.value.kind == kind
    for name, value in fields.items():
        assert getattr(caught.value, name) == value


@pytest.mark.feature("D02")
def test_a_list_without_the_final_step() -> None:
    schedule = LearningRateSchedule(PUBLISHED.rates)
    with pytest.raises(TrainerError) as caught:
        TrainerConfig(schedule, [0, 2, 4, 6], 0.35)
    assert caught.value.kind == "ValidationMustEndAtFinalStep"
    assert (caught.value.expected, caught.value.actual) == (8, 6)


@pytest.mark.feature("H03", "H05")
def test_a_regular_cadence() -> None:
    schedule = LearningRateSchedule.constant(0.1, 7)
    assert TrainerConfig.every(schedule, 3, 1.0).validation_steps == (0, 3, 6, 7)
    assert TrainerConfig.every(schedule, 7, 1.0).validation_steps == (0, 7)
    assert TrainerConfig.every(schedule, 100, 1.0).validation_steps == (0, 7)
    assert TrainerConfig.every(schedule, 1, 1.0).validation_steps == tuple(range(8))


@pytest.mark.parametrize(
    "make",
    [
        lambda: TrainerConfig(RATES, [0, 1.5, 2], 1.0),
        lambda: TrainerConfig(RATES, [0, 2], "1"),
        lambda: TrainerConfig.every(RATES, 0, 1.0),
    ],
)
def test_what_is_no_number_is_refused(make: Callable[[], TrainerConfig]) -> None:
    with pytest.raises(RangeError):
        make()


def test_a_plan_can_be_read_and_not_changed() -> None:
    config = TrainerConfig(RATES, [0, 1, 2], 0.5)
    assert (config.schedule, config.validation_steps, config.max_grad_norm) == (
        RATES, (0, 1, 2), 0.5,
    )  # fmt: skip
    with pytest.raises(AttributeError):
        config.max_grad_norm = 1.0  # type: ignore[misc]


@pytest.mark.feature("A34")
def test_three_partitions() -> None:
    assert [p.value for p in Partition] == ["train", "validation", "test"]


# --------------------------------------------------------------------------- before the run
def used_optimizer() -> AdamW:
    optimizer, model = PUBLISHED.optimizer(), PUBLISHED.model()
    optimizer.step(model.named_parameters())
    return optimizer


CYCLE = [0, 1, 2, 3, 4, 0, 1, 2]
TRAIN, VALIDATION, TEST = Partition.TRAIN, Partition.VALIDATION, Partition.TEST
# each row breaks one thing; the rows are in the order of the checks
BEFORE: list[tuple[str, dict[str, Any], dict[str, Callable[[], Any]]]] = [
    ("OptimizerNotFresh", {"step": 1}, {"optimizer": used_optimizer}),
    ("WrongPartition", {"role": "Update", "expected": TRAIN, "actual": TEST},
     {"update_epoch": lambda: epoch([CYCLE], TEST)}),
    ("EmptyEpoch", {"role": "Update"}, {"update_epoch": lambda: epoch([[0, 1]], TRAIN)}),
    ("TokenIdOutOfBounds", {"role": "Update", "target": False, "index": 1, "id": 5,
                            "vocabulary_size": 5},
     {"update_epoch": lambda: epoch([[0, 5, 1, 2]], TRAIN)}),
    ("WrongPartition", {"role": "TrainEvaluation", "expected": TRAIN, "actual": VALIDATION},
     {"train_evaluation_epoch": lambda: epoch([CYCLE], VALIDATION)}),
    ("EmptyEpoch", {"role": "TrainEvaluation"},
     {"train_evaluation_epoch": lambda: epoch([[]], TRAIN)}),
    ("ContextLengthMismatch", {"role": "TrainEvaluation", "expected": 2, "actual": 1},
     {"train_evaluation_epoch": lambda: epoch([CYCLE], TRAIN, context_length=1)}),
    ("TokenIdOutOfBounds", {"role": "TrainEvaluation", "target": True, "index": 3, "id": 7},
     {"train_evaluation_epoch": lambda: epoch([[0, 1, 2, 7]], TRAIN)}),
    ("WrongPartition", {"role": "ValidationSelection", "expected": VALIDATION, "actual": TRAIN},
     {"validation_epoch": lambda: epoch([CYCLE], TRAIN)}),
    ("EmptyEpoch", {"role": "ValidationSelection"},
     {"validation_epoch": lambda: epoch([[1, 1]], VALIDATION)}),
    ("ContextLengthMismatch", {"role": "ValidationSelection", "expected": 2, "actual": 3},
     {"validation_epoch": lambda: epoch([CYCLE], VALIDATION, context_length=3)}),
    ("TokenIdOutOfBounds", {"role": "ValidationSelection", "target": False, "index": 0, "id": 9},
     {"validation_epoch": lambda: epoch([[9, 1, 2]], VALIDATION)}),
]  # fmt: skip


@pytest.fixture
def forward_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Collects every forward pass of any decoder."""
    calls: list[str] = []
    original = Decoder.forward

    def counted(self: Decoder, *arguments: Any) -> Tensor:
        calls.append("forward")
        return original(self, *arguments)

    monkeypatch.setattr(Decoder, "forward", counted)
    return calls


@pytest.mark.feature("A06", "A12", "A35", "B17", "B44", "B45", "B46", "B48", "D01")
@pytest.mark.parametrize(("kind", "fields", "changes"), BEFORE)
def test_a_fault_is_found_before_any_forward_pass(
    kind: str,
    fields: dict[str, object],
    changes: dict[str, Callable[[], Any]],
    forward_calls: list[str],
) -> None:
    model, optimizer = PUBLISHED.model(), PUBLISHED.optimizer()
    before = DecoderModelState.snapshot(model)
    made = {"optimizer": optimizer, **{name: make() for name, make in changes.items()}}
    with pytest.raises(TrainerError) as caught:
        run(model=model, **made)
    assert caught.value.kind == kind
    for name, value in fields.items():
        assert getattr(caught.value, name) == value
    assert forward_calls == []
    assert before.equal_bits(DecoderModelState.snapshot(model))
    assert optimizer.step_count == 0


@pytest.mark.feature("B43")
@pytest.mark.parametrize("first", range(len(BEFORE)))
def test_of_two_faults_the_earlier_is_reported(first: int) -> None:
    kind, fields, changes = BEFORE[first]
    for _, _, later in BEFORE[first + 1 :]:
        if later.keys() & changes.keys():
            continue
        made = {name: make() for name, make in {**changes, **later}.items()}
        with pytest.raises(TrainerError) as caught:
            run(**made)
        assert caught.value.kind == kind
        assert fields.get("role") in (None, caught.value.fields.get("role"))


@pytest.mark.feature("B45")
def test_windows_longer_than_the_model_holds() -> None:
    long = {
        "update_epoch": epoch([CYCLE], TRAIN, context_length=3),
        "train_evaluation_epoch": epoch([CYCLE], TRAIN, context_length=3),
        "validation_epoch": epoch([CYCLE], VALIDATION, context_length=3),
    }
    with pytest.raises(TrainerError) as caught:
        run(**long)
    error = caught.value
    assert (error.kind, error.role, error.context_length, error.max_positions) == (
        "ContextLengthExceeded", "Update", 3, 2,
    )  # fmt: skip


def test_a_bad_token_that_no_window_covers_is_harmless() -> None:
    uncovered = epoch([[*CYCLE[:7], 99]], TRAIN, stride=4)
    assert uncovered.window_count == 2
    assert all(99 not in (*b.inputs.flat, *b.targets.flat) for b in uncovered.batches)
    assert len(run(update_epoch=uncovered, config=plan([0.1])).steps) == 1


# --------------------------------------------------------------------------- the run
@pytest.mark.feature("B47", "A07", "A33")
def test_updates_cycle_through_the_batches() -> None:
    result = run(config=plan([0.01] * 12))
    epoch_windows = [
        tuple(f"{p.document_id}@{p.start}" for p in batch.provenance)
        for batch in PUBLISHED.update_epoch().batches
    ]
    assert len(epoch_windows) == 10
    assert [s.windows for s in result.steps] == epoch_windows + epoch_windows[:2]
    assert [s.step for s in result.steps] == list(range(1, 13))


@pytest.mark.feature("A01", "A31", "A36", "C11X", "H02")
def test_a_rising_validation_loss_stops_nothing() -> None:
    """Validation text that training leads away from: step 0 stays selected, all steps run."""
    backwards = epoch([[4, 3, 2, 1, 0, 4, 3, 2, 1, 0]], VALIDATION)
    config = TrainerConfig(LearningRateSchedule([0.1] * 12), [0, 6, 12], 10.0)
    result = run(validation_epoch=backwards, config=config)
    losses = [c.validation.loss for c in result.checkpoints]
    assert losses[0] < losses[1] < losses[2]
    training = [c.train.loss for c in result.checkpoints]
    assert training[0] > training[1] > training[2]
    assert len(result.steps) == 12
    assert result.selected_step == 0
    assert result.selected_state.fingerprint() == "fnv1a64:49b4b59410def7f0"
    assert result.selected_optimizer_state.state.entries == ()
    assert (result.selected_optimizer_state.step, result.final_optimizer.step_count) == (0, 12)
    assert not any(step.clipped for step in result.steps)


@pytest.mark.feature("A05", "A31")
def test_an_unmeasured_state_is_never_selected() -> None:
    fixture = wide(100.0)
    every = run(fixture, config=TrainerConfig(
        LearningRateSchedule(fixture.rates), list(range(7)), 100.0))  # fmt: skip
    losses = [c.validation.loss for c in every.checkpoints]
    best = earliest_minimum(losses)
    assert every.selected_step == best
    assert 0 < best < 6
    measured = [s for s in range(7) if s != best]
    without = run(fixture, config=TrainerConfig(
        LearningRateSchedule(fixture.rates), measured, 100.0))  # fmt: skip
    assert [c.step for c in without.checkpoints] == measured
    assert without.selected_step == measured[earliest_minimum([losses[s] for s in measured])]
    assert without.final_state.equal_bits(every.final_state)  # measuring changes no update


@pytest.mark.feature("A32")
def test_an_exact_tie_keeps_the_earlier_state() -> None:
    fixture = dataclasses.replace(
        PUBLISHED,
        optimizer_config=dataclasses.replace(PUBLISHED.optimizer_config, weight_decay=0.0),
    )
    smallest_normal = 2.0**-1022
    result = run(fixture, config=plan([smallest_normal, smallest_normal], [0, 1, 2]))
    losses = [c.validation.loss for c in result.checkpoints]
    assert losses[0] == losses[1] == losses[2]
    assert result.selected_step == 0
    assert [c.selected for c in result.checkpoints] == [True, False, False]


@pytest.mark.feature("A17", "D03")
def test_the_earliest_minimum() -> None:
    assert earliest_minimum([1.8, 1.6, 1.6]) == 1
    assert earliest_minimum([1.6, 1.6, 1.6]) == 0
    assert earliest_minimum([3.0, 2.0, 1.0]) == 2
    assert earliest_minimum([1.0]) == 0


@pytest.mark.feature("A11")
def test_only_validation_data_selects() -> None:
    first = run()
    other = run(train_evaluation_epoch=epoch([[0, 0, 0, 0, 0, 0]], TRAIN))
    assert [c.train.loss for c in first.checkpoints] != [c.train.loss for c in other.checkpoints]
    assert [c.validation for c in first.checkpoints] == [c.validation for c in other.checkpoints]
    assert first.selected_step == other.selected_step
    assert first.selected_state.equal_bits(other.selected_state)


@pytest.mark.feature("B38", "B30")
def test_nothing_accumulates_across_batches() -> None:
    """Two updates in the trainer are two updates by hand from cleared gradients."""
    result = run(config=plan([0.04, 0.02]))
    model, optimizer = PUBLISHED.model(), PUBLISHED.optimizer()
    batches = PUBLISHED.update_epoch().batches
    for step, rate in enumerate((0.04, 0.02), start=1):
        fresh = DecoderModelState.snapshot(model).into_model()
        batch = batches[step - 1]
        loss = fresh.loss(batch.inputs, batch.targets)
        loss.backward()
        committed = optimizer.step(
            fresh.named_parameters(),
            learning_rate=rate,
            scale=result.steps[step - 1].transform.scale,
        )
        assert committed == step
        model = fresh
    assert DecoderModelState.snapshot(model).equal_bits(result.final_state)
    assert optimizer.state().equal_bits(result.final_optimizer.state())


@pytest.mark.feature("B23", "B35", "B37", "B39")
def test_one_model_and_one_optimizer_live_through_all_updates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[int, ...]] = []
    objects: list[int] = []
    original = AdamW.step

    def watched(self: AdamW, named: Any, **arguments: Any) -> int:
        named = list(named)
        seen.append((id(self), *(id(parameter) for _, parameter in named)))
        gc.collect()
        objects.append(sum(isinstance(o, (Parameter, Decoder, AdamW)) for o in gc.get_objects()))
        return original(self, named, **arguments)

    monkeypatch.setattr(AdamW, "step", watched)
    cleared: list[bool] = []

    def look(step: TrainingStep) -> None:
        cleared.append(step.cleared_gradients and step.parameter_nodes_preserved)

    run(on_step=look)
    assert len(seen) == 8
    assert len(set(seen)) == 1
    assert len(set(objects)) == 1
    assert cleared == [True] * 8


@pytest.mark.feature("B37")
def test_gradients_are_zero_after_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    models: list[Decoder] = []
    original = Decoder.loss

    def remember(self: Decoder, *batch: Any) -> Tensor:
        models[:] = [self]
        return original(self, *batch)

    monkeypatch.setattr(Decoder, "loss", remember)
    bits: list[int] = []

    def look(step: TrainingStep) -> None:
        for _, parameter in models[0].named_parameters():
            bits.append(int(parameter.grad.view(np.uint64).max()))

    run(on_step=look)
    assert bits == [0] * 88


@pytest.mark.feature("B37")
@pytest.mark.parametrize("left", [1.5, -0.0])
def test_a_gradient_that_is_not_cleared_is_found(
    monkeypatch: pytest.MonkeyPatch, left: float
) -> None:
    def forgetful(self: Decoder) -> None:
        for name, parameter in self.named_parameters():
            gradient = np.zeros(parameter.shape)
            if name == "final_norm.gain":
                gradient[2] = left
            parameter.grad = gradient

    monkeypatch.setattr(Decoder, "zero_grad", forgetful)
    with pytest.raises(TrainerError) as caught:
        run()
    error = caught.value
    assert (error.kind, error.name, error.index, error.value) == (
        "ParameterGradientNotZero", "final_norm.gain", 2, left,
    )  # fmt: skip


@pytest.mark.feature("B36")
def test_another_step_number_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    original = AdamW.step
    monkeypatch.setattr(AdamW, "step", lambda *a, **k: original(*a, **k) + 4)
    with pytest.raises(TrainerError) as caught:
        run()
    assert (caught.value.kind, caught.value.expected, caught.value.actual) == (
        "OptimizerStepMismatch", 1, 5,
    )  # fmt: skip


# --------------------------------------------------------------------------- failures on the way
def fail_at(call: int, make: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    count = [0]

    def loss(self: Decoder, *batch: Any) -> Tensor:
        count[0] += 1
        found = TRUE_LOSS(self, *batch)
        return make(found) if count[0] == call else found

    return loss


class Interrupted(Exception):
    """What an observer raises."""


# 8 evaluation losses come first: the 10th call is the second update
RUN_FAULTS: list[Any] = [
    ("NonScalarLoss", fail_at(10, lambda _: Tensor(np.zeros(3), requires_grad=True))),
    ("NonFiniteLoss", fail_at(10, lambda _: _infinite_loss())),
    ("Autodiff", fail_at(10, lambda loss: loss.detach())),
]


def _infinite_loss() -> Tensor:
    loss = Tensor(1.0, requires_grad=True)
    loss._value.array[...] = math.inf
    return loss


@pytest.mark.feature("B48", "B20")
@pytest.mark.parametrize(("kind", "loss"), RUN_FAULTS)
def test_a_failing_loss_leaves_the_caller_alone(
    monkeypatch: pytest.MonkeyPatch, kind: str, loss: Callable[..., Tensor]
) -> None:
    model, optimizer = PUBLISHED.model(), PUBLISHED.optimizer()
    before = DecoderModelState.snapshot(model)
    monkeypatch.setattr(Decoder, "loss", loss)
    steps: list[TrainingStep] = []
    with pytest.raises(TrainerError) as caught:
        run(model=model, optimizer=optimizer, on_step=steps.append)
    assert caught.value.kind == kind
    assert len(steps) == 1
    assert before.equal_bits(DecoderModelState.snapshot(model))
    assert (optimizer.step_count, optimizer.state().entries) == (0, ())


@pytest.mark.feature("B29", "B48")
@pytest.mark.parametrize(
    ("kind", "gradient"),
    [("NonFiniteGradient", np.array([0.0, math.nan, 0.0, math.inf])), ("MissingGradient", None)],
)
def test_a_bad_gradient_is_found_before_anything_moves(
    monkeypatch: pytest.MonkeyPatch, kind: str, gradient: np.ndarray | None
) -> None:
    states: list[DecoderModelState] = []
    original = Tensor.backward

    def poisoned(self: Tensor, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        model = working[0]
        states.append(DecoderModelState.snapshot(model))
        model.blocks[0].ffn_norm.gain.grad = gradient

    working: list[Decoder] = []

    def remember(self: Decoder, *batch: Any) -> Tensor:
        working[:] = [self]
        return TRUE_LOSS(self, *batch)

    monkeypatch.setattr(Tensor, "backward", poisoned)
    monkeypatch.setattr(Decoder, "loss", remember)
    stepped: list[int] = []
    monkeypatch.setattr(AdamW, "step", lambda *_, **__: stepped.append(1))
    with pytest.raises(TrainerError) as caught:
        run()
    assert (caught.value.kind, caught.value.name) == (kind, "blocks.0.ffn_norm.gain")
    if gradient is not None:
        assert caught.value.index == 1
        assert math.isnan(caught.value.value)
    assert stepped == []
    assert states[0].equal_bits(DecoderModelState.snapshot(working[0]))


def test_a_failing_update_says_why() -> None:
    fixture = dataclasses.replace(
        PUBLISHED,
        optimizer_config=dataclasses.replace(PUBLISHED.optimizer_config, weight_decay=0.5),
    )
    model = fixture.model()
    with pytest.raises(TrainerError) as caught:
        run(fixture, model=model, config=plan([0.1, 3.0]))
    assert caught.value.kind == "Optimizer"
    cause = caught.value.cause
    assert isinstance(cause, OptimizerError)
    assert (cause.kind, cause.value) == ("InvalidDecayProduct", 1.5)
    assert "step 2" in str(caught.value)
    assert DecoderModelState.snapshot(model).fingerprint() == "fnv1a64:49b4b59410def7f0"


# --------------------------------------------------------------------------- observers
def test_observers_see_each_record_as_it_is_made() -> None:
    log: list[TrainingStep | LossCheckpoint] = []
    result = run(on_step=log.append, on_checkpoint=log.append)
    kinds = ["c" if isinstance(r, LossCheckpoint) else "s" for r in log]
    assert "".join(kinds) == "cssc" + "ssc" * 3
    assert [r for r in log if isinstance(r, TrainingStep)] == list(result.steps)
    seen = [r for r in log if isinstance(r, LossCheckpoint)]
    assert [(c.step, c.train, c.validation) for c in seen] == [
        (c.step, c.train, c.validation) for c in result.checkpoints
    ]
    assert all(c.selected for c in seen)  # each was the best so far
    assert result.final_state.equal_bits(run().final_state)


@pytest.mark.feature("B48")
@pytest.mark.parametrize("error", [Interrupted("stop"), OptimizerError("EmptyParameterSet", "x")])
@pytest.mark.parametrize("which", ["on_step", "on_checkpoint"])
def test_an_observers_exception_ends_the_run_as_it_is(which: str, error: Exception) -> None:
    model, optimizer = PUBLISHED.model(), PUBLISHED.optimizer()
    before = DecoderModelState.snapshot(model)
    calls: list[object] = []

    def stop(record: object) -> None:
        calls.append(record)
        if len(calls) == 2:
            raise error

    with pytest.raises(type(error)) as caught:
        run(model=model, optimizer=optimizer, **{which: stop})
    assert caught.value is error
    assert len(calls) == 2
    assert before.equal_bits(DecoderModelState.snapshot(model))
    assert optimizer.step_count == 0


# --------------------------------------------------------------------------- other shapes of runs
@pytest.mark.feature("H01", "H06")
def test_per_example_updates() -> None:
    fixture = dataclasses.replace(PUBLISHED, batch_size=1)
    result = run(fixture, config=plan([0.05] * 20))
    assert [step.target_count for step in result.steps] == [2] * 20
    assert result.checkpoints[-1].train.loss < result.checkpoints[0].train.loss


@pytest.mark.feature("B49")
def test_a_float32_run_is_the_same_on_every_processor(isa: str) -> None:
    config = dataclasses.replace(wide(2.2).model_config, dtype="float32")
    fixture = dataclasses.replace(wide(2.2), model_config=config)
    result = fixture.train_decoder()
    assert result.final_state.bit_pattern().dtype == np.uint32
    assert all(np.isfinite(a).all() for _, a in result.final_state.named_arrays())
    state = result.final_optimizer.state()
    assert {a.dtype for a in state.moment_arrays()} == {np.dtype(np.float32)}
    exact = wide(2.2).train_decoder()
    for narrow, broad in zip(result.steps, exact.steps, strict=True):
        assert narrow.windows == broad.windows
        assert narrow.clipped == broad.clipped
        assert math.isclose(narrow.train_loss, broad.train_loss, rel_tol=1e-5)
        assert math.isclose(narrow.norm_before, broad.norm_before, rel_tol=1e-4)
    assert result.selected_step == exact.selected_step
    found = (result.final_state.fingerprint(), tuple(s.train_loss for s in result.steps))
    assert FLOAT32_RUNS.setdefault("wide", found) == found


FLOAT32_RUNS: dict[str, tuple[str, tuple[float, ...]]] = {}


def test_the_smallest_run() -> None:
    result = run(config=plan([0.1]))
    assert (len(result.steps), [c.step for c in result.checkpoints]) == (1, [0, 1])


def test_a_model_without_blocks() -> None:
    fixture = dataclasses.replace(PUBLISHED, model_config=ModelConfig(5, 4, 2, 0, 4, 2))
    result = run(fixture)
    assert result.final_state.scalar_count() == 24
