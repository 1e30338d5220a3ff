"""GGUF files: what is in them, and that llama.cpp computes what we compute."""

import json
import subprocess
import sys

import numpy as np
import pytest

from llmcy.errors import InteropError
from llmcy.interop import export_gguf
from llmcy.interop.gguf_vocabulary import LLAMA_3
from llmcy.model import Decoder
from llmcy.tokenizer import BytePairTokenizer, JsonTokenizer, LiteralTokenizer
from tests.interop.models import SHAPES, TEXT, byte_pair, config, state

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


# --------------------------------------------------------------------------- other tokenizers
SMOLLM = [("Digits", {"individual_digits": True}), ("ByteLevel", {"add_prefix_space": False})]
LLAMA = [
    ("Split", {"pattern": LLAMA_3, "behavior": "isolated"}),
    ("ByteLevel", {"add_prefix_space": False, "use_regex": False}),
]
CUTS = {
    "gpt-2": ([("ByteLevel", {"add_prefix_space": False})], False),
    "smollm": (SMOLLM, False),
    "llama-bpe": (LLAMA, True),
}
PROMPTS = ["The quick 東京 fox", "It isn't 1234 o'clock,\r\n  is  it?\n\n", "naïve Größe 🙂🙃 99 9"]


def trained(cuts, ignore_merges=False):
    """A tokenizer of the library, learned on the test's text."""
    library = pytest.importorskip("tokenizers")
    tokenizer = library.Tokenizer(library.models.BPE(ignore_merges=ignore_merges))
    steps = []
    for kind, settings in cuts:
        if "pattern" in settings:
            settings = {**settings, "pattern": library.Regex(settings["pattern"])}
        steps.append(getattr(library.pre_tokenizers, kind)(**settings))
    tokenizer.pre_tokenizer = (
        steps[0] if len(steps) == 1 else library.pre_tokenizers.Sequence(steps)
    )
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=380,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT] * 3, trainer)
    return tokenizer


@pytest.mark.parametrize("cut", CUTS)
def test_another_tokenizer_cuts_and_merges_there_as_here(llama_cpp, cut, tmp_path):
    tokenizer = JsonTokenizer(trained(*CUTS[cut]).to_str(), 0, 1, 400)
    model = state(config(vocab_size=400))
    path = export_gguf(model, tokenizer, tmp_path / "model.gguf")
    ids = [[0, *tokenizer.encode(text).tolist()] for text in PROMPTS]
    banned = fragments(tokenizer)
    by_text = llama_cpp(path, PROMPTS, 8, banned)
    by_ids = llama_cpp(path, ids, 8, banned)
    decoder = model.restore_independent_model()
    for prompt, text_answer, ids_answer in zip(ids, by_text, by_ids, strict=True):
        assert text_answer["prompt_tokens"] == len(prompt)
        ours = [token for token, _ in greedy(decoder, prompt, 8, banned)]
        assert [step["id"] for step in text_answer["steps"]] == ours
        assert [step["id"] for step in ids_answer["steps"]] == ours


def test_what_the_file_says_of_another_tokenizer(reader, tmp_path):
    library = pytest.importorskip("tokenizers")
    theirs = trained(*CUTS["smollm"])
    theirs.add_tokens([library.AddedToken("<extra>", special=False)])
    used = theirs.get_vocab_size()
    tokenizer = JsonTokenizer(theirs.to_str(), None, 1, used + 2)
    path = export_gguf(state(config(vocab_size=used + 2)), tokenizer, tmp_path / "model.gguf")
    read = reader(str(path))
    tokens = field(read, "tokenizer.ggml.tokens")
    assert tokens[:used] == [theirs.id_to_token(i) for i in range(used)]
    assert tokens[used:] == [f"[PAD{used}]", f"[PAD{used + 1}]"]
    kinds = field(read, "tokenizer.ggml.token_type")
    assert kinds == [3, 3, *[1] * (used - 3), 4, 5, 5]
    assert field(read, "tokenizer.ggml.pre") == "smollm"
    assert field(read, "tokenizer.ggml.eos_token_id") == 1
    assert "tokenizer.ggml.bos_token_id" not in read.fields
    assert field(read, "tokenizer.ggml.add_bos_token") is False
    merges = json.loads(theirs.to_str())["model"]["merges"]
    assert field(read, "tokenizer.ggml.merges") == [
        m if isinstance(m, str) else " ".join(m) for m in merges
    ]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"normalizer": {"type": "NFC"}}, "it changes texts first: NFC"),
        ({"decoder": None}, "its decoder is None, not ByteLevel"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, "no name for its way of cutting"),
        ({"pre_tokenizer": None}, "no name for its way of cutting"),
        ({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True}},
         "no name for its way of cutting"),
        ({"model": {"byte_fallback": True}}, "its model has byte_fallback True"),
        ({"model": {"ignore_merges": True}}, "no name for its way of cutting"),
    ],
)  # fmt: skip
def test_another_tokenizer_that_llama_cpp_does_not_have(change, said, tmp_path):
    pytest.importorskip("tokenizers")
    file = json.loads(trained(*CUTS["gpt-2"]).to_str())
    model = file["model"] | change.get("model", {})
    text = json.dumps(file | change | {"model": model})
    tokenizer = JsonTokenizer(text, 0, 1)
    with pytest.raises(InteropError) as caught:
        export_gguf(
            state(config(vocab_size=tokenizer.vocab_size)), tokenizer, tmp_path / "model.gguf"
        )
    assert caught.value.kind == "UnsupportedTokenizer"
    assert said in str(caught.value)
    assert not list(tmp_path.iterdir())
