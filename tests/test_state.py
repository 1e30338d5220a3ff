"""Snapshots of a model, and the sealed result of a run."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest

from llmcy.checksum import fingerprint
from llmcy.config import ModelConfig
from llmcy.errors import TrainerError
from llmcy.model import Decoder
from llmcy.reference.fixtures import PUBLISHED
from llmcy.state import DecoderModelState, SelectedTrainingState
from llmcy.trainer import TrainingResult, train_decoder


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


@pytest.fixture(scope="module")
def result() -> TrainingResult:
    return PUBLISHED.train_decoder()


@pytest.mark.feature("B26", "B52")
def test_a_snapshot_shows_what_it_holds() -> None:
    model = PUBLISHED.model()
    state = DecoderModelState.snapshot(model)
    named = model.named_parameters()
    assert state.config == PUBLISHED.model_config
    assert list(state.parameter_names()) == [name for name, _ in named]
    assert state.scalar_count() == 144
    bits = state.bit_pattern()
    assert bits.dtype == np.uint64
    assert bits.tolist() == np.concatenate([p.data.reshape(-1) for _, p in named]).view(
        np.uint64
    ).tolist()  # fmt: skip
    assert state.fingerprint() == fingerprint(p.data for _, p in named)
    assert state.fingerprint() == "fnv1a64:49b4b59410def7f0"


@pytest.mark.feature("B52")
def test_bits_outlive_the_state_without_holding_it() -> None:
    state = DecoderModelState.snapshot(PUBLISHED.model())
    arrays = [weakref.ref(array) for array in state._held()]
    bits = state.bit_pattern()
    assert not any(np.shares_memory(bits, array()) for array in arrays)
    del state
    gc.collect()
    assert [array() for array in arrays] == [None] * 11
    assert bits.size == 144


def test_float32_has_32_bit_patterns() -> None:
    config = ModelConfig(5, 4, 2, 1, 4, 2, dtype="float32")
    state = DecoderModelState.snapshot(Decoder.initialize(config, 33))
    assert state.bit_pattern().dtype == np.uint32
    assert state.bit_pattern().size == 144


@pytest.mark.feature("B22")
def test_the_buffers_of_a_snapshot_move_into_the_model() -> None:
    state = DecoderModelState.snapshot(PUBLISHED.model())
    before = [address(array) for _, array in state.named_arrays()]
    bits = state.bit_pattern().tolist()
    model = state.into_model()
    named = model.named_parameters()
    assert [address(parameter.data) for _, parameter in named] == before
    assert DecoderModelState.snapshot(model).bit_pattern().tolist() == bits
    assert model.token_embedding.weight is named[0][1]
    assert state.consumed
    for use in (state.into_model, state.restore_independent_model, state.bit_pattern):
        with pytest.raises(TrainerError) as caught:
            use()
        assert caught.value.kind == "StateConsumed"


def test_a_snapshot_is_a_copy() -> None:
    model = PUBLISHED.model()
    state = DecoderModelState.snapshot(model)
    other = state.independent_snapshot()
    addresses = [
        {address(array) for array in arrays}
        for arrays in (
            [p.data for _, p in model.named_parameters()],
            [array for _, array in state.named_arrays()],
            [array for _, array in other.named_arrays()],
            [p.data for _, p in state.restore_independent_model().named_parameters()],
        )
    ]
    assert len(set.union(*addresses)) == 44
    assert state.equal_bits(other)
    embedding = model.token_embedding.weight
    embedding.assign(embedding.data + 1.0)
    assert state.equal_bits(other)
    assert not state.equal_bits(DecoderModelState.snapshot(model))


def test_arrays_cannot_be_written() -> None:
    state = DecoderModelState.snapshot(PUBLISHED.model())
    for _, array in state.named_arrays():
        with pytest.raises(ValueError):
            array[...] = 0.0
        with pytest.raises(ValueError):
            array.flags.writeable = True


@pytest.mark.feature("B27")
@pytest.mark.parametrize("fault", ["renamed", "missing", "reshaped", "bad name"])
def test_a_failed_restore_keeps_the_state(fault: str) -> None:
    named = [
        (name, np.array(parameter.data)) for name, parameter in PUBLISHED.model().named_parameters()
    ]
    kind = "Model"
    if fault == "renamed":
        named[1] = ("blocks.0.attention_norm.weight", named[1][1])
    elif fault == "missing":
        del named[10]
    elif fault == "reshaped":
        named[2] = (named[2][0], named[2][1].reshape(2, 8))
    else:
        named[1] = ("blocks..gain", named[1][1])
        kind = "Initialization"
    state = DecoderModelState.from_named_arrays(PUBLISHED.model_config, named)
    names, bits = state.parameter_names(), state.bit_pattern().tolist()
    for restore in (state.restore_independent_model, state.into_model):
        with pytest.raises(TrainerError) as caught:
            restore()
        assert caught.value.kind == kind
        assert caught.value.cause is caught.value.__cause__
        assert state.parameter_names() == names
        assert state.bit_pattern().tolist() == bits
        with pytest.raises(ValueError):
            state._held()[0][...] = 0.0


def test_values_from_elsewhere_must_be_finite() -> None:
    named = [(n, np.array(p.data)) for n, p in PUBLISHED.model().named_parameters()]
    named[3][1][1, 2] = np.nan
    with pytest.raises(TrainerError) as caught:
        DecoderModelState.from_named_arrays(PUBLISHED.model_config, named)
    assert caught.value.kind == "Autodiff"
    assert (caught.value.cause.kind, caught.value.cause.index) == ("NonFiniteLeaf", 6)


def test_a_state_has_no_public_constructor() -> None:
    with pytest.raises(TrainerError) as caught:
        DecoderModelState()
    assert caught.value.kind == "SealedState"


# --------------------------------------------------------------------------- sealed
@pytest.mark.feature("B25", "B28", "B51")
def test_the_selected_model_is_separate_from_the_selected_state(result: TrainingResult) -> None:
    model = result.selected_model
    assert model is result.selected_model
    bits = result.selected_state.bit_pattern().tolist()
    assert DecoderModelState.snapshot(model).bit_pattern().tolist() == bits
    held = {address(array) for _, array in result.selected_state.named_arrays()}
    assert held.isdisjoint({address(p.data) for _, p in model.named_parameters()})
    weight = result.selected_state.restore_independent_model().token_embedding.weight
    weight.assign(np.zeros(weight.shape))
    assert result.selected_state.bit_pattern().tolist() == bits
    assert result.selected_state.fingerprint() == "fnv1a64:5bf915a97ebea3e5"


@pytest.mark.feature("B28", "E01")
def test_only_the_trainer_issues_a_selected_state(result: TrainingResult) -> None:
    sealed = result.selected_training_state
    parts = (sealed.step, sealed.model, sealed.optimizer)
    for arguments in ((), parts, (None, *parts), (object(), *parts)):
        with pytest.raises((TrainerError, TypeError)):
            SelectedTrainingState(*arguments)
    for name in ("step", "model", "optimizer", "_step", "_model", "_optimizer", "other"):
        with pytest.raises(TrainerError) as caught:
            setattr(sealed, name, 1)
        assert caught.value.kind == "SealedState"
    with pytest.raises(TrainerError):
        del sealed._step
    for name in ("step", "config", "state", "groups"):
        with pytest.raises(AttributeError):
            setattr(sealed.optimizer, name, 1)
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            duplicate(sealed)
    with pytest.raises(TypeError):
        type("Mine", (SelectedTrainingState,), {})
    with pytest.raises(TrainerError) as caught:
        sealed.model.into_model()
    assert caught.value.kind == "SealedState"
    assert sealed.model.independent_snapshot().into_model().n_parameters == 144
    for array in [a for _, a in sealed.model.named_arrays()] + (
        sealed.optimizer.state.moment_arrays()
    ):
        with pytest.raises(ValueError):
            array.flags.writeable = True


@pytest.mark.feature("B24")
def test_a_selected_state_is_not_reached_by_later_updates() -> None:
    """The wide fixture without clipping selects step 3 of 6."""
    from llmcy.reference.fixtures import wide

    fixture = wide(100.0)
    full = fixture.train_decoder()
    assert full.selected_step == 3
    stopped = train_decoder(
        fixture.model(),
        fixture.optimizer(),
        fixture.update_epoch(),
        fixture.train_evaluation_epoch(),
        fixture.validation_epoch(),
        wide_plan(fixture.rates[:3]),
    )
    assert stopped.final_state.equal_bits(full.selected_state)
    assert stopped.final_optimizer.state().equal_bits(full.selected_optimizer_state.state)
    assert full.selected_optimizer_state.step == 3
    assert not full.final_state.equal_bits(full.selected_state)


def wide_plan(rates: tuple[float, ...]) -> object:
    from llmcy.trainer import LearningRateSchedule, TrainerConfig

    return TrainerConfig(LearningRateSchedule(rates), [0, len(rates)], 100.0)
