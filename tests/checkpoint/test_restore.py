"""Restoring: two ways to a model, one to an optimizer, and the published replay of one update."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest

from llmcy.checkpoint import Checkpoint
from llmcy.checksum import fingerprint
from llmcy.config import ModelConfig
from llmcy.errors import CheckpointError
from llmcy.optim import AdamW, AdamWState
from llmcy.rng import SplitMix64
from llmcy.state import DecoderModelState
from tests.checkpoint.states import fresh_state
from tests.oracle.checkpoint_file import build

BEFORE = "fnv1a64:6029064fe7cd162d"
AFTER = "fnv1a64:0b875a0c9f380d8f"
NEXT_DRAW = 0x9A8C505971939232


@pytest.fixture
def checkpoint(published):
    return Checkpoint.from_bytes(published)


def logits(model, inputs=((0, 1),)):
    return fingerprint([model.forward(np.array(inputs)).data])


def update(model, optimizer, inputs=((0, 1),), targets=((1, 2),), rate=0.006):
    model.zero_grad()
    model.loss(np.array(inputs), np.array(targets)).backward()
    return optimizer.step(model.named_parameters(), learning_rate=rate)


def bits_of(model):
    return DecoderModelState.snapshot(model).fingerprint()


# --------------------------------------------------------------------------- models
@pytest.mark.feature("M14", "M15")
def test_restoring_copies_and_moving_out_consumes(checkpoint, published):
    held = dict(checkpoint._content.model.named_arrays())
    copied = checkpoint.restore_independent_model()
    for name, parameter in copied.named_parameters():
        assert not np.shares_memory(parameter.data, held[name])
    assert checkpoint.encode().bytes == published
    moved = checkpoint.into_model()
    for name, parameter in moved.named_parameters():
        assert np.shares_memory(parameter.data, held[name])
    assert bits_of(copied) == bits_of(moved) == "fnv1a64:5bf915a97ebea3e5"


@pytest.mark.feature("M14")
def test_every_use_after_consuming_fails(checkpoint, tmp_path):
    checkpoint.into_model()
    uses = [
        checkpoint.into_model,
        checkpoint.restore_independent_model,
        checkpoint.restore_optimizer,
        checkpoint.encode,
        checkpoint.sampling_rng_state,
        checkpoint.rng_state,
        lambda: checkpoint.save_atomic(tmp_path / "x"),
        lambda: checkpoint.tokenizer,
        lambda: checkpoint.model_state,
        lambda: checkpoint.optimizer,
        lambda: checkpoint.selected_step,
    ]
    for use in uses:
        with pytest.raises(CheckpointError) as caught:
            use()
        assert caught.value.kind == "Consumed"
    assert repr(checkpoint) == "Checkpoint(consumed)"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.feature("M14", "M15")
def test_a_restored_model_is_independent(checkpoint, published):
    first = checkpoint.restore_independent_model()
    second = checkpoint.restore_independent_model()
    for _, parameter in first.named_parameters():
        parameter.assign(np.zeros(parameter.shape))
    assert bits_of(second) == "fnv1a64:5bf915a97ebea3e5"
    assert checkpoint.encode().bytes == published


@pytest.mark.feature("M16")
@pytest.mark.parametrize("way", ["restore_independent_model", "into_model"])
def test_the_embedding_and_the_head_are_one_parameter(checkpoint, way):
    model = getattr(checkpoint, way)()
    names = [name for name, _ in model.named_parameters()]
    assert len(names) == 11
    assert [name for name in names if "head" in name or "output_" in name] == []
    assert model.n_parameters == 144
    table = dict(model.named_parameters())["token_embedding.weight"]
    assert table is model.token_embedding.weight
    assert all(
        parameter.grad is None or not parameter.grad.any()
        for _, parameter in model.named_parameters()
    )
    before = model.forward(np.array([[0]])).data.copy()
    changed = table.data.copy()
    changed[4] = 0.0  # token 4 is not in the input: only the head can see its row
    table.assign(changed)
    after = model.forward(np.array([[0]])).data
    assert after[0, 0, 4] == 0.0 != before[0, 0, 4]
    assert after[0, 0, :4].tobytes() == before[0, 0, :4].tobytes()


@pytest.mark.feature("M27")
def test_the_layout_check_makes_no_copy_and_no_node(published, monkeypatch):
    from llmcy.checkpoint import decode_state
    from llmcy.nn import module

    seen = []
    real = decode_state.check_decoder_layout

    def watched(config, names, shapes):
        seen.append((list(names), list(shapes)))
        return real(config, names, shapes)

    made = []
    monkeypatch.setattr(decode_state, "check_decoder_layout", watched)
    monkeypatch.setattr(module.Parameter, "__init__", lambda *a, **k: made.append(a))
    Checkpoint.from_bytes(published)
    assert made == []
    ((names, shapes),) = seen
    assert len(names) == 11
    assert all(type(shape) is tuple for shape in shapes)


def test_a_model_too_large_to_restore_is_reported(parts):
    parts.decoder["max_seq_len"] = 2**60 - 1
    checkpoint = Checkpoint.from_bytes(build(parts))
    before = checkpoint.encode().bytes
    assert checkpoint.restored_bytes() == 8 * (144 + 2 * (2**60 - 1))
    for way in (checkpoint.restore_independent_model, checkpoint.into_model):
        with pytest.raises(CheckpointError) as caught:
            way()
        error = caught.value
        assert (error.kind, error.cause.kind) == ("Trainer", "Model")
        assert error.cause.cause.kind == "RotaryTableAllocationFailed"
        assert checkpoint.encode().bytes == before


def test_no_memory_for_the_values_is_an_allocation_error(checkpoint, published, monkeypatch):
    def starve(self):
        raise MemoryError

    monkeypatch.setattr(DecoderModelState, "restore_independent_model", starve)
    monkeypatch.setattr(DecoderModelState, "into_model", starve)
    for way in (checkpoint.restore_independent_model, checkpoint.into_model):
        with pytest.raises(CheckpointError) as caught:
            way()
        assert (caught.value.kind, caught.value.context) == ("Allocation", "model")
    assert checkpoint.encode().bytes == published


# --------------------------------------------------------------------------- optimizer
@pytest.mark.feature("M04", "M17")
def test_the_optimizer_is_restored_bit_for_bit(checkpoint):
    optimizer = checkpoint.restore_optimizer()
    assert isinstance(optimizer, AdamW)
    assert optimizer.step_count == 8
    assert optimizer.config == checkpoint.optimizer.config
    assert optimizer.groups == checkpoint.optimizer.groups
    state = optimizer.state()
    assert state.equal_bits(checkpoint.optimizer.state)
    for entry, held in zip(state.entries, checkpoint.optimizer.state.entries, strict=True):
        assert not np.shares_memory(entry.first_moment, held.first_moment)
    assert state.beta1_power == 0.43046721000000016
    assert state.beta1_power != 0.9**8  # the stored product is not what pow would give
    restored_again = checkpoint.restore_optimizer()
    update(checkpoint.restore_independent_model(), optimizer)
    assert restored_again.state().equal_bits(state)


@pytest.mark.feature("M05")
def test_optimizer_state_goes_by_name(checkpoint):
    models = [checkpoint.restore_independent_model() for _ in range(2)]
    optimizers = [checkpoint.restore_optimizer() for _ in range(2)]
    for model, optimizer, reverse in zip(models, optimizers, (False, True), strict=True):
        model.loss(np.array([[0, 1]]), np.array([[1, 2]])).backward()
        named = model.named_parameters()
        optimizer.step(named[::-1] if reverse else named, learning_rate=0.006)
    assert bits_of(models[0]) == bits_of(models[1])
    assert optimizers[0].state().equal_bits(optimizers[1].state())


@pytest.mark.feature("P05")
def test_reset_moments_change_the_next_update(checkpoint):
    continued = checkpoint.restore_independent_model()
    update(continued, checkpoint.restore_optimizer())
    reset = checkpoint.restore_independent_model()
    stored = checkpoint.optimizer
    update(reset, AdamW.from_state(stored.config, stored.groups, AdamWState.initial()))
    assert logits(continued) == AFTER
    assert logits(reset) != AFTER


# --------------------------------------------------------------------------- the replay
@pytest.mark.feature("J16", "M38", "M39", "M40", "M42")
def test_the_published_update_on_two_branches(isa, checkpoint):
    kept = checkpoint.restore_independent_model()
    kept_optimizer = checkpoint.restore_optimizer()
    moved_optimizer = checkpoint.restore_optimizer()
    kept_rng = SplitMix64(checkpoint.sampling_rng_state())
    moved_rng = SplitMix64(checkpoint.rng_state())
    moved = checkpoint.into_model()
    assert logits(kept) == logits(moved) == BEFORE
    assert update(kept, kept_optimizer) == update(moved, moved_optimizer) == 9
    assert logits(kept) == logits(moved) == AFTER
    assert bits_of(kept) == bits_of(moved)
    assert kept_optimizer.state().equal_bits(moved_optimizer.state())
    assert kept_rng.next_u64() == moved_rng.next_u64() == NEXT_DRAW


@pytest.mark.feature("M43")
@pytest.mark.parametrize("change", [{"inputs": ((1, 2),), "targets": ((2, 3),)}, {"rate": 0.012}])
def test_another_batch_or_another_rate_diverges(checkpoint, change):
    model, optimizer = checkpoint.restore_independent_model(), checkpoint.restore_optimizer()
    assert update(model, optimizer, **change) == 9
    assert logits(model) != AFTER


@pytest.mark.feature("M41X")
def test_a_replay_needs_no_trainer_schedule_or_clipping(tmp_path, published):
    path = tmp_path / "published.ckpt"
    path.write_bytes(published)
    code = textwrap.dedent(
        f"""
        import sys

        absent = ("llmcy.trainer", "llmcy.data", "llmcy.evaluate", "llmcy.run", "llmcy.generate")
        for name in absent:
            sys.modules[name] = None  # importing one raises
        import numpy as np
        from llmcy.checkpoint import Checkpoint
        from llmcy.checksum import fingerprint

        checkpoint = Checkpoint.load({str(path)!r})
        optimizer, model = checkpoint.restore_optimizer(), checkpoint.into_model()
        inputs = np.array([[0, 1]])
        before = fingerprint([model.forward(inputs).data])
        model.loss(inputs, np.array([[1, 2]])).backward()
        step = optimizer.step(model.named_parameters(), learning_rate=0.006)
        print(before, step, fingerprint([model.forward(inputs).data]))
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == [BEFORE, "9", AFTER]


@pytest.mark.feature("J16")
def test_a_checkpoint_of_the_replayed_state(checkpoint):
    """Save after the update, load, continue: the same bits as continuing without the file."""
    from tests.checkpoint.states import DIGITS, sealed

    model, optimizer = checkpoint.restore_independent_model(), checkpoint.restore_optimizer()
    step = update(model, optimizer)
    state = sealed(step, DecoderModelState.snapshot(model), optimizer.snapshot())
    saved = Checkpoint.from_snapshot(DIGITS, state, 1).encode().bytes
    loaded = Checkpoint.from_bytes(saved)
    other, other_optimizer = loaded.restore_independent_model(), loaded.restore_optimizer()
    assert update(other, other_optimizer) == update(model, optimizer) == 10
    assert bits_of(other) == bits_of(model)
    assert other_optimizer.state().equal_bits(optimizer.state())


def test_bits_that_equality_cannot_see_survive():
    """-0.0 and subnormals travel as bits."""
    config = ModelConfig(vocab_size=5, d_model=2, n_heads=1, n_layers=0, d_ff=1, max_seq_len=1)
    state = fresh_state(config)
    odd = np.array([[-0.0, 5e-324], [-5e-324, 1.7976931348623157e308], [0.1, 0.0], [1, 2], [3, 4]])
    from tests.checkpoint.states import DIGITS, sealed

    model = DecoderModelState.from_named_arrays(
        config, [("token_embedding.weight", odd), ("final_norm.gain", np.array([-0.0, 1.0]))]
    )
    data = Checkpoint.from_snapshot(DIGITS, sealed(0, model, state.optimizer), 0).encode().bytes
    back = Checkpoint.from_bytes(data).model_state
    assert back.bit_pattern().tobytes() == model.bit_pattern().tobytes()
    restored = Checkpoint.from_bytes(data).restore_independent_model()
    assert DecoderModelState.snapshot(restored).bit_pattern().tobytes() == (
        model.bit_pattern().tobytes()
    )
