"""Causal attention and its gradients, one scalar at a time (contract, sections 6 and 8)."""

import math

import numpy as np

from tests.oracle import scalar


def softmax(scores, dtype):
    """Probabilities of one row; the first maximum is left out of the tail."""
    arithmetic = scalar.of(dtype)
    top = max(scores)
    first = scores.index(top)
    powers = [arithmetic.exp(arithmetic.rounded(s - top)) for s in scores]
    tail = 0.0  # binary64 for both types
    for j, power in enumerate(powers):
        if j != first:
            tail = tail + power
    denominator = arithmetic.rounded(1.0 + tail)
    return [scalar.zero(arithmetic.rounded(power / denominator)) for power in powers]


def _scale(width, dtype):
    rounded = scalar.of(dtype).rounded
    return rounded(1.0 / rounded(math.sqrt(width)))


def _fold(arithmetic, pairs):
    total = 0.0
    for a, b in pairs:
        total = arithmetic.mul_add(a, b, total)
    return scalar.zero(total)  # a fused sum may end at -0


def _heads(array, n_heads):
    """For every (row, head): the nested list [position][feature]."""
    rows, _, width = array.shape
    w = width // n_heads
    return {
        (b, h): array[b, :, h * w : (h + 1) * w].tolist()
        for b in range(rows)
        for h in range(n_heads)
    }


def _probabilities(q, k, scale, dtype):
    arithmetic = scalar.of(dtype)
    rows = []
    for i in range(len(q)):
        scores = [
            arithmetic.rounded(_fold(arithmetic, zip(q[i], k[j], strict=True)) * scale)
            for j in range(i + 1)
        ]
        rows.append(softmax(scores, dtype))
    return rows


def attention(q, k, v, n_heads, n_kv_heads=None):
    arithmetic = scalar.of(q.dtype)
    w = q.shape[-1] // n_heads
    scale = _scale(w, q.dtype)
    out = np.zeros_like(q)
    kv_heads = n_kv_heads or n_heads
    group = n_heads // kv_heads
    qs, ks, vs = _heads(q, n_heads), _heads(k, kv_heads), _heads(v, kv_heads)
    for b, h in qs:
        p = _probabilities(qs[b, h], ks[b, h // group], scale, q.dtype)
        for i, row in enumerate(p):
            for e in range(w):
                out[b, i, h * w + e] = _fold(
                    arithmetic, ((row[j], vs[b, h // group][j][e]) for j in range(i + 1))
                )
    return out


def attention_backward(d_out, q, k, v, n_heads, n_kv_heads=None):
    arithmetic = scalar.of(q.dtype)
    rounded = arithmetic.rounded
    w = q.shape[-1] // n_heads
    scale = _scale(w, q.dtype)
    kv_heads = n_kv_heads or n_heads
    group = n_heads // kv_heads
    d_q, d_k, d_v = (np.zeros_like(x) for x in (q, k, v))
    dos, qs, ks, vs = (
        _heads(x, n) for x, n in ((d_out, n_heads), (q, n_heads), (k, kv_heads), (v, kv_heads))
    )
    for b, h in dos:  # heads ascending
        do, qh, kh, vh = dos[b, h], qs[b, h], ks[b, h // group], vs[b, h // group]
        n = len(qh)
        p = _probabilities(qh, kh, scale, q.dtype)
        d_r = []
        for i in range(n):
            d_p = [_fold(arithmetic, zip(do[i], vh[j], strict=True)) for j in range(i + 1)]
            pullback = 0.0  # float32: a binary64 chain of exact products, rounded once
            for j in range(i + 1):
                pullback = pullback + d_p[j] * p[i][j]
            pullback = rounded(pullback)
            d_r.append(
                [
                    rounded(scalar.zero(rounded(p[i][j] * rounded(d_p[j] - pullback))) * scale)
                    for j in range(i + 1)
                ]
            )
        for e in range(w):
            column = h * w + e
            for i in range(n):
                d_q[b, i, column] = _fold(arithmetic, ((d_r[i][j], kh[j][e]) for j in range(i + 1)))
            shared = h // group * w + e
            for j in range(n):
                share_v = _fold(arithmetic, ((p[i][j], do[i][e]) for i in range(j, n)))
                share_k = _fold(arithmetic, ((qh[i][e], d_r[i][j]) for i in range(j, n)))
                d_v[b, j, shared] = rounded(float(d_v[b, j, shared]) + share_v)
                d_k[b, j, shared] = rounded(float(d_k[b, j, shared]) + share_k)
    return d_q, d_k, d_v
