"""GGUF files: what is in them, and that llama.cpp computes what we compute."""

import json
import subprocess
import sys

import numpy as np
import pytest

from llmcy.errors import InteropError
from llmcy.interop import export_gguf
from llmcy.model import Decoder
from llmcy.tokenizer import BytePairTokenizer, LiteralTokenizer
from tests.interop.models import SHAPES, byte_pair, config, state

each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))


# --------------------------------------------------------------------------- the file
@pytest.fixture
def reader():
    gguf = pytest.importorskip("gguf")
    return gguf.GGUFReader


def field(read, key):
    return read.fields[key].contents()


@each_shape
def test_what_the_file_holds(reader, shape, tmp_path):
    original = state(config("float64", **shape))
    read = reader(str(export_gguf(original, byte_pair(), tmp_path / "model.gguf", name="fox")))
    wanted = original.config
    facts = {
        "general.architecture": "llama",
        "general.name": "fox",
        "llama.block_count": wanted.n_layers,
        "llama.context_length": wanted.max_seq_len,
        "llama.embedding_length": wanted.d_model,
        "llama.feed_forward_length": wanted.d_ff,
        "llama.attention.head_count": wanted.n_heads,
        "llama.attention.head_count_kv": wanted.kv_heads,
        "llama.attention.key_length": wanted.head_dim,
        "llama.attention.value_length": wanted.head_dim,
        "llama.rope.dimension_count": wanted.head_dim,
        "llama.rope.freq_base": np.float32(wanted.rope_theta),
        "llama.attention.layer_norm_rms_epsilon": np.float32(wanted.rms_norm_eps),
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 1,
    }
    assert {key: field(read, key) for key in facts} == facts
    tokens = field(read, "tokenizer.ggml.tokens")
    assert len(tokens) == len(set(tokens)) == wanted.vocab_size
    assert tokens[:3] == ["<|bos|>", "<|eos|>", "Ā"]
    assert len(field(read, "tokenizer.ggml.merges")) == byte_pair().merge_count
    tensors = {tensor.name: tensor.data for tensor in read.tensors}
    ours = dict(original.named_arrays())
    assert len(tensors) == len(ours)
    assert ("output.weight" in tensors) is not wanted.tied_head
    for part, theirs in (("query", "attn_q"), ("key", "attn_k"), ("output", "attn_output")):
        weight = ours[f"blocks.1.attention.{part}.weight"]
        assert tensors[f"blk.1.{theirs}.weight"].tolist() == weight.T.astype(np.float32).tolist()
    table = ours["token_embedding.weight"].astype(np.float32)
    assert tensors["token_embd.weight"].tolist() == table.tolist()


def test_a_file_is_replaced_and_nothing_is_left_beside_it(reader, tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"old")
    export_gguf(state(config(n_layers=0)), byte_pair(), path)
    assert path.read_bytes()[:4] == b"GGUF"
    assert list(tmp_path.iterdir()) == [path]


def test_refusals(tmp_path, monkeypatch):
    pieces = LiteralTokenizer([b"a", b"b", b"c", b"d", b"e"])
    with pytest.raises(InteropError) as caught:
        export_gguf(state(config(vocab_size=5)), pieces, tmp_path / "model.gguf")
    assert caught.value.kind == "UnsupportedTokenizer"
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(InteropError) as caught:
        export_gguf(state(config()), byte_pair(), tmp_path / "model.gguf")
    error = caught.value
    assert (error.kind, error.package, error.extra) == ("MissingPackage", "gguf", "hf")
    assert not list(tmp_path.iterdir())


# --------------------------------------------------------------------------- llama.cpp
CHILD = """
import json, sys
import xllamacpp as x
path, prompts, count, banned = sys.argv[1], *map(json.loads, sys.argv[2:])
params = x.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.warmup = path, 64, 1, False
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
params.cache_type_k = params.cache_type_v = x.ggml_type.GGML_TYPE_F32
params.flash_attn_type = x.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
server = x.Server(params)
answers = []
for prompt in prompts:
    answer = server.handle_completions({
        "prompt": prompt, "n_predict": count, "temperature": 0.0, "n_probs": 5,
        "cache_prompt": False, "logit_bias": [[token, False] for token in banned],
    })
    answers.append({
        "steps": answer["choices"][0]["logprobs"]["content"],
        "prompt_tokens": answer["usage"]["prompt_tokens"],
    })
print("ANSWERS", json.dumps(answers))
"""


@pytest.fixture
def llama_cpp():
    """Runs prompts in a process of its own: that program aborts where others raise."""
    pytest.importorskip("xllamacpp")
    pytest.importorskip("gguf")

    def run(path, prompts, count, banned):
        arguments = [json.dumps(value) for value in (prompts, count, banned)]
        result = subprocess.run(
            [sys.executable, "-c", CHILD, str(path), *arguments], capture_output=True, check=True
        )
        lines = result.stdout.decode("utf-8", "replace").splitlines()
        answer = next(line for line in lines if line.startswith("ANSWERS "))
        return json.loads(answer.removeprefix("ANSWERS "))

    return run


def fragments(tokenizer: BytePairTokenizer) -> list[int]:
    """The end token and tokens that are no whole characters, which the server does not report."""
    pieces = ((i, tokenizer.token_bytes(i) or b"\xff") for i in range(tokenizer.vocab_size))
    return [i for i, piece in pieces if piece.decode("utf-8", "ignore").encode() != piece]


def greedy(model: Decoder, prompt: list[int], count: int, banned: list[int]):
    """Ids and logarithms of their probabilities."""
    ids, chosen = list(prompt), []
    for _ in range(count):
        logits = model.forward([ids]).data[0, -1].astype(np.float64)
        log_p = logits - (logits.max() + np.log(np.exp(logits - logits.max()).sum()))
        logits[banned] = -np.inf
        best = int(np.argmax(logits))
        chosen.append((best, log_p[best]))
        ids.append(best)
    return chosen


@each_shape
def test_greedy_text_and_probabilities_are_the_same(llama_cpp, shape, tmp_path):
    original = state(config(**shape))
    path = export_gguf(original, byte_pair(), tmp_path / "model.gguf")
    prompts = [[0], [0, *byte_pair().encode("The quick 東京 fox").tolist()], [9, 200, 300]]
    model = original.restore_independent_model()
    banned = fragments(byte_pair())
    for prompt, answer in zip(prompts, llama_cpp(path, prompts, 24, banned), strict=True):
        ours = greedy(model, prompt, 24, banned)
        assert [step["id"] for step in answer["steps"]] == [token for token, _ in ours]
        for step, (token, log_p) in zip(answer["steps"], ours, strict=True):
            assert abs(step["logprob"] - log_p) < 2e-5
            assert bytes(step["bytes"]) == byte_pair().token_bytes(token)


def test_its_tokens_of_a_text_without_cuts_are_ours(llama_cpp, tmp_path):
    """Bytes only, and words that its pattern does not cut."""
    for tokenizer, text in (
        (BytePairTokenizer.from_pairs([]), "The cat é 🙂"),
        (byte_pair(), "jumps"),
    ):
        model = state(config(vocab_size=tokenizer.vocab_size))
        path = export_gguf(model, tokenizer, tmp_path / "model.gguf")
        ids = [0, *tokenizer.encode(text).tolist()]
        text_answer, ids_answer = llama_cpp(path, [text, ids], 5, fragments(tokenizer))
        assert text_answer["prompt_tokens"] == len(ids)
        assert [s["id"] for s in text_answer["steps"]] == [s["id"] for s in ids_answer["steps"]]
