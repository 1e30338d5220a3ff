"""Softmax and log-softmax of rows, one scalar at a time (numerics contract, sections 6 and 8)."""

import math

import gmpy2
import numpy as np

from tests.oracle import scalar


def log1p(x: float) -> float:
    """Correctly rounded to binary64."""
    if math.isnan(x) or x == math.inf or x == 0.0:
        return x
    with gmpy2.context(precision=53, emin=-1073, emax=1024, subnormalize=True):
        return float(gmpy2.log1p(gmpy2.mpfr(x)))


def exponentials(row, dtype):
    """Maximum, exponentials below it and their tail, which leaves out the first zero difference."""
    number = scalar.of(dtype)
    top = math.nan if any(map(math.isnan, row)) else max(row)
    e, tail, skipped = [], 0.0, False
    for x in row:
        below = number.rounded(x - top)
        e.append(math.nan if math.isnan(below) else number.exp(below))
        if below == 0.0 and not skipped:
            skipped = True
        else:
            tail = tail + e[-1]  # binary64 for both types
    return top, e, tail


def softmax_row(row, dtype):
    rounded = scalar.of(dtype).rounded
    _, e, tail = exponentials(row, dtype)
    total = rounded(1.0 + tail)
    return [scalar.zero(rounded(x / total)) for x in e]


def softmax_backward_row(p, d, dtype):
    rounded = scalar.of(dtype).rounded
    fold = 0.0
    for a, b in zip(d, p, strict=True):
        fold = fold + a * b
    fold = rounded(fold)
    return [scalar.zero(rounded(b * rounded(a - fold))) for a, b in zip(d, p, strict=True)]


def log_softmax_row(row, dtype):
    rounded = scalar.of(dtype).rounded
    top, _, tail = exponentials(row, dtype)
    log_tail = rounded(log1p(tail))
    return [scalar.zero(rounded(rounded(x - top) - log_tail)) for x in row]


def log_softmax_backward_row(log_p, d, dtype):
    number = scalar.of(dtype)
    rounded = number.rounded
    fold = 0.0
    for a in d:
        fold = fold + a
    fold = rounded(fold)
    return [
        scalar.zero(rounded(a - rounded(number.exp(y) * fold)))
        for y, a in zip(log_p, d, strict=True)
    ]


def by_rows(function, *arrays, causal=False):
    """Apply a function of rows to matching rows; with ``causal``, to their first i + 1 entries."""
    dtype, shape = arrays[0].dtype, arrays[0].shape
    out = np.zeros(shape, dtype)
    for index in np.ndindex(shape[:-1]):
        n = index[-1] + 1 if causal else shape[-1]
        if n:
            out[index][:n] = function(*(x[index][:n].tolist() for x in arrays), dtype)
    return out
