"""The decoder's loss and all of its gradients, forward and backward written out by hand.

No tape, no kernels: numpy arrays only carry the numbers between loops over Python floats, in the
order of the contract (sections 5 to 8, and part two for float32).  Besides the results it returns
every activation and every adjoint by name.
"""

from __future__ import annotations

import math
from typing import Any

import gmpy2
import numpy as np

from llmcy.config import ModelConfig
from tests.oracle import attention as attention_oracle
from tests.oracle import scalar
from tests.oracle.matmul import matmul, matmul_d_weight

Array = np.ndarray
Arrays = dict[str, Array]


def correctly_rounded(name: str, dtype: Any, *arguments: float) -> float:
    """An elementary function, rounded once to the type."""
    precision, emin, emax = (53, -1073, 1024) if np.dtype(dtype) == np.float64 else (24, -148, 128)
    with gmpy2.context(precision=precision, emin=emin, emax=emax, subnormalize=True):
        exact = [gmpy2.mpfr(x) for x in arguments]
        return float(exact[0] ** exact[1] if name == "pow" else getattr(gmpy2, name)(*exact))


def rope_table(config: ModelConfig) -> tuple[list[list[float]], list[list[float]]]:
    dtype, w = config.dtype, config.head_dim
    rounded = scalar.of(dtype).rounded
    base = rounded(config.rope_theta)
    cos, sin = [], []
    frequencies = [
        correctly_rounded("pow", dtype, base, rounded(-2.0 * j / w)) for j in range(w // 2)
    ]
    for p in range(config.max_seq_len):
        angles = [rounded(rounded(float(p)) * f) for f in frequencies]
        cos.append([scalar.zero(correctly_rounded("cos", dtype, a)) for a in angles])
        sin.append([scalar.zero(correctly_rounded("sin", dtype, a)) for a in angles])
    return cos, sin


def rotate(x: Array, config: ModelConfig, inverse: bool = False) -> Array:
    rounded = scalar.of(config.dtype).rounded
    cos, sin = rope_table(config)
    out = np.zeros_like(x)
    pairs = config.head_dim // 2
    for b, t, pair in np.ndindex(x.shape[0], x.shape[1], x.shape[2] // 2):
        first, second = float(x[b, t, 2 * pair]), float(x[b, t, 2 * pair + 1])
        c, s = cos[t][pair % pairs], sin[t][pair % pairs]
        if inverse:
            s = -s
        out[b, t, 2 * pair] = scalar.zero(rounded(rounded(first * c) - rounded(second * s)))
        out[b, t, 2 * pair + 1] = scalar.zero(rounded(rounded(first * s) + rounded(second * c)))
    return out


def rms_norm(x: Array, gain: Array, eps: float) -> tuple[Array, Array, Array, Array]:
    """Result, normalised values, inverse root (all of the type) and ``ms + eps``."""
    dtype = x.dtype
    rounded = scalar.of(dtype).rounded
    out, normalised = np.zeros_like(x), np.zeros_like(x)
    inverse, stable = np.zeros(x.shape[:-1], dtype), np.zeros(x.shape[:-1])
    for b, t in np.ndindex(*x.shape[:-1]):
        row = x[b, t].tolist()
        total = 0.0
        for value in row:
            total = total + value * value
        st = total / len(row) + eps
        if dtype == np.float64:
            inv = correctly_rounded("exp", dtype, correctly_rounded("log", dtype, st) * -0.5)
        else:
            inv = rounded(1.0 / math.sqrt(st))
        stable[b, t], inverse[b, t] = st, inv
        for d, value in enumerate(row):
            nrm = rounded(value * inv)
            normalised[b, t, d] = nrm
            out[b, t, d] = rounded(nrm * float(gain[d]))
    return out, normalised, inverse, stable


def rms_norm_backward(
    up: Array, x: Array, gain: Array, saved: tuple[Array, ...], collected: Array
) -> tuple[Array, Array]:
    """Gradient of the input, joined to what it had collected, and of the gain."""
    _, normalised, inverse, stable = saved
    rounded = scalar.of(x.dtype).rounded
    d_x, d_gain = collected.copy(), [0.0] * len(gain)
    for b, t in np.ndindex(*x.shape[:-1]):
        inv, st = float(inverse[b, t]), float(stable[b, t])
        row, d_n, d_inv = x[b, t].tolist(), [], 0.0
        for d, value in enumerate(row):
            upstream = float(up[b, t, d])
            d_gain[d] = rounded(d_gain[d] + rounded(upstream * float(normalised[b, t, d])))
            d_n.append(rounded(upstream * float(gain[d])))
            d_inv = d_inv + d_n[d] * value
        d_square = rounded((((d_inv * inv) * -0.5) / st) / len(row))
        for d, value in enumerate(row):
            total = rounded(float(d_x[b, t, d]) + rounded(d_n[d] * inv))
            total = rounded(total + rounded(d_square * value))
            d_x[b, t, d] = rounded(total + rounded(d_square * value))
    return d_x, np.array(d_gain, x.dtype)


def sigmoid(x: float, dtype: Any) -> float:
    rounded = scalar.of(dtype).rounded
    if x >= 0.0:
        return rounded(1.0 / rounded(1.0 + correctly_rounded("exp", dtype, -x)))
    e = correctly_rounded("exp", dtype, x)
    return rounded(e / rounded(1.0 + e))


def swiglu(gate: Array, up: Array) -> tuple[Array, Array]:
    """The product, and silu of the gate."""
    rounded = scalar.of(gate.dtype).rounded
    silu, out = np.zeros_like(gate), np.zeros_like(gate)
    for i in np.ndindex(*gate.shape):
        g = float(gate[i])
        s = rounded(g * sigmoid(g, gate.dtype))
        silu[i], out[i] = s, rounded(s * float(up[i]))
    return out, silu


def swiglu_backward(d_out: Array, gate: Array, up: Array, silu: Array) -> tuple[Array, Array]:
    rounded = scalar.of(gate.dtype).rounded
    d_gate, d_up = np.zeros_like(gate), np.zeros_like(gate)
    for i in np.ndindex(*gate.shape):
        g, d = float(gate[i]), float(d_out[i])
        sg = sigmoid(g, gate.dtype)
        d_up[i] = 0.0 + rounded(d * float(silu[i]))
        d_silu = rounded(d * float(up[i]))
        slope = rounded(sg * rounded(1.0 + rounded(g * rounded(1.0 - sg))))
        d_gate[i] = 0.0 + rounded(d_silu * slope)
    return d_gate, d_up


def row_loss(logits: list[float], target: int, dtype: Any) -> float:
    """In binary64 for both types; exponentials are of the type."""
    rounded = scalar.of(dtype).rounded
    top = max(logits)
    first, tail = logits.index(top), 0.0
    for v, logit in enumerate(logits):
        if v != first:
            tail = tail + correctly_rounded("exp", dtype, rounded(logit - top))
    return (top - logits[target]) + correctly_rounded("log1p", np.float64, tail)


def loss_backward(logits: list[float], target: int, divisor: int, dtype: Any) -> list[float]:
    rounded = scalar.of(dtype).rounded
    p = attention_oracle.softmax(logits, dtype)
    p[target] = rounded(p[target] - 1.0)
    factor = rounded(1.0 / divisor)
    return [scalar.zero(rounded(value * factor)) for value in p]


def _add(a: Array, b: Array) -> Array:
    return a + b  # one IEEE addition an element


def run(
    config: ModelConfig, parameters: Arrays, inputs: Array, targets: Array
) -> tuple[float, Arrays, Arrays, Arrays]:
    """Mean loss, activations, adjoints and gradients of one batch."""
    dtype = np.dtype(config.dtype)
    eps = config.rms_norm_eps
    act: Arrays = {}
    adj: Arrays = {}
    grad: Arrays = {}
    norms: dict[str, tuple[Array, ...]] = {}
    table = parameters["token_embedding.weight"]

    # forward
    x = act["embedding"] = table[inputs]
    for n in range(config.n_layers):
        at = f"blocks.{n}."
        weight = {
            name: parameters[at + name + ".weight"]
            for name in [
                "attention.query", "attention.key", "attention.value", "attention.output",
                "ffn.gate", "ffn.up", "ffn.down",
            ]
        }  # fmt: skip
        norms[at + "1"] = rms_norm(x, parameters[at + "attention_norm.gain"], eps)
        h = act[at + "attention_norm.output"] = norms[at + "1"][0]
        act[at + "attention_norm.inverse_rms"] = norms[at + "1"][2]
        q = act[at + "query_rotated"] = rotate(matmul(h, weight["attention.query"]), config)
        k = act[at + "key_rotated"] = rotate(matmul(h, weight["attention.key"]), config)
        v = act[at + "value"] = matmul(h, weight["attention.value"])
        merged = act[at + "merged"] = attention_oracle.attention(
            q, k, v, config.n_heads, config.kv_heads
        )
        act[at + "attention_output"] = matmul(merged, weight["attention.output"])
        y = act[at + "after_attention"] = _add(x, act[at + "attention_output"])
        norms[at + "2"] = rms_norm(y, parameters[at + "ffn_norm.gain"], eps)
        h2 = act[at + "ffn_norm.output"] = norms[at + "2"][0]
        gate = act[at + "gate_linear"] = matmul(h2, weight["ffn.gate"])
        up = act[at + "up"] = matmul(h2, weight["ffn.up"])
        act[at + "product"], act[at + "gate_silu"] = swiglu(gate, up)
        act[at + "ffn_output"] = matmul(act[at + "product"], weight["ffn.down"])
        x = act[at + "output"] = _add(y, act[at + "ffn_output"])
    norms["final"] = rms_norm(x, parameters["final_norm.gain"], eps)
    hf = act["final_norm.output"] = norms["final"][0]
    head = table if config.tied_head else parameters["output_head.weight"]
    logits = act["logits"] = matmul(hf, head, transpose_b=True)

    # loss
    total = 0.0
    count = targets.size
    d_logits = adj["logits"] = np.zeros_like(logits)
    for b, t in np.ndindex(*targets.shape):
        row, target = logits[b, t].tolist(), int(targets[b, t])
        total = total + row_loss(row, target, dtype)
        d_logits[b, t] = loss_backward(row, target, count, dtype)
    loss = scalar.zero(total / count)

    # backward
    head_part = matmul_d_weight(d_logits, hf)
    d_hf = adj["final_norm.output"] = matmul(d_logits, head)
    d_x, grad["final_norm.gain"] = rms_norm_backward(
        d_hf, x, parameters["final_norm.gain"], norms["final"], np.zeros_like(x)
    )
    for n in reversed(range(config.n_layers)):
        at = f"blocks.{n}."

        def back(name: str, upstream: Array, source: Array, at: str = at) -> Array:
            """Store a projection's weight gradient; return the gradient of its input."""
            grad[at + name + ".weight"] = matmul_d_weight(source, upstream)
            return matmul(upstream, parameters[at + name + ".weight"], transpose_b=True)

        d_z = adj[at + "output"] = d_x
        d_product = adj[at + "product"] = back("ffn.down", d_z, act[at + "product"])
        d_gate, d_up = swiglu_backward(
            d_product, act[at + "gate_linear"], act[at + "up"], act[at + "gate_silu"]
        )
        adj[at + "gate_linear"], adj[at + "up"] = d_gate, d_up
        h2 = act[at + "ffn_norm.output"]
        d_h2 = adj[at + "ffn_norm.output"] = _add(
            back("ffn.up", d_up, h2), back("ffn.gate", d_gate, h2)
        )
        y = act[at + "after_attention"]
        d_y, grad[at + "ffn_norm.gain"] = rms_norm_backward(
            d_h2, y, parameters[at + "ffn_norm.gain"], norms[at + "2"], d_z
        )
        adj[at + "after_attention"] = d_y
        d_merged = adj[at + "merged"] = back("attention.output", d_y, act[at + "merged"])
        d_q, d_k, d_v = attention_oracle.attention_backward(
            d_merged,
            act[at + "query_rotated"],
            act[at + "key_rotated"],
            act[at + "value"],
            config.n_heads,
            config.kv_heads,
        )
        d_q = adj[at + "query"] = rotate(d_q, config, inverse=True)
        d_k = adj[at + "key"] = rotate(d_k, config, inverse=True)
        adj[at + "value"] = d_v
        h = act[at + "attention_norm.output"]
        d_h = back("attention.value", d_v, h)
        d_h = _add(d_h, back("attention.key", d_k, h))
        d_h = _add(d_h, back("attention.query", d_q, h))
        adj[at + "attention_norm.output"] = d_h
        x = act["embedding"] if n == 0 else act[f"blocks.{n - 1}.output"]
        d_x, grad[at + "attention_norm.gain"] = rms_norm_backward(
            d_h, x, parameters[at + "attention_norm.gain"], norms[at + "1"], d_y
        )
    adj["embedding"] = d_x
    lookup_part = np.zeros_like(table)
    for b, t in np.ndindex(*inputs.shape):
        lookup_part[inputs[b, t]] = _add(lookup_part[inputs[b, t]], d_x[b, t])
    if config.tied_head:
        grad["token_embedding.weight"] = _add(head_part, lookup_part)
    else:
        grad["token_embedding.weight"], grad["output_head.weight"] = lookup_part, head_part
    return loss, act, adj, grad
