"""Attention of one new token over what came before it, one scalar at a time."""

import math

import numpy as np

from tests.oracle import scalar
from tests.oracle.attention import softmax


def attention_step(q, keys, values):
    """One head: q (w,), keys and values (n + 1, w), the new token's last; (out, weights)."""
    arithmetic = scalar.of(q.dtype)
    width = q.shape[0]
    scale = arithmetic.rounded(1.0 / arithmetic.rounded(math.sqrt(width)))
    scores = []
    for key in keys.tolist():
        total = 0.0
        for a, b in zip(q.tolist(), key, strict=True):
            total = arithmetic.mul_add(a, b, total)
        scores.append(arithmetic.rounded(total * scale))
    weights = softmax(scores, q.dtype)
    out = np.zeros_like(q)
    for e in range(width):
        total = 0.0
        for weight, value in zip(weights, values[:, e].tolist(), strict=True):
            total = arithmetic.mul_add(weight, value, total)
        out[e] = scalar.zero(total)  # a fused sum may end at -0
    return out, np.array(weights, q.dtype)
