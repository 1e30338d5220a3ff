"""Matrix products and the weight gradient, written as the contract's section 5 reads."""

import numpy as np

from tests.oracle import scalar


def matmul(a, b, transpose_a=False, transpose_b=False):
    """a (P..., m, k) times b (k, n) or (P..., k, n), operands stored transposed if asked."""
    if transpose_a:
        a = np.swapaxes(a, -1, -2)
    if transpose_b:
        b = np.swapaxes(b, -1, -2)
    lead, (m, k), n = a.shape[:-2], a.shape[-2:], b.shape[-1]
    out = np.zeros((*lead, m, n), a.dtype)
    mul_add = scalar.of(a.dtype).mul_add
    for p in np.ndindex(*lead):
        left = a[p].tolist()
        right = (b if b.ndim == 2 else b[p]).tolist()
        for i in range(m):
            for j in range(n):
                total = 0.0
                for step in range(k):
                    total = mul_add(left[i][step], right[step][j], total)
                out[(*p, i, j)] = scalar.zero(total)  # a fused sum may end at -0
    return out


def matmul_d_weight(x, d_y, carried=None):
    """x (B, T, I), d_y (B, T, O): a chain over t inside each row, then the rows added in order."""
    rows, positions, n_in = x.shape
    n_out = d_y.shape[-1]
    out = np.zeros((n_in, n_out), x.dtype) if carried is None else carried.copy()
    arithmetic = scalar.of(x.dtype)
    left, right = x.tolist(), d_y.tolist()
    for i in range(n_in):
        for o in range(n_out):
            total = float(out[i, o])
            for b in range(rows):
                row = 0.0
                for t in range(positions):
                    row = arithmetic.mul_add(left[b][t][i], right[b][t][o], row)
                total = arithmetic.rounded(total + scalar.zero(row))
            out[i, o] = total
    return out
