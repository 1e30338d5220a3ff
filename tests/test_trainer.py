"""What a training run promises, on its way and when it fails."""

import dataclasses
import gc
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from llmcy.config import ModelConfig
from llmcy.data import Partition
from llmcy.errors import OptimizerError, TrainerError
from llmcy.model import Decoder
from llmcy.nn.module import Parameter
from llmcy.optim import AdamW, GradientClip
from llmcy.reference.fixtures import PUBLISHED, wide
from llmcy.tape import Tensor
from llmcy.trainer import (
    DecoderModelState,
    LearningRateSchedule,
    LossCheckpoint,
    TrainerConfig,
    TrainingStep,
    earliest_minimum,
)
from tests.training import TRUE_LOSS, epoch, plan, run

TRAIN, VALIDATION = Partition.TRAIN, Partition.VALIDATION


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
    original = AdamW.step_clipped

    def watched(self: AdamW, named: Any, *numbers: Any, **arguments: Any) -> GradientClip:
        named = list(named)
        seen.append((id(self), *(id(parameter) for _, parameter in named)))
        gc.collect()
        objects.append(sum(isinstance(o, (Parameter, Decoder, AdamW)) for o in gc.get_objects()))
        return original(self, named, *numbers, **arguments)

    monkeypatch.setattr(AdamW, "step_clipped", watched)
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
    original = AdamW.step_clipped

    def several(self: AdamW, *arguments: Any, **rate: Any) -> GradientClip:
        clip = original(self, *arguments, **rate)
        self._step += 4
        return clip

    monkeypatch.setattr(AdamW, "step_clipped", several)
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
    updated: list[int] = []
    monkeypatch.setattr(AdamW, "_finish", lambda *_, **__: updated.append(1))
    with pytest.raises(TrainerError) as caught:
        run()
    assert (caught.value.kind, caught.value.name) == (kind, "blocks.0.ffn_norm.gain")
    if gradient is not None:
        assert caught.value.index == 1
        assert math.isnan(caught.value.value)
    assert updated == []
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
