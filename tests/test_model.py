"""The whole decoder: published batches, the oracle, one node per parameter, pieces of a batch."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcy import kernels, ops
from llmcy._threads import num_threads, set_num_threads
from llmcy.checksum import fingerprint
from llmcy.config import ModelConfig
from llmcy.errors import AutodiffError, DTypeError, InitializationError, ModelError
from llmcy.gradcheck import gradcheck
from llmcy.model import Decoder
from llmcy.nn import Parameter
from llmcy.rng import SplitMix64
from llmcy.tape import CarriedGradients, no_grad
from tests.graph import Trace
from tests.oracle import model as oracle

GOLDEN = json.loads((Path(__file__).parent / "golden" / "first_batches.json").read_text())
SMALL = ModelConfig(5, 4, 2, 1, 4, 2)


def bits(array) -> list[str]:
    words = np.ascontiguousarray(array).reshape(-1).view(np.uint64)
    return [f"{int(word):016x}" for word in words]


def values(model: Decoder) -> dict[str, np.ndarray]:
    return {name: p.data for name, p in model.named_parameters()}


def gradients(model: Decoder) -> dict[str, np.ndarray]:
    return {name: p.grad for name, p in model.named_parameters()}


def assert_same(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(actual) == list(expected) or set(actual) == set(expected)
    wrong = [name for name in actual if actual[name].tobytes() != expected[name].tobytes()]
    assert not wrong


@pytest.fixture(params=[1, 3])
def threads(request):
    before = num_threads()
    set_num_threads(request.param)
    yield request.param
    set_num_threads(before)


# ------------------------------------------------------------------ published numbers
def expected_names(n_layers: int) -> tuple[list[str | None], list[str | None]]:
    """Which activation and which adjoint each recorded operation shows, in recorded order."""
    activations, adjoints = ["embedding"], ["embedding"]
    for n in range(n_layers):
        at = f"blocks.{n}."
        activations += [
            at + name if name else None
            for name in [
                "attention_norm.output", None, "query_rotated", None, "key_rotated", "value",
                "merged", "attention_output", "after_attention", "ffn_norm.output", "gate_linear",
                "up", "product", "ffn_output", "output",
            ]
        ]  # fmt: skip
        adjoints += [
            at + name if name else None
            for name in [
                "attention_norm.output", "query", None, "key", None, "value", "merged",
                "after_attention", "after_attention", "ffn_norm.output", "gate_linear", "up",
                "product", "output", "output",
            ]
        ]  # fmt: skip
    return (
        [*activations, "final_norm.output", "logits", None],
        [*adjoints, "final_norm.output", "logits", None],
    )


@pytest.mark.parametrize("which", ["published", "wide"])
def test_first_batch_of_the_published_runs(which, isa, threads):
    golden = GOLDEN[which]
    show = bits if which == "published" else lambda array: fingerprint([array])
    model = Decoder.initialize(ModelConfig.from_dict(golden["config"]), golden["seed"])
    assert {n: show(v) for n, v in values(model).items()} == golden["initial"]

    loss = model.loss(golden["inputs"], golden["targets"])
    assert bits(loss.data) == [golden["loss"]]
    trace = Trace(loss)
    loss.backward()
    activations, adjoints = expected_names(model.config.n_layers)
    seen = set()
    for index, op in enumerate(trace.ops):
        if activations[index] is not None:
            seen.add(activations[index])
            assert show(trace.results[index]) == golden["activations"][activations[index]]
        if op == "rms_norm" and activations[index] != "final_norm.output":
            name = activations[index].replace(".output", ".inverse_rms")
            if name in golden["activations"]:
                seen.add(name)
                assert show(trace.saved[index][0]) == golden["activations"][name]
        if adjoints[index] is not None:
            assert show(trace.adjoints[index]) == golden["adjoints"][adjoints[index]]
    assert set(filter(None, adjoints)) == set(golden["adjoints"])
    unseen = set(golden["activations"]) - seen
    assert unseen == {f"blocks.{n}.gate_silu" for n in range(model.config.n_layers)}
    for name in unseen:
        gate = trace.results[activations.index(name.replace("gate_silu", "gate_linear"))]
        assert show(kernels.silu(gate)) == golden["activations"][name]
    assert {n: show(g) for n, g in gradients(model).items()} == golden["gradients"]


def test_the_published_first_loss_and_norm():
    """Figures of the published report, typed in, not computed by anything here."""
    model = Decoder.initialize(SMALL, 33)
    assert fingerprint(values(model).values()) == "fnv1a64:49b4b59410def7f0"
    loss = model.loss([[4, 0], [0, 1]], [[0, 1], [1, 2]])
    assert bits(loss.data) == ["4003a1c9cbeff083"]
    loss.backward()
    squares = sum(float(np.sum(g * g)) for g in gradients(model).values())
    assert round(squares**0.5, 6) == 4.051362


@pytest.mark.feature("A02")
def test_the_published_model_has_11_tensors_and_144_scalars():
    model = Decoder.initialize(SMALL, 33)
    assert len(model.named_parameters()) == 11
    assert model.n_parameters == 144
    assert model.config.n_parameters == 144


# ------------------------------------------------------------------ the oracle
def random_case(seed: int, dtype: str) -> tuple[Decoder, np.ndarray, np.ndarray]:
    draw = random.Random(seed)
    n_heads, head_dim = draw.choice([1, 2, 3]), draw.choice([2, 4, 6])
    config = ModelConfig(
        vocab_size=draw.randint(1, 9),
        d_model=n_heads * head_dim,
        n_heads=n_heads,
        n_layers=draw.randint(0, 2),
        d_ff=draw.randint(1, 9),
        max_seq_len=draw.randint(1, 5),
        rope_theta=draw.choice([10000.0, 3.0, 500.0]),
        rms_norm_eps=draw.choice([1e-6, 1e-5, 0.0]),
        dtype=dtype,
        n_kv_heads=draw.choice([k for k in (None, 1, 2, 3) if k is None or n_heads % k == 0]),
        head_size=draw.choice([None, None, 2, 8]),
        tied_head=draw.choice([True, False]),
    )
    model = Decoder.initialize(config, seed)
    for _, p in model.named_parameters():  # gains that differ from one, larger weights
        factors = np.array([draw.uniform(-2.0, 2.0) for _ in range(p.size)], p.dtype)
        p.assign(p.data * factors.reshape(p.shape))
    shape = (draw.randint(1, 4), draw.randint(1, config.max_seq_len))
    inputs, targets = (
        np.array([draw.randrange(config.vocab_size) for _ in range(shape[0] * shape[1])])
        for _ in range(2)
    )
    return model, inputs.reshape(shape), targets.reshape(shape)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["float64", "float32"]))
def test_loss_and_gradients_equal_the_oracle(seed, dtype):
    model, inputs, targets = random_case(seed, dtype)
    loss, _, _, expected = oracle.run(model.config, values(model), inputs, targets)
    result = model.loss(inputs, targets)
    assert result.dtype == np.float64
    assert bits(result.data) == bits(np.array(loss))
    result.backward()
    assert_same(gradients(model), expected)


@pytest.mark.parametrize("seed", [3, 8])
def test_every_instruction_set_equals_the_oracle(seed, dtype, isa, threads):
    model, inputs, targets = random_case(seed, dtype.name)
    _, activations, _, expected = oracle.run(model.config, values(model), inputs, targets)
    assert model.forward(inputs).data.tobytes() == activations["logits"].tobytes()
    model.loss(inputs, targets).backward()
    assert_same(gradients(model), expected)


def test_gradients_agree_with_central_differences():
    config = ModelConfig(7, 8, 2, 2, 6, 4, rope_theta=50.0)
    model = Decoder.initialize(config, 5)
    inputs, targets = [[1, 6, 2, 0], [3, 3, 5, 1]], [[6, 2, 0, 4], [3, 5, 1, 1]]
    worst = gradcheck(
        lambda: model.loss(inputs, targets), [p for _, p in model.named_parameters()]
    )
    assert worst.error < 1e-7


# ------------------------------------------------------------------ initialisation
def test_one_generator_draws_the_weights_and_gains_consume_nothing():
    config = ModelConfig(3, 2, 1, 1, 5, 4)
    rng = SplitMix64(9)
    model = Decoder.initialize(config, rng)
    plain = SplitMix64(9)
    for name, p in model.named_parameters():
        if name.endswith(".gain"):
            assert p.data.tolist() == [1.0] * 2
            continue
        limit = (6.0 / sum(p.shape)) ** 0.5
        expected = [limit * ((2.0 * plain.unit()) - 1.0) for _ in range(p.size)]
        assert p.data.reshape(-1).tolist() == expected
    assert rng.state == plain.state


def test_float32_parameters_are_the_float64_ones_rounded_once():
    wide = Decoder.initialize(ModelConfig(9, 6, 1, 1, 5, 4), 4)
    narrow = Decoder.initialize(ModelConfig(9, 6, 1, 1, 5, 4, dtype="float32"), 4)
    for (_, a), (_, b) in zip(wide.named_parameters(), narrow.named_parameters(), strict=True):
        assert b.data.dtype == np.float32
        assert a.data.astype(np.float32).tobytes() == b.data.tobytes()


def test_gradients_start_at_zero():
    for gradient in gradients(Decoder.initialize(SMALL, 1)).values():
        assert gradient.tobytes() == np.zeros_like(gradient).tobytes()


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


# ------------------------------------------------------------------ inputs
def test_inputs_are_checked():
    model = Decoder.initialize(ModelConfig(5, 4, 2, 1, 4, 3), 33)
    cases = {
        "InputRank": [0, 1],
        "EmptyInput": np.zeros((2, 0), np.int64),
        "ContextTooLong": [[0, 1, 2, 3]],
        "TokenOutOfBounds": [[0, 1], [5, 2]],
    }
    for kind, inputs in cases.items():
        with pytest.raises(ModelError) as caught:
            model.forward(inputs)
        assert caught.value.kind == kind
    assert (caught.value.index, caught.value.token_id, caught.value.vocab_size) == (2, 5, 5)
    with pytest.raises(ModelError) as caught:
        model.forward([[0, -1]])
    assert (caught.value.kind, caught.value.token_id) == ("TokenOutOfBounds", -1)
    with pytest.raises(ModelError) as caught:
        model.loss([[0, 1]], [[0, 1, 2]])
    assert (caught.value.kind, caught.value.expected) == ("TargetShapeMismatch", (1, 2))
    with pytest.raises(ModelError) as caught:
        model.loss([[0, 1]], [[0, 7]])
    assert (caught.value.kind, caught.value.index) == ("TokenOutOfBounds", 1)
    with pytest.raises(DTypeError):
        model.forward([[0.0, 1.0]])


def test_any_whole_number_type_will_do():
    model = Decoder.initialize(SMALL, 33)
    expected = model.forward([[4, 0]]).data.tobytes()
    for dtype in (np.uint8, np.int32, np.uint64, np.int64):
        assert model.forward(np.array([[4, 0]], dtype)).data.tobytes() == expected
    columns = np.array([[4, 9], [0, 9]], np.int64).T[:1]  # not contiguous
    assert model.forward(columns).data.tobytes() == expected


# ------------------------------------------------------------------ rows, prefixes, recording
def test_logits_depend_on_the_rows_own_prefix_only(dtype):
    config = ModelConfig(11, 12, 2, 2, 10, 7, dtype=dtype.name)
    model = Decoder.initialize(config, 3)
    rows = [[1, 5, 9, 2, 2, 0, 10], [3, 3, 3, 3, 3, 3, 3], [10, 9, 8, 7, 6, 5, 4]]
    whole = model.forward(rows).data
    for b, row in enumerate(rows):
        for length in range(1, 8):
            alone = model.forward([row[:length]]).data
            assert alone[0].tobytes() == whole[b, :length].tobytes()


def test_no_grad_gives_the_same_bits_without_a_graph():
    model = Decoder.initialize(SMALL, 33)
    inputs, targets = [[4, 0], [0, 1]], [[0, 1], [1, 2]]
    recorded = model.loss(inputs, targets)
    with no_grad():
        plain = model.loss(inputs, targets)
    assert recorded.op == "cross_entropy"
    assert plain.op is None
    assert plain.data.tobytes() == recorded.data.tobytes()


def test_a_step_between_forward_and_backward_is_refused():
    model = Decoder.initialize(SMALL, 33)
    loss = model.loss([[4, 0]], [[0, 1]])
    gain = model.final_norm.gain
    gain.assign(gain.data * 0.5)
    with pytest.raises(AutodiffError) as caught:
        loss.backward()
    assert (caught.value.kind, caught.value.op) == ("ValueRevisionChanged", "rms_norm")
    for gradient in gradients(model).values():
        assert gradient.tobytes() == np.zeros_like(gradient).tobytes()


def test_an_overflow_names_the_operation_and_changes_nothing():
    model = Decoder.initialize(SMALL, 33)
    up = model.blocks[0].ffn.up.weight
    up.assign(np.full(up.shape, 1.7e308))
    with pytest.raises(AutodiffError) as caught:
        model.loss([[4, 0]], [[0, 1]])
    assert (caught.value.kind, caught.value.op) == ("NonFiniteValue", "linear")


def test_zero_grad_clears_every_gradient():
    model = Decoder.initialize(SMALL, 33)
    model.loss([[4, 0]], [[0, 1]]).backward()
    assert any(g.any() for g in gradients(model).values())
    model.zero_grad()
    for gradient in gradients(model).values():
        assert gradient.tobytes() == np.zeros_like(gradient).tobytes()


# ------------------------------------------------------------------ micro-batches
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["float64", "float32"]), st.data())
def test_pieces_of_a_batch_with_carried_gradients_give_the_bits_of_the_whole(seed, dtype, data):
    model, inputs, targets = random_case(seed, dtype)
    inputs = np.concatenate([inputs, inputs[::-1], (inputs + 1) % model.config.vocab_size])
    targets = np.concatenate([targets, targets[::-1], targets])
    n = targets.size
    row_losses = np.empty(n)
    whole = model.loss(inputs, targets, row_losses=row_losses)
    whole.backward()
    expected = {name: g.copy() for name, g in gradients(model).items()}
    model.zero_grad()

    carry = CarriedGradients()
    piece_losses = np.empty(n)
    start, width = 0, inputs.shape[1]
    while start < len(inputs):
        stop = data.draw(st.integers(start + 1, len(inputs)))
        part = piece_losses[start * width : stop * width]
        loss = model.loss(inputs[start:stop], targets[start:stop], n, row_losses=part)
        assert not any(g.any() for g in gradients(model).values())
        loss.backward(carry=carry)
        start = stop
    carry.commit()
    assert_same(gradients(model), expected)
    assert piece_losses.tobytes() == row_losses.tobytes()
    assert float(kernels.mean(piece_losses)) == whole.item()


def test_carried_gradients_add_to_what_is_stored():
    model = Decoder.initialize(SMALL, 33)
    inputs, targets = [[4, 0], [0, 1]], [[0, 1], [1, 2]]
    for _ in range(2):
        model.loss(inputs, targets).backward()
    expected = {name: g.copy() for name, g in gradients(model).items()}
    model.zero_grad()
    carry = CarriedGradients()
    for _ in range(2):
        for row, target in zip(inputs, targets, strict=True):
            model.loss([row], [target], 4).backward(carry=carry)
        carry.commit()
    assert_same(gradients(model), expected)


def test_a_failed_piece_spoils_the_carry_and_changes_no_gradient():
    model = Decoder.initialize(SMALL, 33)
    carry = CarriedGradients()
    model.loss([[4, 0]], [[0, 1]], 4).backward(carry=carry)
    broken = ops.scale(model.loss([[0, 1]], [[1, 2]], 4), 1e300)
    with pytest.raises(AutodiffError) as caught:
        broken.backward(seed=1e300, carry=carry)
    assert caught.value.kind == "NonFiniteGradient"
    for attempt in (
        carry.commit,
        lambda: model.loss([[4, 0]], [[0, 1]], 4).backward(carry=carry),
    ):
        with pytest.raises(AutodiffError) as caught:
            attempt()
        assert caught.value.kind == "CarryFailed"
    for gradient in gradients(model).values():
        assert gradient.tobytes() == np.zeros_like(gradient).tobytes()


def test_contributions_that_are_no_folds_cannot_be_carried():
    model = Decoder.initialize(SMALL, 33)
    with pytest.raises(AutodiffError) as caught:
        ops.sum(ops.scale(model.final_norm.gain, 2.0)).backward(carry=CarriedGradients())
    assert (caught.value.kind, caught.value.op) == ("NotCarried", "scale")
