"""Sums of arrays, one addition at a time."""

import numpy as np

from tests.oracle import scalar


def total(x):
    """The chain in binary64."""
    fold = 0.0
    for value in x.ravel().tolist():
        fold = fold + value
    return fold


def sum_rows(x, into):
    """New value of into."""
    rounded = scalar.of(x.dtype).rounded
    sums = into.tolist()
    for row in x.reshape(-1, x.shape[-1]).tolist() if x.size else []:
        sums = [rounded(a + b) for a, b in zip(sums, row, strict=True)]
    return np.array(sums, x.dtype)
