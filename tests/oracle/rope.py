"""Rotary tables and rotations, one scalar at a time (numerics contract, section 6)."""

import gmpy2
import numpy as np

from tests.oracle import scalar

FORMATS = {
    "float64": {"precision": 53, "emin": -1073, "emax": 1024},
    "float32": {"precision": 24, "emin": -148, "emax": 128},
}


def _correct(function, dtype, *arguments):
    with gmpy2.context(subnormalize=True, **FORMATS[np.dtype(dtype).name]):
        return float(function(*(gmpy2.mpfr(a) for a in arguments)))


def rope_table(max_seq_len, head_dim, theta, dtype):
    rounded = scalar.of(dtype).rounded
    half = head_dim // 2
    cos, sin = np.zeros((2, max_seq_len, half), dtype)
    for j in range(half):
        exponent = rounded(-2.0 * float(j) / float(head_dim))
        frequency = _correct(lambda b, e: b**e, dtype, rounded(theta), exponent)
        for p in range(max_seq_len):
            angle = rounded(float(p) * frequency)
            cos[p, j] = scalar.zero(_correct(gmpy2.cos, dtype, angle))
            sin[p, j] = scalar.zero(_correct(gmpy2.sin, dtype, angle))
    return cos, sin


def rope(x, cos, sin, position=0, inverse=False):
    rounded = scalar.of(x.dtype).rounded
    out = np.zeros_like(x)
    for index in np.ndindex(x.shape[:-1]):
        p = position + index[-2]
        for j in range(x.shape[-1] // 2):
            a, b = float(x[index][2 * j]), float(x[index][2 * j + 1])
            c, s = float(cos[p, j]), float(sin[p, j])
            ac, bs, a_s, bc = rounded(a * c), rounded(b * s), rounded(a * s), rounded(b * c)
            first = ac + bs if inverse else ac - bs
            second = bc - a_s if inverse else a_s + bc
            out[index][2 * j] = scalar.zero(rounded(first))
            out[index][2 * j + 1] = scalar.zero(rounded(second))
    return out
