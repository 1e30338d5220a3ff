"""Mean negative log-likelihood and its gradient, one scalar at a time (contract, section 7)."""

import math

import numpy as np

from tests.oracle import scalar
from tests.oracle.softmax import exponentials, log1p, softmax_row


def _parts(logits, targets):
    """(M, logit of the target, log1p(tail)) of every row."""
    rows = logits.reshape(-1, logits.shape[-1])
    for row, target in zip(rows.tolist(), targets.reshape(-1).tolist(), strict=True):
        top, _, tail = exponentials(row, logits.dtype)
        yield top, row[target], log1p(tail)


def row_losses(logits, targets):
    return np.array(
        [(top - at_target) + log_tail for top, at_target, log_tail in _parts(logits, targets)],
        np.float64,
    )


def cross_entropy(logits, targets):
    losses = row_losses(logits, targets).tolist()
    n = float(len(losses))
    total = 0.0
    for loss in losses:
        total = total + loss
    if math.isfinite(total):
        return scalar.zero(total / n)
    total = 0.0
    for top, at_target, log_tail in _parts(logits, targets):
        below = top - at_target
        share = below / n if math.isfinite(below) else top / n - at_target / n
        total = total + (share + log_tail / n)
    return scalar.zero(total)


def cross_entropy_backward(logits, targets, d_loss=1.0, n_total=None):
    rounded = scalar.of(logits.dtype).rounded
    n = targets.size if n_total is None else n_total
    r = rounded(d_loss / float(n)) if n else 0.0
    out = np.zeros_like(logits)
    for index in np.ndindex(targets.shape):
        p = softmax_row(logits[index].tolist(), logits.dtype)
        target = int(targets[index])
        p[target] = rounded(p[target] - 1.0)
        out[index] = [scalar.zero(rounded(value * r)) for value in p]
    return out
