"""``.bin`` files of llama2.c: there and back, and read as that program reads them."""

import math
import struct

import numpy as np
import pytest

from llmcy.errors import InteropError, ModelError
from llmcy.interop import export_llama2c, import_llama2c
from tests.interop.models import config, state

SHAPES = {
    "tied": {},
    "untied": {"tied_head": False},
    "grouped": {"n_heads": 8, "n_kv_heads": 2},
    "grouped, untied": {"n_heads": 6, "n_kv_heads": 3, "tied_head": False},
}
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))


def small(dtype="float32", **changes):
    return config(dtype, rope_theta=10000.0, max_seq_len=12, **changes)


def run_c(data: bytes, tokens: list[int]) -> np.ndarray:
    """Logits after the last token, in float64, following the layout and the arithmetic of run.c:
    one token at a time, a cache, weights (out, in), rotary neighbours, epsilon 1e-5."""
    dim, hidden, layers, heads, kv_heads, vocab, length = struct.unpack("<7i", data[:28])
    shared, vocab = vocab > 0, abs(vocab)
    w, kv_dim = dim // heads, dim * kv_heads // heads
    values = np.frombuffer(data, "<f4", offset=28).astype(np.float64)
    start = 0

    def take(*shape):
        nonlocal start
        size = math.prod(shape)
        start += size
        return values[start - size : start].reshape(shape)

    table, rms_att = take(vocab, dim), take(layers, dim)
    wq, wk, wv = take(layers, dim, dim), take(layers, kv_dim, dim), take(layers, kv_dim, dim)
    wo, rms_ffn = take(layers, dim, dim), take(layers, dim)
    w1, w2, w3 = take(layers, hidden, dim), take(layers, dim, hidden), take(layers, hidden, dim)
    rms_final = take(dim)
    take(length, w // 2), take(length, w // 2)  # the tables, which the program skips
    head = table if shared else take(vocab, dim)
    assert start == len(values)

    def norm(x, gain):
        return gain * (x / np.sqrt(np.mean(x * x) + 1e-5))

    def rotated(x, position):
        out = x.copy()
        for i in range(0, len(x), 2):
            angle = position / 10000.0 ** (i % w / w)
            c, s = math.cos(angle), math.sin(angle)
            out[i], out[i + 1] = x[i] * c - x[i + 1] * s, x[i] * s + x[i + 1] * c
        return out

    keys, mixed = [[] for _ in range(layers)], [[] for _ in range(layers)]
    for position, token in enumerate(tokens):
        x = table[token].copy()
        for n in range(layers):
            h = norm(x, rms_att[n])
            q = rotated(wq[n] @ h, position)
            keys[n].append(rotated(wk[n] @ h, position))
            mixed[n].append(wv[n] @ h)
            parts = []
            for i in range(heads):
                own = slice(i * w, i * w + w)
                kv = i // (heads // kv_heads)
                kv = slice(kv * w, kv * w + w)
                scores = np.array([q[own] @ k[kv] for k in keys[n]]) / math.sqrt(w)
                p = np.exp(scores - scores.max())
                parts.append(sum(a * v[kv] for a, v in zip(p / p.sum(), mixed[n], strict=True)))
            x = x + wo[n] @ np.concatenate(parts)
            h = norm(x, rms_ffn[n])
            gate = w1[n] @ h
            x = x + w2[n] @ (gate / (1 + np.exp(-gate)) * (w3[n] @ h))
    return head @ norm(x, rms_final)


@each_shape
def test_a_model_comes_back_bit_for_bit(shape, tmp_path):
    original = state(small(**shape))
    imported = import_llama2c(export_llama2c(original, tmp_path / "model.bin"))
    assert imported.state.config == original.config
    assert imported.state.equal_bits(original)
    assert imported.tokenizer.decode([7, 12]) == b"<7><12>"


@each_shape
def test_the_program_computes_the_same_logits(shape, tmp_path):
    original = state(small("float64", **shape))
    path = export_llama2c(original, tmp_path / "model.bin")
    wide = import_llama2c(path, dtype="float64").state.restore_independent_model()
    tokens = [5, 90, 33, 2, 41, 41, 100]
    ours = wide.forward([tokens]).data[0, -1]
    theirs = run_c(path.read_bytes(), tokens)
    assert np.abs(ours - theirs).max() < 1e-12 * np.abs(ours).max()


def test_the_header(tmp_path):
    path = export_llama2c(state(small(tied_head=False, n_kv_heads=2)), tmp_path / "model.bin")
    vocab_size = small().vocab_size
    assert struct.unpack("<7i", path.read_bytes()[:28]) == (48, 56, 2, 4, 2, -vocab_size, 12)


def test_what_the_file_does_not_say(tmp_path):
    path = export_llama2c(state(small()), tmp_path / "model.bin")
    other = import_llama2c(path, rope_theta=500.0, rms_norm_eps=1e-6).state.config
    assert (other.rope_theta, other.rms_norm_eps) == (500.0, 1e-6)


@pytest.mark.parametrize(
    ("changes", "name"), [({"rope_theta": 500.0}, "rope_theta"), ({"head_size": 8}, "head_size")]
)
def test_what_the_program_cannot_run(changes, name, tmp_path):
    model = state(config(**({"rope_theta": 10000.0} | changes)))
    with pytest.raises(InteropError) as caught:
        export_llama2c(model, tmp_path / "model.bin")
    assert (caught.value.kind, caught.value.name) == ("UnsupportedFeature", name)
    assert not list(tmp_path.iterdir())


def test_files_that_are_none(tmp_path):
    path = export_llama2c(state(small()), tmp_path / "model.bin")
    data = path.read_bytes()
    for wrong in (data[:-4], data + b"\0\0\0\0", data[:20], b""):
        path.write_bytes(wrong)
        with pytest.raises(InteropError) as caught:
            import_llama2c(path)
        assert caught.value.kind == "CorruptFile"
    path.write_bytes(struct.pack("<7i", 48, 56, 2**31 - 1, 4, 4, 9, 12) + data[28:])
    with pytest.raises(InteropError, match="do not hold 2147483647 layers"):
        import_llama2c(path)
    path.write_bytes(struct.pack("<7i", 48, 56, 2, 5, 5, 9, 12) + data[28:])
    with pytest.raises(ModelError):
        import_llama2c(path)
    path.write_bytes(data[:28] + struct.pack("<f", math.nan) + data[32:])
    with pytest.raises(InteropError) as caught:
        import_llama2c(path)
    assert (caught.value.kind, caught.value.name) == ("NonFinite", "token_embedding.weight")
    with pytest.raises(InteropError) as caught:
        import_llama2c(tmp_path / "none.bin")
    assert caught.value.kind == "Io"
