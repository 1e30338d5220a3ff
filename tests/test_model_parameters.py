"""One node per parameter, and decoders rebuilt from arrays."""

import json
from pathlib import Path

import numpy as np
import pytest

from llmcy.config import ModelConfig
from llmcy.errors import AutodiffError, DTypeError, InitializationError, ModelError
from llmcy.model import Decoder
from llmcy.nn import Parameter
from tests.models import SMALL, bits, gradients

GOLDEN = json.loads((Path(__file__).parent / "golden" / "first_batches.json").read_text())


# ------------------------------------------------------------------ one node per parameter
def used_parameters(model: Decoder) -> list[Parameter]:
    """The nodes that the layers compute with, found by hand."""
    nodes = [model.token_embedding.weight]
    for block in model.blocks:
        attention = block.attention
        nodes += [block.attention_norm.gain]
        nodes += [p.weight for p in (attention.query, attention.key, attention.value)]
        nodes += [attention.output.weight, block.ffn_norm.gain]
        nodes += [p.weight for p in (block.ffn.gate, block.ffn.up, block.ffn.down)]
    return [*nodes, model.final_norm.gain]


@pytest.mark.feature("A37", "B35")
def test_registry_entries_are_the_nodes_the_layers_use():
    model = Decoder.initialize(ModelConfig(5, 4, 2, 3, 4, 2), 33)
    registry = model.named_parameters()
    assert [name for name, _ in registry] == list(model.config.parameter_shapes())
    assert [name for name, _ in registry] == [p.name for _, p in registry]
    assert [id(p) for _, p in registry] == [id(p) for p in used_parameters(model)]
    assert [id(p) for _, p in model.named_parameters()] == [id(p) for _, p in registry]


@pytest.mark.feature("A38", "D05")
def test_writing_a_parameter_keeps_its_node_and_every_alias_sees_it():
    model = Decoder.initialize(SMALL, 33)
    before = model.forward([[0, 1]]).data.copy()
    registry = dict(model.named_parameters())
    query = registry["blocks.0.attention.query.weight"]
    address = query.data.ctypes.data
    query.assign(query.data * 2.0)
    assert model.blocks[0].attention.query.weight is query
    assert dict(model.named_parameters())["blocks.0.attention.query.weight"] is query
    assert query.data.ctypes.data == address
    assert query.revision == 1
    assert model.forward([[0, 1]]).data.tobytes() != before.tobytes()


@pytest.mark.feature("A39", "M16")
def test_lookup_and_output_projection_share_one_node():
    model = Decoder.initialize(SMALL, 33)
    names = [name for name, _ in model.named_parameters()]
    assert names.count("token_embedding.weight") == 1
    assert not [name for name in names if "head" in name or "lm" in name]
    table = model.token_embedding.weight
    lookup = model.token_embedding([[2, 2]]).data.copy()
    logits = model.forward([[0, 1]]).data.copy()  # token 2 is not looked up here
    changed = table.data.copy()
    changed[2, 1] += 1.0
    table.assign(changed)
    assert model.token_embedding([[2, 2]]).data.tobytes() != lookup.tobytes()
    after = model.forward([[0, 1]]).data
    different = (after != logits).any(axis=(0, 1))
    assert different.tolist() == [False, False, True, False, False]


@pytest.mark.feature("A40")
def test_replacing_a_registry_entry_would_not_reach_the_layers():
    model = Decoder.initialize(SMALL, 33)
    before = model.forward([[0, 1]]).data.copy()
    registry = model.named_parameters()
    for index, (name, p) in enumerate(registry):
        registry[index] = (name, Parameter(name, np.zeros(p.shape)))
    assert model.forward([[0, 1]]).data.tobytes() == before.tobytes()
    registry[0][1].assign(np.ones((5, 4)))
    assert model.forward([[0, 1]]).data.tobytes() == before.tobytes()


# ------------------------------------------------------------------ rebuilding
def named_arrays(config: ModelConfig = SMALL, seed: int = 33) -> list[tuple[str, np.ndarray]]:
    model = Decoder.initialize(config, seed)
    return [(name, p.data.copy()) for name, p in model.named_parameters()]


@pytest.mark.feature("B42")
def test_a_rebuilt_model_has_one_embedding_node_for_both_uses():
    named = named_arrays()
    model = Decoder.from_parameters(SMALL, named)
    assert [id(p) for _, p in model.named_parameters()] == [id(p) for p in used_parameters(model)]
    original = Decoder.initialize(SMALL, 33)
    assert model.forward([[0, 1]]).data.tobytes() == original.forward([[0, 1]]).data.tobytes()
    loss = model.loss([[4, 0], [0, 1]], [[0, 1], [1, 2]])
    loss.backward()
    assert {n: bits(g) for n, g in gradients(model).items()} == GOLDEN["published"]["gradients"]


def test_arrays_are_copied_or_moved():
    named = named_arrays()
    copied = Decoder.from_parameters(SMALL, dict(named))
    for (_, array), (_, p) in zip(named, copied.named_parameters(), strict=True):
        assert not np.may_share_memory(array, p.data)
    moved = Decoder.from_parameters(SMALL, named, copy=False)
    for (_, array), (_, p) in zip(named, moved.named_parameters(), strict=True):
        assert array.ctypes.data == p.data.ctypes.data


@pytest.mark.feature("B40")
def test_reconstruction_boundary():
    named = named_arrays()
    with pytest.raises(ModelError) as caught:
        Decoder.from_parameters(SMALL, named[:-1])
    error = caught.value
    assert (error.kind, error.expected, error.actual) == ("ParameterCountMismatch", 11, 10)

    swapped = [*named[:2], named[3], named[2], *named[4:]]
    with pytest.raises(ModelError) as caught:
        Decoder.from_parameters(SMALL, swapped)
    error = caught.value
    assert (error.kind, error.index) == ("ParameterNameMismatch", 2)
    assert error.expected == "blocks.0.attention.query.weight"
    assert error.actual == "blocks.0.attention.key.weight"

    wrong = [(name, array.T.copy()[:3] if "key" in name else array) for name, array in named]
    with pytest.raises(ModelError) as caught:
        Decoder.from_parameters(SMALL, wrong)
    assert (caught.value.kind, caught.value.layer) == ("Block", 0)


def test_names_and_values_are_checked_before_the_layout():
    named = named_arrays()
    with pytest.raises(InitializationError) as caught:
        Decoder.from_parameters(SMALL, [("token_embedding..weight", named[0][1])])
    assert (caught.value.kind, caught.value.index) == ("EmptyNameSegment", 1)
    broken = named[0][1].copy()
    broken[3, 2] = np.nan
    with pytest.raises(InitializationError) as caught:
        Decoder.from_parameters(SMALL, [("other", broken)])
    error = caught.value
    assert error.kind == "Autodiff"
    assert isinstance(error.cause, AutodiffError)
    assert (error.cause.kind, error.cause.index) == ("NonFiniteLeaf", 14)


def test_the_dtype_must_be_the_configured_one():
    narrow = [(name, array.astype(np.float32)) for name, array in named_arrays()]
    with pytest.raises(DTypeError) as caught:
        Decoder.from_parameters(SMALL, narrow)
    assert (caught.value.name, caught.value.actual) == ("token_embedding.weight", "float32")


def test_a_table_that_no_memory_can_hold():
    config = ModelConfig(5, 4, 2, 1, 4, 2**59)
    with pytest.raises(ModelError) as caught:
        Decoder.initialize(config, 33)
    assert caught.value.kind == "RotaryTableAllocationFailed"
