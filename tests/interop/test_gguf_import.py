"""GGUF files read: what goes out comes back, other types and tokenizers, everything refused."""

import json
import random

import numpy as np
import pytest

from llmcy.errors import InteropError, LlmcyError
from llmcy.interop import export_gguf, import_gguf
from llmcy.interop.gguf import gguf_name
from llmcy.run import load_initial, load_model
from llmcy.state import DecoderModelState
from llmcy.tokenizer import BytePairTokenizer, JsonTokenizer
from tests.cli.command import llmcy
from tests.interop.models import SHAPES, byte_pair, config, state
from tests.interop.test_gguf import CUTS, PROMPTS, trained

gguf = pytest.importorskip("gguf")
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))
F16, BF16 = gguf.GGMLQuantizationType.F16, gguf.GGMLQuantizationType.BF16


@each_shape
def test_what_goes_out_comes_back(shape, tmp_path):
    original = state(config(**shape))
    path = export_gguf(original, byte_pair(), tmp_path / "model.gguf")
    imported = import_gguf(path)
    assert imported.state.equal_bits(original)
    assert imported.tokenizer == byte_pair()
    again = export_gguf(imported.state, imported.tokenizer, tmp_path / "again.gguf")
    assert again.read_bytes() == path.read_bytes()
    wide = import_gguf(path, dtype="float64").state
    for (name, a), (_, b) in zip(original.named_arrays(), wide.named_arrays(), strict=True):
        assert b.dtype == np.float64
        assert (a == b).all(), name


def test_a_tokenizer_without_rules(tmp_path):
    tokenizer = BytePairTokenizer.from_pairs([])
    model = state(config(vocab_size=tokenizer.vocab_size))
    path = export_gguf(model, tokenizer, tmp_path / "model.gguf")
    assert import_gguf(path).tokenizer == tokenizer


@pytest.mark.parametrize("cut", CUTS)
def test_another_tokenizer_comes_back(cut, tmp_path):
    theirs = trained(*CUTS[cut])
    theirs.add_tokens([pytest.importorskip("tokenizers").AddedToken("<extra>", special=False)])
    tokenizer = JsonTokenizer(theirs.to_str(), 0, 1, 400)
    path = export_gguf(state(config(vocab_size=400)), tokenizer, tmp_path / "model.gguf")
    back = import_gguf(path).tokenizer
    assert (back.bos_id, back.eos_id, back.vocab_size) == (0, 1, 400)
    for text in (*PROMPTS, "a <s> b <extra> c", "tabs\tand  spaces\x00"):
        assert back.encode(text).tolist() == tokenizer.encode(text).tolist()
        assert back.decode(back.encode(text)) == text.encode()
    again = export_gguf(import_gguf(path).state, back, tmp_path / "again.gguf")
    assert again.read_bytes() == path.read_bytes()


# --------------------------------------------------------------------------- files made by hand
def written(path, model, *, change=None, convert=None, facts=None, tokens=True):
    """A file with the parameters of ``model``; ``change`` edits its tensors."""
    wanted = model.config
    writer = gguf.GGUFWriter(str(path), (facts or {}).pop("general.architecture", "llama"))
    numbers = {
        "llama.context_length": wanted.max_seq_len,
        "llama.embedding_length": wanted.d_model,
        "llama.block_count": wanted.n_layers,
        "llama.feed_forward_length": wanted.d_ff,
        "llama.attention.head_count": wanted.n_heads,
        **{k: v for k, v in (facts or {}).items() if isinstance(v, int)},
    }
    for key, value in numbers.items():
        if value >= 0:
            writer.add_uint32(key, value)
    for key, value in (facts or {}).items():
        if isinstance(value, str):
            writer.add_string(key, value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", wanted.rms_norm_eps)
    if tokens:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(["<|bos|>", "<|eos|>", *map(chr, range(0x100, 0x100 + 398))][:400])
        writer.add_token_merges(["a b"])
    tensors = {
        gguf_name(name): array if array.ndim == 1 or "embedding" in name else array.T
        for name, array in model.named_arrays()
    }
    if change is not None:
        change(tensors)
    for name, array in tensors.items():
        if convert is None:
            writer.add_tensor(name, np.ascontiguousarray(array))
        else:
            data = gguf.quants.quantize(np.ascontiguousarray(array), convert)
            writer.add_tensor(name, data, raw_dtype=convert)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def small():
    """Values that float16 and bfloat16 hold; the base of a file that says none."""
    drawn = state(config(rope_theta=10000.0, vocab_size=400))
    named = [(n, np.round(a * 16).astype(np.float32) / 16) for n, a in drawn.named_arrays()]
    return DecoderModelState.from_named_arrays(drawn.config, named)


def loadable(monkeypatch):
    """The strings made by hand are no tokenizer; only the rest of a file is looked at."""
    monkeypatch.setattr(
        "llmcy.interop.gguf_vocabulary.GgufVocabulary.tokenizer", lambda self: byte_pair()
    )


@pytest.mark.parametrize("convert", [None, F16, BF16], ids=["F32", "F16", "BF16"])
def test_three_types_are_kept_exactly(small, convert, tmp_path, monkeypatch):
    loadable(monkeypatch)
    path = written(tmp_path / "model.gguf", small, convert=convert)
    assert import_gguf(path).state.equal_bits(small)


def refused(path, kind):
    with pytest.raises(InteropError) as caught:
        import_gguf(path)
    assert caught.value.kind == kind
    return caught.value


@pytest.mark.parametrize(
    ("facts", "kind", "name"),
    [
        ({"general.architecture": "qwen2"}, "UnsupportedFeature", "general.architecture"),
        ({"llama.rope.scaling.type": "linear"}, "UnsupportedFeature", "llama.rope.scaling.type"),
        ({"llama.expert_count": 8}, "UnsupportedFeature", "llama.expert_count"),
        ({"llama.rope.dimension_count": 6}, "UnsupportedFeature", "llama.rope.dimension_count"),
        ({"llama.attention.value_length": 6}, "UnsupportedFeature", "llama.attention.value_length"),
        ({"llama.attention.key_length": 6}, "TensorShape", "blk.0.attn_q.weight"),
        ({"llama.block_count": 3}, "MissingTensor", "blk.2.attn_norm.weight"),
        ({"llama.block_count": 1}, "UnknownTensor", "blk.1.attn_k.weight"),
    ],
)
def test_what_llmcy_does_not_compute(small, facts, kind, name, tmp_path):
    error = refused(written(tmp_path / "model.gguf", small, facts=dict(facts)), kind)
    assert error.name == name


def test_tensors_that_do_not_fit(small, tmp_path):
    def without(name):
        return lambda tensors: tensors.pop(name)

    path = tmp_path / "model.gguf"
    error = refused(written(path, small, change=without("token_embd.weight")), "MissingTensor")
    assert error.name == "token_embd.weight"
    error = refused(written(path, small, change=without("blk.1.ffn_up.weight")), "MissingTensor")
    assert error.name == "blk.1.ffn_up.weight"
    extra = {"rope_freqs.weight": np.ones(6, np.float32)}  # positions scaled as in Llama 3.1
    error = refused(written(path, small, change=lambda t: t.update(extra)), "UnknownTensor")
    assert error.name == "rope_freqs.weight"

    def infinite(tensors):
        gain = tensors["output_norm.weight"].copy()
        gain[5] = np.inf
        tensors["output_norm.weight"] = gain

    error = refused(written(path, small, change=infinite), "NonFinite")
    assert (error.name, error.index) == ("final_norm.gain", 5)
    error = refused(written(path, small, facts={"llama.block_count": -1}), "CorruptFile")
    assert "llama.block_count" in str(error)


def test_quantised_tensors(tmp_path):
    model = state(config(d_model=64, d_ff=64, vocab_size=400, rope_theta=10000.0))
    path = written(tmp_path / "model.gguf", model, convert=gguf.GGMLQuantizationType.Q8_0)
    assert refused(path, "UnsupportedFeature").value == "Q8_0"


def test_tokenizers_that_are_not_read(small, tmp_path):
    path = tmp_path / "model.gguf"
    assert "None, not 'gpt2'" in str(refused(written(path, small, tokens=False),
                                             "UnsupportedTokenizer"))  # fmt: skip
    other = {"tokenizer.ggml.model": "llama"}
    error = refused(written(path, small, facts=other, tokens=False), "UnsupportedTokenizer")
    assert "'llama', not 'gpt2'" in str(error)
    fewer = state(config(rope_theta=10000.0, vocab_size=399))
    error = refused(written(path, fewer), "UnsupportedTokenizer")
    assert "400 tokens, the model 399" in str(error)


def test_damage_is_refused_and_nothing_else_happens(tmp_path):
    good = export_gguf(state(config(n_layers=1)), byte_pair(), tmp_path / "good.gguf").read_bytes()
    path = tmp_path / "model.gguf"
    draw = random.Random(4)
    header = good.index(b"token_embd.weight")
    refusals = 0
    for n in range(120):
        data = bytearray(good)
        if n % 2:
            data = data[: draw.randrange(4, len(data))]
        else:
            data[draw.randrange(header)] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        try:
            import_gguf(path)
        except LlmcyError:
            refusals += 1
    assert refusals > 60  # a flipped letter of a token is another valid file
    for data in (b"", b"GG", b"not a model"):
        path.write_bytes(data)
        assert "begin with GGUF" in str(refused(path, "CorruptFile"))
    assert refused(tmp_path / "none.gguf", "Io").operation == "read"


# --------------------------------------------------------------------------- commands
def test_every_command_takes_one(tmp_path):
    model = state(config(n_kv_heads=2, tied_head=False))
    path = export_gguf(model, byte_pair(), tmp_path / "model.gguf")
    assert load_model(path).fingerprint == model.fingerprint()
    assert load_initial(path, dtype="float64").state.config.dtype == "float64"
    out = tmp_path / "model.safetensors"
    result = llmcy("import", path, out)
    assert result.returncode == 0, result.stderr
    texts = {
        llmcy("generate", file, "--prompt", "The ", "--seed", 4, "--max-new-tokens", 6).stdout
        for file in (path, out)
    }
    assert len(texts) == 1
    folder = tmp_path / "text"
    folder.mkdir()
    for n in range(40):
        (folder / f"{n}.txt").write_text(f"The fox number {n} sees a dog; then it sleeps. " * 3)
    run = tmp_path / "run"
    result = llmcy("train", folder, "--init", path, "--run", run, "--steps", 2, "--batch-size", 2,
                   "--context-length", 16, "--quiet")  # fmt: skip
    assert result.returncode == 0, result.stderr
    begun = json.loads((run / "config.json").read_text())["initial"]
    assert begun["parameters"] == model.fingerprint()
    assert llmcy("verify", run, folder, "--replay", "all").returncode == 0
