"""Shared key and value heads, heads of their own width, untied heads: bits, gradients, files."""

import dataclasses
import json

import numpy as np
import pytest

from llmcy import _kernels
from llmcy._threads import num_threads, set_num_threads
from llmcy.checkpoint import Checkpoint
from llmcy.config import ModelConfig
from llmcy.errors import CheckpointError, ModelError
from llmcy.gradcheck import gradcheck
from llmcy.model import Decoder
from llmcy.nn.layout import check_decoder_layout, parameter_names
from llmcy.optim import ParameterGroups
from llmcy.reference.fixtures import TrainingFixture, wide
from llmcy.run import load_model
from llmcy.run.model_file import encode_model_file
from llmcy.state import DecoderModelState
from llmcy.tokenizer import LiteralTokenizer
from llmcy.trainer import TrainerConfig, train_decoder
from tests.checkpoint.states import DIGITS, fresh_state
from tests.cli.command import llmcy
from tests.reference.test_odd_sized import by_oracle

SHAPES = {
    "shared": {"n_heads": 6, "n_kv_heads": 2},
    "untied": {"tied_head": False},
    "own width": {"n_heads": 3, "head_size": 6},
    "everything": {"n_heads": 6, "n_kv_heads": 3, "head_size": 4, "tied_head": False},
    "one key head": {"n_heads": 3, "n_kv_heads": 1},
}
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
EVERYTHING = dataclasses.replace(wide(1.2).model_config, **SHAPES["everything"])


def fixture_of(shape: dict, dtype: str) -> TrainingFixture:
    fixture = wide(1.2)
    config = dataclasses.replace(fixture.model_config, dtype=dtype, **shape)
    return dataclasses.replace(fixture, model_config=config)


# ------------------------------------------------------------------ the configuration
def test_one_model_has_one_configuration():
    plain = ModelConfig(5, 8, 4, 1, 4, 2)
    assert ModelConfig(5, 8, 4, 1, 4, 2, n_kv_heads=4, head_size=2) == plain
    assert (plain.kv_heads, plain.head_dim, plain.n_kv_heads, plain.head_size) == (4, 2, None, None)
    assert set(plain.to_dict()) == {
        "vocab_size", "d_model", "n_heads", "n_layers", "d_ff", "max_seq_len", "rope_theta",
        "rms_norm_eps", "dtype",
    }  # fmt: skip


@each_shape
def test_a_configuration_survives_json(shape):
    config = fixture_of(shape, "float32").model_config
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_names_and_shapes():
    config = ModelConfig(7, 10, 4, 1, 6, 3, n_kv_heads=2, head_size=4, tied_head=False)
    shapes = config.parameter_shapes()
    assert list(shapes) == parameter_names(1, tied_head=False)
    assert list(shapes)[-2:] == ["final_norm.gain", "output_head.weight"]
    at = "blocks.0.attention."
    assert [shapes[at + part + ".weight"] for part in ("query", "key", "value", "output")] == [
        (10, 16), (10, 8), (10, 8), (16, 10),
    ]  # fmt: skip
    assert shapes["output_head.weight"] == (7, 10)
    model = Decoder.initialize(config, 4)
    assert [(n, p.shape) for n, p in model.named_parameters()] == list(shapes.items())
    assert model.n_parameters == config.n_parameters
    assert "output_head.weight" in ParameterGroups.from_rule(shapes).decay


BAD = [
    ({"n_kv_heads": 0}, "HeadsNotDivisible"),
    ({"n_kv_heads": 3}, "HeadsNotDivisible"),
    ({"n_kv_heads": 8}, "HeadsNotDivisible"),
    ({"n_kv_heads": 2.0}, "InvalidSize"),
    ({"n_kv_heads": True}, "InvalidSize"),
    ({"head_size": -2}, "InvalidSize"),
    ({"head_size": 0}, "OddHeadWidth"),
    ({"head_size": 3}, "OddHeadWidth"),
    ({"tied_head": 1}, "InvalidTiedHead"),
]


@pytest.mark.parametrize(("change", "kind"), BAD)
def test_bad_shapes_are_named(change, kind):
    with pytest.raises(ModelError) as caught:
        ModelConfig(5, 8, 4, 1, 4, 2, **change)
    assert caught.value.kind == kind


def test_a_head_width_of_its_own_frees_the_model_width():
    assert ModelConfig(5, 7, 4, 1, 4, 2, head_size=2).head_dim == 2
    with pytest.raises(ModelError, match="7 is not divisible by n_heads 4"):
        ModelConfig(5, 7, 4, 1, 4, 2)


B0 = "blocks.0.attention."
LAYOUT_PROBLEMS = [
    ({B0 + "query.weight": (12, 12)}, "Block", "QueryOutputWidth"),
    ({B0 + "key.weight": (12, 24)}, "Block", "KeyOutputWidth"),
    ({B0 + "value.weight": (12, 24)}, "Block", "ValueOutputWidth"),
    ({B0 + "output.weight": (12, 12)}, "Block", "OutputInputWidth"),
    ({B0 + "output.weight": (24, 24)}, "Block", "OutputOutputWidth"),
    ({"output_head.weight": (11,)}, "OutputHead", "TableRank"),
    ({"output_head.weight": (11, 0)}, "OutputHead", "TableColumns"),
    ({"output_head.weight": (12, 12)}, "OutputHeadVocabularyMismatch", None),
    ({"output_head.weight": (11, 13)}, "OutputHeadWidthMismatch", None),
]


@pytest.mark.parametrize(("changes", "kind", "problem"), LAYOUT_PROBLEMS)
def test_parameters_that_do_not_fit(changes, kind, problem):
    shapes = EVERYTHING.parameter_shapes()
    check_decoder_layout(EVERYTHING, list(shapes), list(shapes.values()))
    assert set(changes) <= set(shapes)
    shapes |= changes
    with pytest.raises(ModelError) as caught:
        check_decoder_layout(EVERYTHING, list(shapes), list(shapes.values()))
    assert (caught.value.kind, getattr(caught.value, "problem", None)) == (kind, problem)


# ------------------------------------------------------------------ bits
@pytest.mark.parametrize("shape", ["one key head", "everything"])
def test_two_steps_equal_the_slow_oracle(shape, dtype):
    """One batch of models of every shape is compared in test_model.py."""
    fixture = fixture_of(SHAPES[shape], dtype.name)
    fixture = dataclasses.replace(fixture, rates=fixture.rates[:2], validation_steps=(0, 2))
    params, moments = by_oracle(fixture, dtype)
    before = num_threads()
    for name in _kernels.available_isas():
        for n_threads in (1, 3):
            with _kernels.use_isa(name), _kernels.smallest_chunks():
                set_num_threads(n_threads)
                result = fixture.train_decoder()
                set_num_threads(before)
            for parameter, array in result.final_state.named_arrays():
                assert array.tobytes() == params[parameter].tobytes(), parameter
            for entry in result.final_optimizer.state().entries:
                first, second = moments[entry.name]
                assert entry.first_moment.tobytes() == first.tobytes()
                assert entry.second_moment.tobytes() == second.tobytes()


@each_shape
def test_micro_batches_move_no_bit(shape, dtype):
    fixture = fixture_of(shape, dtype.name)
    whole, plan = fixture.train_decoder(), fixture.trainer_config()
    pieces = train_decoder(
        fixture.model(),
        fixture.optimizer(),
        fixture.update_epoch(),
        fixture.train_evaluation_epoch(),
        fixture.validation_epoch(),
        TrainerConfig(plan.schedule, plan.validation_steps, plan.max_grad_norm, micro_batch_size=2),
    )
    assert pieces.steps == whole.steps
    assert pieces.final_state.equal_bits(whole.final_state)


@each_shape
def test_gradients_agree_with_central_differences(shape):
    config = dataclasses.replace(wide(1.2).model_config, n_layers=1, **shape)
    model = Decoder.initialize(config, 5)
    inputs, targets = [[1, 6, 2, 0], [3, 3, 5, 1]], [[6, 2, 0, 4], [3, 5, 1, 1]]
    worst = gradcheck(
        lambda: model.loss(inputs, targets), [p for _, p in model.named_parameters()]
    )
    assert worst.error < 1e-7


def test_an_untied_head_scores_and_the_embedding_looks_up():
    model = Decoder.initialize(ModelConfig(5, 4, 2, 1, 4, 2, tied_head=False), 33)
    tied = Decoder.initialize(ModelConfig(5, 4, 2, 1, 4, 2), 33)
    for (name, a), (_, b) in zip(tied.named_parameters(), model.named_parameters(), strict=False):
        assert a.data.tobytes() == b.data.tobytes(), name  # the head's draws come last
    model.loss([[0, 1]], [[1, 2]]).backward()
    used = np.flatnonzero(np.abs(model.token_embedding.weight.grad).sum(1))
    assert used.tolist() == [0, 1]
    assert np.abs(model.output_head.weight.grad).sum(1).all()
    model.output_head.weight.assign(tied.token_embedding.weight.data)
    assert model.forward([[0, 1]]).data.tobytes() == tied.forward([[0, 1]]).data.tobytes()


# ------------------------------------------------------------------ files
@pytest.mark.parametrize(("name", "shape"), [
    ("n_kv_heads", {"n_heads": 2, "n_kv_heads": 1}),
    ("head_size", {"head_size": 6}),
    ("tied_head", {"tied_head": False}),
])  # fmt: skip
def test_version_1_refuses_by_name(name, shape):
    config = ModelConfig(5, 4, **({"n_heads": 1} | shape), n_layers=1, d_ff=2, max_seq_len=2)
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.from_snapshot(DIGITS, fresh_state(config), 0)
    error = caught.value
    assert (error.kind, error.name, error.value) == ("UnsupportedModelShape", name, shape[name])


@each_shape
def test_a_model_file_holds_them(shape, dtype, tmp_path):
    config = fixture_of(shape, dtype.name).model_config
    state = DecoderModelState.snapshot(Decoder.initialize(config, 3))
    tokenizer = LiteralTokenizer([bytes([97 + i]) for i in range(config.vocab_size)])
    path = tmp_path / "model.safetensors"
    path.write_bytes(encode_model_file(state, tokenizer, 7))
    loaded = load_model(path)
    assert loaded.model.config == config
    assert DecoderModelState.snapshot(loaded.model).equal_bits(state)


def test_the_command_line_trains_them_in_both_types(tmp_path, dtype):
    run, text = tmp_path / "run", tmp_path / "text.txt"
    text.write_text("\n\n".join(f"A short paragraph, number {n}, of no use." for n in range(60)))
    options = (
        "--d-model", 16, "--n-layers", 1, "--n-heads", 4, "--n-kv-heads", 2, "--head-size", 6,
        "--untied-head", "--context-length", 8, "--steps", 2, "--batch-size", 2, "--eval-every", 2,
        "--merges", 4, "--min-document-bytes", 1, "--dtype", dtype.name,
    )  # fmt: skip
    result = llmcy("train", text, *options, "--run", run)
    assert result.returncode == 0, result.stderr
    assert not (run / "selected.ckpt").exists()
    config = load_model(run).model.config
    assert (config.kv_heads, config.head_dim, config.tied_head) == (2, 6, False)
    assert config.dtype == dtype.name
