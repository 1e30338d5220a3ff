"""Making a checkpoint from a sealed training state."""

import copy
import pickle

import numpy as np
import pytest

from llmcy import checkpoint as package
from llmcy.checkpoint import Checkpoint, TokenizerRecord
from llmcy.config import ModelConfig
from llmcy.errors import CheckpointError, LlmcyError
from llmcy.model import Decoder
from llmcy.optim import AdamWConfig, AdamWState, AdamWStateEntry, OptimizerSnapshot, ParameterGroups
from llmcy.state import DecoderModelState, SelectedTrainingState
from llmcy.tokenizer import BytePairTokenizer, LiteralTokenizer
from tests.checkpoint.states import DIGITS, SMALL, fresh_state, rule_groups, seal_of, sealed


def refusal(*arguments):
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.from_snapshot(*arguments)
    return caught.value


# --------------------------------------------------------------------------- the only sources
@pytest.mark.feature("J01")
def test_loose_parts_are_refused():
    state = fresh_state()
    for loose in (
        None,
        (0, state.model, state.optimizer),
        state.model,
        state.optimizer,
        {"step": 0, "model": state.model, "optimizer": state.optimizer},
        Decoder.initialize(SMALL, 1),
    ):
        error = refusal(DIGITS, loose, 0)
        assert error.kind == "NotSealed"
        assert error.actual == type(loose).__name__


@pytest.mark.feature("J01")
def test_no_public_way_to_a_sealed_state_or_a_checkpoint():
    state = fresh_state()
    with pytest.raises(LlmcyError):
        SelectedTrainingState(0, state.model, state.optimizer)
    with pytest.raises(LlmcyError):
        SelectedTrainingState(None, 0, state.model, state.optimizer)
    with pytest.raises(LlmcyError):
        state.step = 5
    with pytest.raises(TypeError):
        Checkpoint()
    with pytest.raises(TypeError):
        Checkpoint(DIGITS, state, 0)
    makers = {name for name in vars(Checkpoint) if not name.startswith("_")}
    classmethods = {name for name in makers if isinstance(vars(Checkpoint)[name], classmethod)}
    assert classmethods == {"from_snapshot", "from_bytes", "load"}
    assert "Content" not in package.__all__


@pytest.mark.feature("J01")
def test_a_checkpoint_cannot_be_changed():
    checkpoint = Checkpoint.from_snapshot(DIGITS, fresh_state(), 0)
    for name in ("selected_step", "tokenizer", "_content", "extra"):
        with pytest.raises(AttributeError):
            setattr(checkpoint, name, 1)
    with pytest.raises(AttributeError):
        del checkpoint._content
    assert checkpoint.selected_step == 0


@pytest.mark.parametrize(
    "tokenizer",
    [DIGITS, LiteralTokenizer([b"0", b"1", b"2", b"3", b"4"])],
)
def test_tokenizer_forms(tokenizer):
    checkpoint = Checkpoint.from_snapshot(tokenizer, fresh_state(), 0)
    assert checkpoint.tokenizer == DIGITS


def test_a_byte_pair_tokenizer_is_taken_as_it_is():
    tokenizer = BytePairTokenizer.from_pairs([(97, 98)])
    config = ModelConfig(vocab_size=259, d_model=2, n_heads=1, n_layers=0, d_ff=1, max_seq_len=1)
    checkpoint = Checkpoint.from_snapshot(tokenizer, fresh_state(config), 0)
    assert checkpoint.tokenizer.restore_bpe() == tokenizer


@pytest.mark.parametrize("thing", [None, [b"0"], b"01234"])
def test_other_things_are_no_tokenizers(thing):
    with pytest.raises(TypeError, match="tokenizer must be"):
        Checkpoint.from_snapshot(thing, fresh_state(), 0)


def test_no_copies_around_the_format():
    checkpoint = Checkpoint.from_snapshot(DIGITS, fresh_state(), 0)
    for make in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="encode"):
            make(checkpoint)


# --------------------------------------------------------------------------- checks in order
def test_float32_is_refused_by_name():
    config = ModelConfig(
        vocab_size=5, d_model=2, n_heads=1, n_layers=1, d_ff=2, max_seq_len=2, dtype="float32"
    )
    error = refusal(TokenizerRecord.literal([b"x"]), fresh_state(config), 0)
    assert error.kind == "UnsupportedModelDType"
    assert error.dtype == "float32"
    assert "float32" in str(error)


@pytest.mark.parametrize("step", [2**64, -1])
def test_a_step_beyond_64_bits(step):
    state = fresh_state(step=1)
    error = refusal(TokenizerRecord.literal([b"x"]), sealed(step, state.model, state.optimizer), 0)
    assert (error.kind, error.context) == ("SizeOverflow", "selected step")


@pytest.mark.parametrize("rng_state", [2**64, -1, 0.5, None])
def test_a_sampling_state_that_is_no_64_bit_number(rng_state):
    error = refusal(DIGITS, fresh_state(), rng_state)
    assert (error.kind, error.context) == ("SizeOverflow", "sampling RNG state")


def test_the_largest_numbers_fit():
    state = fresh_state(step=1)
    last = 2**64 - 1
    inner = state.optimizer.state
    optimizer = OptimizerSnapshot(
        state.optimizer.config,
        None,
        AdamWState(last, inner.beta1_power, inner.beta2_power, inner.entries),
    )
    checkpoint = Checkpoint.from_snapshot(
        DIGITS, sealed(last, state.model, optimizer), np.uint64(last)
    )
    again = Checkpoint.from_bytes(checkpoint.encode().bytes)
    assert (again.selected_step, again.sampling_rng_state()) == (last, last)


@pytest.mark.feature("M44")
def test_vocabulary_mismatch_comes_before_step_mismatch():
    state = fresh_state(step=1)
    wrong_step = sealed(6, state.model, state.optimizer)
    error = refusal(TokenizerRecord.literal([b"x"]), wrong_step, 0)
    assert error.kind == "VocabularyMismatch"
    assert (error.tokenizer, error.decoder) == (1, 5)


@pytest.mark.feature("J03", "P06")
def test_step_6_with_an_optimizer_at_8():
    state = fresh_state(step=8)
    error = refusal(DIGITS, sealed(6, state.model, state.optimizer), 0)
    assert error.kind == "StepMismatch"
    assert (error.selected, error.optimizer) == (6, 8)


def other_optimizer(state, entries, groups=None):
    inner = state.optimizer.state
    return OptimizerSnapshot(
        state.optimizer.config,
        groups,
        AdamWState(inner.step, inner.beta1_power, inner.beta2_power, entries),
    )


def test_optimizer_names():
    state = fresh_state(step=2)
    entries = list(state.optimizer.state.entries)[1:]
    error = refusal(DIGITS, sealed(2, state.model, other_optimizer(state, entries)), 0)
    names = tuple(sorted(state.model.parameter_names()))
    assert error.kind == "OptimizerNames"
    assert (error.expected, error.actual) == (names, names[1:])


def test_optimizer_shape_of_the_first_name_in_byte_order():
    state = fresh_state(step=2)
    entries = [
        AdamWStateEntry(
            entry.name, (entry.first_moment.size, 1), *([np.zeros(entry.first_moment.size)] * 2)
        )
        if entry.name in ("final_norm.gain", "blocks.0.ffn_norm.gain")
        else entry
        for entry in state.optimizer.state.entries
    ]
    error = refusal(DIGITS, sealed(2, state.model, other_optimizer(state, entries)), 0)
    assert error.kind == "OptimizerShape"
    assert (error.name, error.model, error.optimizer) == ("blocks.0.ffn_norm.gain", (2,), (2, 1))


def test_step_0_relates_nothing():
    groups = ParameterGroups(["unrelated"], [])
    checkpoint = Checkpoint.from_snapshot(DIGITS, fresh_state(groups=groups), 0)
    again = Checkpoint.from_bytes(checkpoint.encode().bytes)
    assert again.optimizer.groups == groups


# --------------------------------------------------------------------------- copies
@pytest.mark.feature("J02", "M12")
def test_creation_copies():
    state = fresh_state(step=1, groups=rule_groups())
    checkpoint = Checkpoint.from_snapshot(DIGITS, state, 0)
    before = checkpoint.encode().bytes
    for name, array in state.model.named_arrays():
        held = dict(checkpoint._content.model.named_arrays())[name]
        assert not np.shares_memory(array, held)
    for entry, held in zip(
        state.optimizer.state.entries, checkpoint.optimizer.state.entries, strict=True
    ):
        assert not np.shares_memory(entry.first_moment, held.first_moment)
        assert not np.shares_memory(entry.second_moment, held.second_moment)
    model = state.model.restore_independent_model()  # the result stays usable, and changes freely
    for _, parameter in model.named_parameters():
        parameter.assign(np.full(parameter.shape, 0.5))
    assert checkpoint.encode().bytes == before


@pytest.mark.feature("J02")
def test_an_earlier_selected_step_keeps_its_own_optimizer():
    early, late = fresh_state(step=3, seed=1), fresh_state(step=8, seed=2)
    checkpoint = Checkpoint.from_snapshot(DIGITS, early, 0)
    assert late.step == 8
    assert checkpoint.selected_step == checkpoint.optimizer.state.step == 3
    assert checkpoint.optimizer.state.beta1_power == 0.9**3
    assert checkpoint.model_state.fingerprint() == early.model.fingerprint()


@pytest.mark.feature("J11X", "J13X")
def test_what_is_given_decides_the_bytes():
    def bytes_of(**changes):
        return Checkpoint.from_snapshot(DIGITS, fresh_state(**changes), 9).encode().bytes

    assert bytes_of() == bytes_of()
    assert bytes_of(adamw=AdamWConfig(0.04, weight_decay=0.0)) != bytes_of()
    assert bytes_of(seed=36) != bytes_of()


@pytest.mark.feature("M18")
def test_accessors(published):
    checkpoint = Checkpoint.from_bytes(published)
    assert checkpoint.rng_state() == checkpoint.sampling_rng_state() == 0x9E3779B97F4A7C38
    assert checkpoint.tokenizer.kind == "literal-u32"
    assert isinstance(checkpoint.model_state, DecoderModelState)
    assert isinstance(checkpoint.optimizer, OptimizerSnapshot)
    assert checkpoint.selected_step == 8
    assert "selected_step=8" in repr(checkpoint)
    arrays = checkpoint.model_state.named_arrays()
    with pytest.raises(ValueError, match="read-only"):
        arrays[0][1][0] = 1.0
    with pytest.raises(ValueError, match="read-only"):
        checkpoint.optimizer.state.entries[0].first_moment[0] = 1.0
    checkpoint.model_state.into_model()  # of a copy: the checkpoint is not consumed
    assert checkpoint.encode().bytes == published


@pytest.mark.feature("J04X")
def test_no_lineage_is_proved(published):
    """Any model and optimizer with equal step numbers make a checkpoint."""
    loaded = Checkpoint.from_bytes(published)
    state = seal_of(loaded)
    config = state.model.config
    stranger = DecoderModelState.snapshot(Decoder.initialize(config, 1))
    checkpoint = Checkpoint.from_snapshot(DIGITS, sealed(8, stranger, state.optimizer), 0)
    again = Checkpoint.from_bytes(checkpoint.encode().bytes)
    assert again.model_state.fingerprint() == stranger.fingerprint()
