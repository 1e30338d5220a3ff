"""The whole decoder: published batches, the oracle, inputs, rows and prefixes."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcy import kernels
from llmcy._threads import num_threads, set_num_threads
from llmcy.checksum import fingerprint
from llmcy.config import ModelConfig
from llmcy.errors import AutodiffError, DTypeError, ModelError
from llmcy.gradcheck import gradcheck
from llmcy.model import Decoder
from llmcy.rng import SplitMix64
from llmcy.tape import no_grad
from tests.graph import Trace
from tests.models import SMALL, assert_same, bits, gradients, random_case, values
from tests.oracle import model as oracle

GOLDEN = json.loads((Path(__file__).parent / "golden" / "first_batches.json").read_text())


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
    worst = gradcheck(lambda: model.loss(inputs, targets), [p for _, p in model.named_parameters()])
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
