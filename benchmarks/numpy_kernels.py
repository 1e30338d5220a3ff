"""The kernels in plain numpy: what one would write without a library for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from llmcy.bench.cases import StepCase
from llmcy.bench.kernel_cases import EPS

Inputs = dict[str, np.ndarray]


def _flat(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, x.shape[-1])


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def softmax_backward(p: np.ndarray, d_p: np.ndarray) -> np.ndarray:
    return p * (d_p - (p * d_p).sum(axis=-1, keepdims=True))


def masked(scores: np.ndarray) -> np.ndarray:
    t = scores.shape[-1]
    return np.where(np.tri(t, dtype=bool), scores, -np.inf)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def heads(x: np.ndarray, n_heads: int) -> np.ndarray:
    b, t, d = x.shape
    return x.reshape(b, t, n_heads, d // n_heads).swapaxes(1, 2)


def merged(x: np.ndarray) -> np.ndarray:
    b, h, t, w = x.shape
    return x.swapaxes(1, 2).reshape(b, t, h * w)


def attention(case: StepCase, g: Inputs) -> np.ndarray:
    q, k, v = (heads(g[name], case.n_heads) for name in "qkv")
    scale = q.dtype.type(q.shape[-1] ** -0.5)
    return merged(softmax(masked(q @ k.swapaxes(-1, -2) * scale)) @ v)


def attention_backward(case: StepCase, g: Inputs) -> tuple[np.ndarray, ...]:
    q, k, v, d_out = (heads(g[name], case.n_heads) for name in ("q", "k", "v", "d_out"))
    scale = q.dtype.type(q.shape[-1] ** -0.5)
    p = softmax(masked(q @ k.swapaxes(-1, -2) * scale))
    d_scores = softmax_backward(p, d_out @ v.swapaxes(-1, -2)) * scale
    d_v = p.swapaxes(-1, -2) @ d_out
    return merged(d_scores @ k), merged(d_scores.swapaxes(-1, -2) @ q), merged(d_v)


def cross_entropy(case: StepCase, g: Inputs) -> float:
    x, targets = _flat(g["logits"]), g["targets"].reshape(-1)
    top = x.max(axis=-1, keepdims=True)
    log_sum = np.log(np.exp(x - top).sum(axis=-1))
    return float((log_sum + top[:, 0] - x[np.arange(len(x)), targets]).mean())


def cross_entropy_backward(case: StepCase, g: Inputs) -> np.ndarray:
    p, targets = softmax(_flat(g["logits"])), g["targets"].reshape(-1)
    p[np.arange(len(p)), targets] -= 1.0
    return (p / p.dtype.type(len(p))).reshape(g["logits"].shape)


def head_loss(case: StepCase, g: Inputs) -> tuple[float, np.ndarray, np.ndarray]:
    x, table = _flat(g["x"]), g["table"]
    given = {"logits": x @ table.T, "targets": g["targets"]}
    d_logits = cross_entropy_backward(case, given)
    return cross_entropy(case, given), (d_logits @ table).reshape(g["x"].shape), d_logits.T @ x


def rms_norm(case: StepCase, g: Inputs) -> np.ndarray:
    x = g["x"]
    inv_rms = 1.0 / np.sqrt((x * x).mean(axis=-1, keepdims=True) + x.dtype.type(EPS))
    return x * inv_rms * g["gain"]


def rms_norm_backward(case: StepCase, g: Inputs) -> tuple[np.ndarray, np.ndarray]:
    x, d_out, inv_rms = g["x"], g["d_out"], g["inv_rms"][..., None].astype(g["x"].dtype)
    u = d_out * g["gain"]
    mean = (u * x).mean(axis=-1, keepdims=True)
    d_x = u * inv_rms - x * (mean * inv_rms**3)
    return d_x, _flat(d_out * x * inv_rms).sum(axis=0)


def silu_backward(case: StepCase, g: Inputs) -> np.ndarray:
    s = sigmoid(g["gate"])
    return g["d_out"] * (s * (1.0 + g["gate"] * (1.0 - s)))


def swiglu_backward(case: StepCase, g: Inputs) -> tuple[np.ndarray, np.ndarray]:
    s = sigmoid(g["gate"])
    d_gate = g["d_out"] * g["up"] * (s * (1.0 + g["gate"] * (1.0 - s)))
    return d_gate, g["d_out"] * (g["gate"] * s)


def rotated(g: Inputs, sign: float) -> np.ndarray:
    x, cos, sin = g["x"], g["cos"][None, :, None], sign * g["sin"][None, :, None]
    out = np.empty_like(x)
    out[..., 0::2] = x[..., 0::2] * cos - x[..., 1::2] * sin
    out[..., 1::2] = x[..., 0::2] * sin + x[..., 1::2] * cos
    return out


def embedding_backward(case: StepCase, g: Inputs) -> np.ndarray:
    d_weight = np.zeros_like(g["weight"])
    np.add.at(d_weight, g["token_ids"], g["d_out"])
    return d_weight


def first_non_finite(case: StepCase, g: Inputs) -> int:
    return -1 if np.isfinite(g["a"]).all() else int(np.argmin(np.isfinite(g["a"])))


def adamw(case: StepCase, g: Inputs) -> tuple[np.ndarray, ...]:
    p, grad = g["param"], g["grad"]
    m = 0.9 * g["first_moment"] + 0.1 * grad
    v = 0.999 * g["second_moment"] + 0.001 * (grad * grad)
    update = 1e-3 * ((m / 0.1) / (np.sqrt(v / 0.001) + 1e-8))
    return (p - update) - 1e-5 * p, m, v


NUMPY_KERNELS: dict[str, Callable[[StepCase, Inputs], Any]] = {
    "linear forward": lambda case, g: g["x"] @ g["weight"],
    "linear d_input": lambda case, g: g["d_out"] @ g["weight"].T,
    "linear d_weight": lambda case, g: _flat(g["x"]).T @ _flat(g["d_out"]),
    "attention forward": attention,
    "attention backward": attention_backward,
    "causal_softmax forward": lambda case, g: softmax(masked(g["x"])),
    "causal_softmax backward": lambda case, g: softmax_backward(g["p"], g["d_p"]),
    "cross_entropy forward": cross_entropy,
    "cross_entropy backward": cross_entropy_backward,
    "head loss and gradients": head_loss,
    "rms_norm forward": rms_norm,
    "rms_norm backward": rms_norm_backward,
    "swiglu forward": lambda case, g: g["gate"] * sigmoid(g["gate"]) * g["up"],
    "swiglu backward": swiglu_backward,
    "silu forward": lambda case, g: g["gate"] * sigmoid(g["gate"]),
    "silu backward": silu_backward,
    "rope forward": lambda case, g: rotated(g, 1.0),
    "rope backward": lambda case, g: rotated(g, -1.0),
    "embedding forward": lambda case, g: g["weight"][g["token_ids"]],
    "embedding backward": embedding_backward,
    "add": lambda case, g: g["a"] + g["b"],
    "multiply": lambda case, g: g["a"] * g["b"],
    "first_non_finite": first_non_finite,
    "exp": lambda case, g: np.exp(g["a"]),
    "adamw": adamw,
    "grad_norm": lambda case, g: float(np.linalg.norm(g["grad"])),
}
