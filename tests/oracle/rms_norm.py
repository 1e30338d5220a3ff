"""RMSNorm and its gradients, one scalar at a time (numerics contract, sections 6 and 8)."""

import math

import gmpy2
import numpy as np

from tests.oracle import scalar


def _log(x):
    with gmpy2.context(precision=53):
        return float(gmpy2.log(gmpy2.mpfr(x)))


def inverse_root(st, dtype):
    if st == 0.0:
        return math.inf
    if np.dtype(dtype) == np.float32:
        return scalar.to_binary32(1.0 / math.sqrt(st))
    if not math.isfinite(st):
        return 0.0 if st == math.inf else math.nan
    return scalar.of(dtype).exp(_log(st) * -0.5)


def _divided(a, b):
    """a / b as IEEE 754 has it, also for b = 0."""
    with np.errstate(all="ignore"):
        return float(np.float64(a) / np.float64(b))


def rms_norm(x, gain, eps):
    rounded = scalar.of(x.dtype).rounded
    out = np.zeros_like(x)
    inv_rms = np.zeros(x.shape[:-1], x.dtype)
    mean_square_eps = np.zeros(x.shape[:-1], np.float64)
    for index in np.ndindex(x.shape[:-1]):
        row = x[index].tolist()
        fold = 0.0
        for value in row:
            fold = fold + value * value
        st = fold / float(len(row)) + eps
        inv = inverse_root(st, x.dtype)
        mean_square_eps[index], inv_rms[index] = st, inv
        out[index] = [
            rounded(rounded(value * inv) * g) for value, g in zip(row, gain.tolist(), strict=True)
        ]
    return out, inv_rms, mean_square_eps


def rms_norm_backward(d_out, x, gain, inv_rms, mean_square_eps, d_x, d_gain):
    """New values of d_x and d_gain."""
    rounded = scalar.of(x.dtype).rounded
    d_x, d_gain = d_x.copy(), d_gain.tolist()
    g = gain.tolist()
    for index in np.ndindex(x.shape[:-1]):
        up, row = d_out[index].tolist(), x[index].tolist()
        inv, st = float(inv_rms[index]), float(mean_square_eps[index])
        dn = [0.0 + rounded(u * w) for u, w in zip(up, g, strict=True)]
        d_inv = 0.0
        for a, value in zip(dn, row, strict=True):
            d_inv = d_inv + a * value
        d_log = 0.0 + (0.0 + d_inv * inv) * -0.5
        d_square = rounded((0.0 + _divided(d_log, st)) / float(len(row)))
        for d, value in enumerate(row):
            received = rounded(float(d_x[(*index, d)]) + rounded(dn[d] * inv))
            received = rounded(received + rounded(d_square * value))
            received = rounded(received + rounded(d_square * value))
            d_x[(*index, d)] = received
            d_gain[d] = rounded(d_gain[d] + rounded(up[d] * rounded(value * inv)))
    return d_x, np.array(d_gain, x.dtype)
