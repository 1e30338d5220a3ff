"""Both published runs from end to end, by bits."""

import numpy as np
import pytest

from llmcy.checksum import fingerprint
from llmcy.data import BatchOrder, Partition
from llmcy.errors import TrainerError
from llmcy.reference.fixtures import PUBLISHED, wide
from llmcy.trainer import (
    UPDATE_EVENT_ORDER,
    DecoderModelState,
    TrainingResult,
    earliest_minimum,
    train_decoder,
)


def hexbits(value: float) -> str:
    return f"{np.float64(value).view(np.uint64):016x}"


# windows, loss before the update, norm before, scale
STEPS = [
    ("train-b@2,train-b@8", "4003a1c9cbeff083", "401034982d8be909", "3fb61db385d50d85"),
    ("train-a@0,train-b@9", "3ffa300e2fa961ac", "4008e8250b2f811f", "3fbcc77e5797f3de"),
    ("train-a@7,train-b@0", "3ffcf47bca559ad2", "3ffdca9637a3cbfa", "3fc80f882c522958"),
    ("train-a@1,train-b@7", "3ff1dd290543ad68", "3ff8929a05c23235", "3fcd2bae451b6e77"),
    ("train-a@2,train-a@6", "3ff2b5240587ce5f", "3ffb287439b0262e", "3fca64c7c6d65a1f"),
    ("train-a@3,train-a@4", "3ffc5832fb087ca2", "3ffb4fae5f60c10e", "3fca3edf046dfd53"),
    ("train-b@4,train-a@5", "3ff04ef009219323", "3ff2b22a26755e35", "3fd32b7ff78ea5f7"),
    ("train-a@8,train-a@9", "3ffb2bb4950a03f8", "3ff7d93b84a20312", "3fce0e6ac1cd7f0b"),
]
# step, training loss, validation loss
MEASURED = [
    (0, "4000c297edddac56", "3ffeb0d06616f846"),
    (2, "3ff8fe0f2772bc12", "3ffb2415bc232cc2"),
    (4, "3ff7408cad831f24", "3ffb012dcad1bacd"),
    (6, "3ff5ead4d32fb152", "3ffa48162e588bb0"),
    (8, "3ff52a965f930c76", "3ff986566c06d651"),
]


@pytest.fixture(scope="module")
def result() -> TrainingResult:
    return PUBLISHED.train_decoder()


@pytest.mark.feature("A02")
def test_the_published_decoder() -> None:
    model = PUBLISHED.model()
    assert len(model.named_parameters()) == 11
    assert model.n_parameters == PUBLISHED.model_config.n_parameters == 144


@pytest.mark.feature("A01", "A03", "A04", "A07", "A33", "B50")
def test_eight_updates(result: TrainingResult) -> None:
    assert [step.step for step in result.steps] == list(range(1, 9))
    assert [
        (",".join(s.windows), *map(hexbits, (s.train_loss, s.norm_before, s.transform.scale)))
        for s in result.steps
    ] == STEPS
    assert [s.learning_rate for s in result.steps] == [
        0.04, 0.04, 0.025, 0.025, 0.015, 0.015, 0.008, 0.008,
    ]  # fmt: skip
    for step in result.steps:
        assert step.clipped
        assert step.norm_after == 0.35
        assert step.transform.divisor is None
        assert step.target_count == 4


@pytest.mark.feature("A05", "A13", "A14", "A33", "C07")
def test_five_measurements(result: TrainingResult) -> None:
    assert [
        (c.step, hexbits(c.train.loss), hexbits(c.validation.loss)) for c in result.checkpoints
    ] == MEASURED
    assert [f"{c.train.loss:.6f}" for c in result.checkpoints] == [
        "2.095016", "1.562026", "1.453259", "1.369832", "1.322897",
    ]  # fmt: skip
    assert [f"{c.validation.loss:.6f}" for c in result.checkpoints] == [
        "1.918167", "1.696310", "1.687788", "1.642599", "1.595297",
    ]  # fmt: skip
    assert [c.selected for c in result.checkpoints] == [False] * 4 + [True]
    assert result.selected_step == 8
    assert hexbits(result.selected_validation_loss) == MEASURED[-1][2]
    for c in result.checkpoints:
        assert (c.train.target_count, c.train.batch_count, c.train.recorded_graphs) == (40, 4, 0)
        assert (c.validation.target_count, c.validation.batch_count) == (28, 4)


@pytest.mark.feature("A14", "B51", "H04X")
def test_the_selected_state(result: TrainingResult) -> None:
    """One measured state, here the last, and no mean of several."""
    state = result.selected_optimizer_state.state
    assert result.selected_state.fingerprint() == "fnv1a64:5bf915a97ebea3e5"
    assert result.selected_state.equal_bits(result.final_state)
    assert fingerprint(state.moment_arrays()) == "fnv1a64:904d432bcc4c3909"
    assert state.equal_bits(result.final_optimizer.state())
    assert state.step == result.selected_training_state.step == 8
    assert (hexbits(state.beta1_power), hexbits(state.beta2_power)) == (
        "3fdb8cc6573cd2c7", "3fefbeb1630ff3ef",
    )  # fmt: skip
    assert result.selected_optimizer_state.config == PUBLISHED.optimizer_config
    restored = DecoderModelState.snapshot(result.selected_model)
    assert restored.equal_bits(result.selected_state)


@pytest.mark.feature("A09", "C12")
def test_every_update_is_six_events(result: TrainingResult) -> None:
    assert UPDATE_EVENT_ORDER == (
        "forward", "backward", "finite-check", "clip", "adamw-step", "zero-grad",
    )  # fmt: skip
    for step in result.steps:
        assert step.events == UPDATE_EVENT_ORDER
        assert step.finite_gradients
        assert step.parameter_nodes_preserved
        assert step.cleared_gradients


@pytest.mark.feature("A07", "B53", "B54")
def test_the_published_epochs() -> None:
    updates = PUBLISHED.update_epoch()
    train, validation = PUBLISHED.train_evaluation_epoch(), PUBLISHED.validation_epoch()
    assert [e.window_count for e in (updates, train, validation)] == [20, 20, 14]
    assert [e.batch_count for e in (updates, train, validation)] == [10, 4, 4]
    assert updates.shuffle_state_after == 0xBE1E08C4728735B0
    first = updates.batches[0]
    assert [(p.document_id, p.start) for p in first.provenance] == [("train-b", 2), ("train-b", 8)]
    assert first.inputs.tolist() == [[4, 0], [0, 1]]
    assert first.targets.tolist() == [[0, 1], [1, 2]]


@pytest.mark.feature("A15")
def test_the_loss_of_a_step_is_of_the_state_before_it(result: TrainingResult) -> None:
    batch = PUBLISHED.update_epoch().batches[0]
    loss = PUBLISHED.model().loss(batch.inputs, batch.targets).item()
    assert loss == result.steps[0].train_loss


@pytest.mark.feature("A12", "A35", "B48", "B56", "D01")
def test_inputs_are_left_alone_and_test_data_is_refused() -> None:
    model, optimizer = PUBLISHED.model(), PUBLISHED.optimizer()
    before = DecoderModelState.snapshot(model)
    epochs = (
        PUBLISHED.update_epoch(),
        PUBLISHED.train_evaluation_epoch(),
        PUBLISHED.validation_epoch(),
    )
    train_decoder(model, optimizer, *epochs, PUBLISHED.trainer_config())
    test = PUBLISHED.epoch(PUBLISHED.validation, Partition.TEST, 2, BatchOrder.sequential())
    for place, role in enumerate(("Update", "TrainEvaluation", "ValidationSelection")):
        with pytest.raises(TrainerError) as caught:
            train_decoder(
                model,
                optimizer,
                *epochs[:place],
                test,
                *epochs[place + 1 :],
                PUBLISHED.trainer_config(),
            )
        error = caught.value
        assert (error.kind, error.role, error.actual) == ("WrongPartition", role, Partition.TEST)
        assert error.expected is (Partition.TRAIN if place < 2 else Partition.VALIDATION)
    assert before.equal_bits(DecoderModelState.snapshot(model))
    assert before.fingerprint() == "fnv1a64:49b4b59410def7f0"
    assert [p.revision for _, p in model.named_parameters()] == [0] * 11
    assert optimizer.step_count == 0
    assert optimizer.state().entries == ()


@pytest.mark.feature("B49")
def test_the_run_is_the_same_on_every_processor_and_twice(result: TrainingResult, isa: str) -> None:
    again = PUBLISHED.train_decoder()
    assert again.steps == result.steps
    assert again.checkpoints == result.checkpoints
    assert again.selected_step == result.selected_step
    assert again.final_state.equal_bits(result.final_state)
    assert again.selected_state.equal_bits(result.selected_state)
    assert again.final_optimizer.state().equal_bits(result.final_optimizer.state())
    assert again.selected_optimizer_state.state.equal_bits(result.selected_optimizer_state.state)


@pytest.mark.feature("H09", "A17")
def test_a_training_only_trace_picks_its_end_and_a_held_out_trace_does_not() -> None:
    assert earliest_minimum([2.0, 1.5, 1.2]) == 2
    assert earliest_minimum([2.0, 1.3, 1.4]) == 1


# --------------------------------------------------------------------------- the odd-sized fixture
# ceiling, parameters, moments, selected step, steps that clip, and per step loss, norm, scale
WIDE = [
    (1.2, "35b3ff87ea863cfb", "f27e49c9c83ce84e", 6, [1, 2, 3, 4, 5, 6]),
    (2.2, "b9e2d0dfc82ab0f8", "8ae2074a1b6a8d85", 6, [1, 3]),
    (100.0, "8c43d11c4bbbb42a", "a7614a93c0cce768", 3, []),
]


@pytest.mark.feature("A14", "A17", "A36", "C11X")
@pytest.mark.parametrize(("ceiling", "parameters", "moments", "selected", "clipped"), WIDE)
def test_the_wide_fixture(
    isa: str, ceiling: float, parameters: str, moments: str, selected: int, clipped: list[int]
) -> None:
    run = wide(ceiling).train_decoder()
    assert run.final_state.fingerprint() == f"fnv1a64:{parameters}"
    assert fingerprint(run.final_optimizer.state().moment_arrays()) == f"fnv1a64:{moments}"
    assert run.selected_step == selected
    assert [step.step for step in run.steps if step.clipped] == clipped
    assert run.final_state.scalar_count() == 2064
    validation = [c.validation.loss for c in run.checkpoints]
    training = [c.train.loss for c in run.checkpoints]
    assert run.checkpoints[earliest_minimum(validation)].step == selected
    assert earliest_minimum(training) == len(training) - 1  # training loss would pick the end
    assert [c.selected for c in run.checkpoints].count(True) == 1


WIDE_STEPS = [
    ("400614974ce74e20", "4003b0a2cf70dc78", "3fec9a76c5013bc9"),
    ("40046ede1aee12c7", "4000ec1886213517", "3ff0000000000000"),
    ("4005c38c72ec3da7", "40198506018bbd71", "3fd611bd18ac5fe9"),
    ("3ffe8024fa00b32d", "3ff85a0fbfcda439", "3ff0000000000000"),
    ("40011599710f9e28", "3ff78d4f45d0868c", "3ff0000000000000"),
    ("3ffd66b47916d77a", "4000df62b603519b", "3ff0000000000000"),
]
WIDE_MEASURED = [
    (0, "4005d15856ce575c", "4008a86b35086f15"),
    (1, "4002872ba95c1b25", "40073d740176da8b"),
    (3, "40003c9a246a3226", "40066076c8e84a3d"),
    (6, "3ffda0644d195b66", "40064be59ffb12af"),
]


def test_the_wide_fixture_step_by_step() -> None:
    run = wide(2.2).train_decoder()
    assert [
        tuple(map(hexbits, (s.train_loss, s.norm_before, s.transform.scale))) for s in run.steps
    ] == WIDE_STEPS
    assert [
        (c.step, hexbits(c.train.loss), hexbits(c.validation.loss)) for c in run.checkpoints
    ] == WIDE_MEASURED
    assert [s.windows for s in run.steps[:3]] == [
        ("c@4", "c@8", "c@0", "a@0", "c@6"),
        ("c@2", "a@4", "a@10", "a@8", "a@6"),
        ("a@2",),
    ]
    assert [s.windows for s in run.steps[3:]] == [s.windows for s in run.steps[:3]]
