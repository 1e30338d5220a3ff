"""Plans of training, and what is checked before a run."""

import math
from collections.abc import Callable
from typing import Any

import pytest

from llmcy.data import Partition
from llmcy.errors import RangeError, TrainerError
from llmcy.model import Decoder
from llmcy.optim import AdamW
from llmcy.reference.fixtures import PUBLISHED
from llmcy.tape import Tensor
from llmcy.trainer import (
    DecoderModelState,
    LearningRateSchedule,
    TrainerConfig,
)
from tests.training import RATES, epoch, plan, run

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


def test_listed_steps() -> None:
    schedule = LearningRateSchedule.constant(0.1, 7)
    for steps in ((1, 5), (0, 1, 5), (1, 5, 7), (0, 1, 5, 7)):
        assert TrainerConfig.at(schedule, steps, 1.0).validation_steps == (0, 1, 5, 7)
    assert TrainerConfig.at(schedule, (), 1.0).validation_steps == (0, 7)
    for wrong, kind in (
        ((5, 1), "ValidationStepsNotIncreasing"),
        ((5, 5), "ValidationStepsNotIncreasing"),
        ((-1, 5), "ValidationStepsNotIncreasing"),
        ((5, 8), "ValidationStepOutOfRange"),
    ):
        with pytest.raises(TrainerError) as caught:
            TrainerConfig.at(schedule, wrong, 1.0)
        assert caught.value.kind == kind


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
