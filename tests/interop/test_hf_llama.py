"""Hugging Face folders: what is in them, and that what goes out comes back."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from llmcy.errors import InteropError, ModelError
from llmcy.interop import export_hf, import_hf
from llmcy.interop.hf_llama import hf_name
from llmcy.interop.rotary_order import adjacent_to_half, half_to_adjacent
from llmcy.tokenizer import LiteralTokenizer
from tests.interop.models import SHAPES, byte_pair, config, state

each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))


@pytest.fixture
def folder(tmp_path):
    """An exported model to spoil."""
    return export_hf(state(config(n_kv_heads=2)), byte_pair(), tmp_path / "hf")


def change(folder, **values):
    path = folder / "config.json"
    described = json.loads(path.read_text())
    for name, value in values.items():
        if value is ...:
            del described[name]
        else:
            described[name] = value
    path.write_text(json.dumps(described))


def change_tensors(folder, edit, *, dtype=None):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    edit(tensors)
    save_file(tensors, path)


def refused(folder):
    with pytest.raises(InteropError) as caught:
        import_hf(folder)
    return caught.value


# --------------------------------------------------------------------------- there and back
@each_shape
def test_a_float32_model_comes_back_bit_for_bit(shape, tmp_path):
    original = state(config(**shape))
    imported = import_hf(export_hf(original, byte_pair(), tmp_path / "hf"))
    assert imported.state.config == original.config
    assert imported.state.equal_bits(original)
    assert imported.tokenizer == byte_pair()


def test_float64_is_rounded_once(tmp_path):
    original = state(config("float64"))
    folder = export_hf(original, byte_pair(), tmp_path / "hf")
    for dtype in ("float32", "float64"):
        imported = import_hf(folder, dtype=dtype).state
        assert imported.config.dtype == dtype
        for (name, a), (_, b) in zip(
            original.named_arrays(), imported.named_arrays(), strict=True
        ):
            rounded = a.astype(np.float32)
            assert (rounded != a).any() or name.endswith("gain")
            assert b.tobytes() == rounded.astype(dtype).tobytes()


def test_a_number_beyond_float32_is_refused(tmp_path):
    original = state(config("float64", n_layers=0))
    arrays = {name: array.copy() for name, array in original.named_arrays()}
    arrays["token_embedding.weight"][3, 1] = 1e39
    large = type(original).from_named_arrays(original.config, arrays.items())
    with pytest.raises(InteropError) as caught:
        export_hf(large, byte_pair(), tmp_path / "hf")
    error = caught.value
    assert (error.kind, error.name, error.index, error.value) == (
        "NotRepresentable", "token_embedding.weight", 3 * 48 + 1, 1e39,
    )  # fmt: skip
    assert not (tmp_path / "hf").exists()


def test_rows_of_rotary_heads():
    rows = np.arange(12.0).reshape(12, 1)  # two heads of six features
    half = adjacent_to_half(rows, 2)
    assert half[:, 0].tolist() == [0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11]
    assert half_to_adjacent(half, 2).tolist() == rows.tolist()


def test_what_the_folder_holds(folder):
    assert {path.name for path in folder.iterdir()} == {
        "config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
        "tokenizer_config.json",
    }  # fmt: skip
    described = json.loads((folder / "config.json").read_text())
    assert described["rope_theta"] == described["rope_parameters"]["rope_theta"] == 500.0
    assert described["num_key_value_heads"] == 2
    assert (described["bos_token_id"], described["eos_token_id"]) == (0, 1)
    tensors = load_file(folder / "model.safetensors")
    assert "lm_head.weight" not in tensors
    assert tensors["model.layers.1.mlp.down_proj.weight"].shape == (48, 56)
    assert tensors["model.layers.0.self_attn.k_proj.weight"].shape == (24, 48)
    assert {tensor.dtype for tensor in tensors.values()} == {np.dtype("float32")}
    original = dict(state(config(n_kv_heads=2)).named_arrays())
    value = tensors["model.layers.0.self_attn.v_proj.weight"]
    assert (value == original["blocks.0.attention.value.weight"].T).all()
    query = tensors["model.layers.0.self_attn.q_proj.weight"]
    ours = original["blocks.0.attention.query.weight"].T
    assert (query[:6] == ours[0:12:2]).all()
    assert (query[6:12] == ours[1:12:2]).all()


def test_equal_models_give_equal_bytes(tmp_path):
    one, two = (
        export_hf(state(config()), byte_pair(), tmp_path / name) for name in ("one", "two")
    )
    for path in one.iterdir():
        assert path.read_bytes() == (two / path.name).read_bytes()


def test_a_folder_with_something_in_it_is_left_alone(folder):
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(InteropError) as caught:
        export_hf(state(config()), byte_pair(), folder)
    assert caught.value.kind == "FolderNotEmpty"
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_list_of_pieces_is_left_out_and_tokens_are_numbered(tmp_path):
    small = config(vocab_size=5)
    pieces = LiteralTokenizer([b"a", b"b", b"c", b"d", b"e"])
    folder = export_hf(state(small), pieces, tmp_path / "hf")
    assert not (folder / "tokenizer.json").exists()
    assert json.loads((folder / "config.json").read_text())["bos_token_id"] is None
    assert import_hf(folder).tokenizer.decode([3, 1]) == b"<3><1>"


# --------------------------------------------------------------------------- files of others
def test_both_places_of_the_rotary_base_and_neither(folder):
    both = import_hf(folder).state
    change(folder, rope_parameters=...)
    assert import_hf(folder).state.equal_bits(both)
    change(folder, rope_theta=..., rope_parameters={"rope_type": "default", "rope_theta": 500})
    assert import_hf(folder).state.equal_bits(both)
    change(folder, rope_parameters=...)
    assert import_hf(folder).state.config.rope_theta == 10000.0


def test_keys_that_may_be_missing(folder):
    change(folder, head_dim=..., tie_word_embeddings=True, rope_scaling=..., hidden_act=...)
    assert import_hf(folder).state.config == config(n_kv_heads=2)
    change(folder, rms_norm_eps=..., max_position_embeddings=...)
    imported = import_hf(folder).state.config
    assert (imported.rms_norm_eps, imported.max_seq_len) == (1e-6, 2048)


UNSUPPORTED = [
    ("rope_scaling", {"type": "linear", "factor": 2.0}, "rope_scaling.rope_type", "linear"),
    ("rope_scaling", {"rope_type": "yarn", "factor": 4.0}, "rope_scaling.rope_type", "yarn"),
    (
        "rope_parameters",
        {"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0},
        "rope_parameters.rope_type",
        "llama3",
    ),
    (
        "rope_parameters",
        {"rope_type": "default", "partial_rotary_factor": 0.5},
        "rope_parameters.partial_rotary_factor",
        0.5,
    ),
    ("partial_rotary_factor", 0.5, "partial_rotary_factor", 0.5),
    ("attention_bias", True, "attention_bias", True),
    ("mlp_bias", True, "mlp_bias", True),
    ("hidden_act", "gelu", "hidden_act", "gelu"),
    ("model_type", "mistral", "model_type", "mistral"),
    ("sliding_window", 4096, "sliding_window", 4096),
    ("architectures", ["LlamaModel"], "architectures", ["LlamaModel"]),
    ("quantization_config", {"bits": 4}, "quantization_config", {"bits": 4}),
]


@pytest.mark.parametrize(("key", "value", "name", "shown"), UNSUPPORTED)
def test_what_llmcy_does_not_compute_is_refused_by_name(folder, key, value, name, shown):
    change(folder, **{key: value})
    error = refused(folder)
    assert (error.kind, error.name, error.value) == ("UnsupportedFeature", name, shown)
    assert name in str(error)


CORRUPT = [
    {"vocab_size": ...},
    {"hidden_size": "48"},
    {"num_attention_heads": 4.0},
    {"tie_word_embeddings": 1},
    {"rope_theta": 600.0},
    {"rope_theta": "many"},
    {"rope_parameters": 3},
    {"model_type": ...},
    {"num_key_value_heads": True},
]


@pytest.mark.parametrize("changes", CORRUPT, ids=str)
def test_a_configuration_that_says_nothing_sensible(folder, changes):
    change(folder, **changes)
    error = refused(folder)
    assert error.kind == "CorruptFile"
    assert next(iter(changes)) in error.problem


def test_sizes_that_make_no_model(folder):
    change(folder, num_key_value_heads=3)
    with pytest.raises(ModelError) as caught:
        import_hf(folder)
    assert caught.value.kind == "HeadsNotDivisible"


def test_more_layers_than_tensors(folder):
    change(folder, num_hidden_layers=10**15)
    error = refused(folder)
    assert (error.kind, error.name) == (
        "MissingTensor",
        f"model.layers.{10**15 - 1}.mlp.down_proj.weight",
    )


def test_several_files_and_an_index(folder, tmp_path):
    whole = import_hf(folder).state
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    weight_map = {}
    for number, part in enumerate((names[::2], names[1::2])):
        save_file({name: tensors[name] for name in part}, folder / f"model-{number}.safetensors")
        weight_map |= dict.fromkeys(part, f"model-{number}.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert import_hf(folder).state.equal_bits(whole)
    index.write_text(json.dumps({"weight_map": {names[0]: "../model-0.safetensors"}}))
    assert refused(folder).kind == "CorruptFile"
    shutil.copy(folder / "model-0.safetensors", folder / "model-2.safetensors")
    index.write_text(json.dumps({"weight_map": weight_map | {"x": "model-2.safetensors"}}))
    assert refused(folder).kind == "DuplicateTensor"


def bfloat16_bytes(values):
    """The upper halves of float32 numbers that have nothing in the lower ones."""
    words = values.view(np.uint32)
    assert not (words & 0xFFFF).any()
    return (words >> 16).astype("<u2").tobytes()


def test_half_precision_files_are_widened_exactly(folder):
    path = folder / "model.safetensors"
    tensors = load_file(path)
    for name, tensor in tensors.items():
        words = tensor.view(np.uint32) & np.uint32(0xFFFF0000)
        tensors[name] = words.view(np.float32)
    save_file(tensors, path)
    wanted = import_hf(folder).state
    header, data = {}, b""
    for name, tensor in tensors.items():
        part = bfloat16_bytes(tensor)
        offsets = [len(data), len(data) + len(part)]
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": offsets}
        data += part
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    assert import_hf(folder).state.equal_bits(wanted)
    save_file({name: tensor.astype(np.float16) for name, tensor in tensors.items()}, path)
    imported = dict(import_hf(folder, dtype="float64").state.named_arrays())
    gain = tensors["model.norm.weight"].astype(np.float16).astype(np.float64)
    assert imported["final_norm.gain"].tolist() == gain.tolist()


def test_a_tied_head_written_twice(folder):
    wanted = import_hf(folder).state

    def add(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(3, np.float32)

    change_tensors(folder, add)
    assert import_hf(folder).state.equal_bits(wanted)
    change_tensors(folder, lambda tensors: tensors["lm_head.weight"].__setitem__((2, 2), 7.0))
    error = refused(folder)
    assert (error.kind, error.name) == ("UnsupportedFeature", "tie_word_embeddings")


Q0 = "model.layers.0.self_attn.q_proj.weight"
TENSORS = [
    (lambda t: t.pop(Q0), "MissingTensor", Q0),
    (lambda t: t.update({Q0: t[Q0][:, :-1].copy()}), "TensorShape", Q0),
    (lambda t: t.update({Q0: t[Q0].astype(np.int32)}), "TensorType", Q0),
    (
        lambda t: t.update({"model.layers.0.self_attn.q_proj.bias": t["model.norm.weight"]}),
        "UnknownTensor",
        "model.layers.0.self_attn.q_proj.bias",
    ),
    (
        lambda t: t["model.norm.weight"].__setitem__(5, np.inf),
        "NonFinite",
        "final_norm.gain",
    ),
]


@pytest.mark.parametrize(("edit", "kind", "name"), TENSORS)
def test_tensors_that_do_not_fit(folder, edit, kind, name):
    change_tensors(folder, edit)
    error = refused(folder)
    assert (error.kind, error.name) == (kind, name)


def test_a_damaged_file(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    assert refused(folder).kind == "CorruptFile"
    path.unlink()
    error = refused(folder)
    assert (error.kind, error.path) == ("NotAModel", str(folder))
    (folder / "config.json").write_text("{")
    assert refused(folder).kind == "CorruptFile"
    (folder / "config.json").unlink()
    assert refused(folder).kind == "NotAModel"


def test_every_parameter_has_a_name_of_its_own_there():
    names = [hf_name(name) for name in config(tied_head=False).parameter_shapes()]
    assert len(set(names)) == len(names)
