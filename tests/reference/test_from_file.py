"""What a checkpoint file is good for once training is over, and what it is not good for."""

import json
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy

from llmcy.checkpoint import Checkpoint, TokenizerRecord
from llmcy.data import BatchOrder, Partition
from llmcy.errors import CheckpointError, TrainerError
from llmcy.evaluate import evaluate_no_grad
from llmcy.generate import (
    GenerationConfig,
    GenerationResult,
    Greedy,
    StopReason,
    TemperatureTopK,
    generate_uncached,
)
from llmcy.reference.fixtures import PUBLISHED
from llmcy.reference.replay import component_update
from llmcy.reference.training import optimizer_bits
from llmcy.rng import SplitMix64
from llmcy.run.model_file import encode_model_file
from llmcy.state import SelectedTrainingState
from llmcy.tokenizer import LiteralTokenizer
from llmcy.trainer import TrainingResult, train_decoder

SAVED_RNG_STATE = 0x9E3779B97F4A7C38


@pytest.fixture(scope="module")
def result() -> TrainingResult:
    return PUBLISHED.train_decoder()


@pytest.fixture(scope="module")
def selected(result: TrainingResult) -> SelectedTrainingState:
    return result.selected_training_state


@pytest.fixture(scope="module")
def data(selected: SelectedTrainingState) -> bytes:
    pieces = [str(digit).encode() for digit in range(5)]
    return (
        Checkpoint.from_snapshot(TokenizerRecord.literal(pieces), selected, SAVED_RNG_STATE)
        .encode()
        .bytes
    )


def continued(
    checkpoint: Checkpoint, mode: Greedy | TemperatureTopK
) -> tuple[GenerationResult, int]:
    rng = SplitMix64(checkpoint.sampling_rng_state())
    model = checkpoint.restore_independent_model()
    return generate_uncached(model, [0], GenerationConfig(mode, None, 3), rng), rng.state


def bits(value: float) -> str:
    return struct.pack(">d", value).hex()


@pytest.mark.feature("Q01")
def test_a_loaded_file_continues_the_published_text(data: bytes) -> None:
    checkpoint = Checkpoint.from_bytes(data)
    generation, state = continued(checkpoint, TemperatureTopK(1.0, 3))
    assert generation.generated == (4, 4)
    assert [step.prefix_length for step in generation.steps] == [1, 2]
    assert [
        (bits(step.unit_draw or 0.0), bits(step.interval[0]), step.interval[1])
        for step in generation.steps
    ] == [
        ("3fe3518a0b2e3272", "3fe2b3a79e7cfe2d", 1.0),
        ("3fe9abf52aefe10e", "3fe77dfcbadfceeb", 1.0),
    ]
    assert (generation.stop, generation.full_prefix_calls) == (StopReason.CONTEXT_LIMIT, 2)
    assert state == 0xDAA66D2C7DDF7462
    pieces = checkpoint.tokenizer.literal_pieces()
    assert pieces is not None
    assert b"".join(pieces[token_id] for token_id in generation.generated) == b"44"
    # architecture, model and optimizer came back with it
    assert checkpoint.model_state.config == PUBLISHED.model_config
    assert checkpoint.optimizer.config == PUBLISHED.optimizer_config
    assert checkpoint.optimizer.step == checkpoint.selected_step == 8


@pytest.mark.feature("Q03")
def test_the_sampling_policy_is_the_callers(data: bytes) -> None:
    checkpoint = Checkpoint.from_bytes(data)
    sampled, _ = continued(checkpoint, TemperatureTopK(1.0, 3))
    greedy, state = continued(checkpoint, Greedy())
    assert sampled.steps != greedy.steps
    assert state == SAVED_RNG_STATE  # greedy choice draws nothing
    assert checkpoint.encode().bytes == data


@pytest.mark.feature("Q02", "M28")
def test_an_invalid_file_gives_nothing_to_use(data: bytes) -> None:
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.from_bytes(data[:-8] + struct.pack("<d", 0.25))
    assert caught.value.kind == "ChecksumMismatch"
    held = [value for value in vars(caught.value).values() if isinstance(value, Checkpoint)]
    assert held == []
    with pytest.raises(TypeError):
        Checkpoint()  # there is no checkpoint without validated content


@pytest.mark.feature("P09X", "L09X")
def test_the_trainer_refuses_the_restored_optimizer(data: bytes) -> None:
    checkpoint = Checkpoint.from_bytes(data)
    with pytest.raises(TrainerError) as caught:
        train_decoder(
            checkpoint.restore_independent_model(),
            checkpoint.restore_optimizer(),
            PUBLISHED.update_epoch(),
            PUBLISHED.train_evaluation_epoch(),
            PUBLISHED.validation_epoch(),
            PUBLISHED.trainer_config(),
        )
    assert (caught.value.kind, caught.value.step) == ("OptimizerNotFresh", 8)


@pytest.mark.feature("P05")
def test_reset_moments_give_another_update(data: bytes) -> None:
    checkpoint = Checkpoint.from_bytes(data)
    update = ((0, 1), (1, 2), 0.006)
    kept = component_update(
        checkpoint.restore_independent_model(), checkpoint.restore_optimizer(), *update
    )
    reset = component_update(checkpoint.restore_independent_model(), PUBLISHED.optimizer(), *update)
    assert (kept.step, reset.step) == (9, 1)
    assert kept.parameters != reset.parameters
    assert optimizer_bits(kept.optimizer) != optimizer_bits(reset.optimizer)


@pytest.mark.feature("M41X")
def test_a_replay_uses_neither_trainer_nor_schedule_nor_clipping(
    data: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "selected.ckpt"
    path.write_bytes(data)
    program = (
        "import sys\n"
        "sys.modules['llmcy.trainer'] = sys.modules['llmcy.data'] = None  # not importable\n"
        "import llmcy.optim.clip, llmcy.optim.schedule\n"
        "def used(*a, **k): raise AssertionError('clipping or a schedule was used')\n"
        "for name in ('clip_to', 'measure_grad_norm', 'clip_grad_norm'):\n"
        "    setattr(llmcy.optim.clip, name, used)\n"
        "llmcy.optim.schedule.LearningRateSchedule.__init__ = used\n"
        "from llmcy.checkpoint import Checkpoint\n"
        "from llmcy.reference.replay import component_update\n"
        "c = Checkpoint.load(sys.argv[1])\n"
        "b = component_update(\n"
        "    c.restore_independent_model(), c.restore_optimizer(), (0, 1), (1, 2), 0.006)\n"
        "print(b.step, b.logits_label)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "9 fnv1a64:0b875a0c9f380d8f\n"


@pytest.mark.feature("E01")
def test_the_frozen_state_can_be_checked_before_test_data_is_opened(
    selected: SelectedTrainingState,
) -> None:
    model = selected.model.restore_independent_model()
    before = selected.model.fingerprint()
    # the comparison that comes first: the live model still has the frozen bits
    assert type(selected.model).snapshot(model).equal_bits(selected.model)
    test_epoch = PUBLISHED.epoch(
        [("test-a", (4, 3, 2, 1, 0, 4, 3, 2, 1)), ("test-b", (3, 2, 1, 0, 4, 3, 2))],
        Partition.TEST,
        4,
        BatchOrder.sequential(),
    )
    evaluation = evaluate_no_grad(model, test_epoch)
    assert bits(evaluation.loss) == "3ff9b90e0a65976f"  # published: 1.607679
    assert evaluation.target_count == 24
    assert evaluation.recorded_graphs == 0
    assert selected.model.fingerprint() == before
    assert type(selected.model).snapshot(model).equal_bits(selected.model)
    # a model that has moved on would be told apart
    _, parameter = model.named_parameters()[0]
    parameter.assign(np.array(parameter.data) * 2.0)
    assert not type(selected.model).snapshot(model).equal_bits(selected.model)


@pytest.mark.feature("E02X")
def test_no_role_of_training_takes_test_data(result: TrainingResult) -> None:
    epochs = [
        PUBLISHED.update_epoch(),
        PUBLISHED.train_evaluation_epoch(),
        PUBLISHED.validation_epoch(),
    ]
    as_test = PUBLISHED.epoch(PUBLISHED.validation, Partition.TEST, 4, BatchOrder.sequential())
    for place in range(3):
        offered = [as_test if index == place else epoch for index, epoch in enumerate(epochs)]
        with pytest.raises(TrainerError) as caught:
            train_decoder(
                PUBLISHED.model(), PUBLISHED.optimizer(), *offered, PUBLISHED.trainer_config()
            )
        assert (caught.value.kind, caught.value.actual) == ("WrongPartition", Partition.TEST)
    # and measuring test data changes neither plan nor selection of a finished run
    step, loss = result.selected_step, result.selected_validation_loss
    evaluate_no_grad(result.selected_model, as_test)
    assert (result.selected_step, result.selected_validation_loss) == (step, loss)


@pytest.mark.feature("J02")
def test_an_earlier_selected_step_is_saved_with_its_own_optimizer() -> None:
    # the last rate throws the model back, so the state of step 2 wins
    fixture = replace(PUBLISHED, rates=(0.04, 0.04, 1.5), validation_steps=(0, 2, 3))
    run = fixture.train_decoder()
    assert run.selected_step == 2
    checkpoint = Checkpoint.from_snapshot(
        TokenizerRecord.literal([b"0", b"1", b"2", b"3", b"4"]), run.selected_training_state, 0
    )
    assert (checkpoint.selected_step, checkpoint.optimizer.step) == (2, 2)
    # the very state that a run of two updates ends with
    short = replace(PUBLISHED, rates=(0.04, 0.04), validation_steps=(0, 2)).train_decoder()
    assert checkpoint.model_state.equal_bits(short.final_state)
    assert optimizer_bits(checkpoint.optimizer.state) == optimizer_bits(
        short.final_optimizer.state()
    )


@pytest.mark.feature("L05")
def test_parameters_keep_their_bits_in_a_safetensors_file(data: bytes) -> None:
    checkpoint = Checkpoint.from_bytes(data)
    state = checkpoint.model_state
    tokenizer = LiteralTokenizer([b"0", b"1", b"2", b"3", b"4"])
    image = encode_model_file(state, tokenizer, checkpoint.selected_step)
    # what the format says: an 8-byte little-endian length, JSON, half-open spans without holes
    length = struct.unpack_from("<Q", image)[0]
    header = json.loads(image[8 : 8 + length])
    header.pop("__metadata__")
    spans = sorted(tuple(entry["data_offsets"]) for entry in header.values())
    ends = [0, *(end for _, end in spans)]
    assert [start for start, _ in spans] == ends[:-1]
    assert ends[-1] == len(image) - 8 - length == 1152
    read = safetensors.numpy.load(image)
    assert {name: array.tobytes() for name, array in read.items()} == {
        name: array.tobytes() for name, array in state.named_arrays()
    }
    assert {entry["dtype"] for entry in header.values()} == {"F64"}
    assert header["token_embedding.weight"]["shape"] == [5, 4]
