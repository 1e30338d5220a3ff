"""Table look-up and its gradient, one scalar at a time (numerics contract, section 8)."""

import numpy as np

from tests.oracle import scalar


def embedding(weight, token_ids):
    out = np.zeros((*token_ids.shape, weight.shape[1]), weight.dtype)
    for index in np.ndindex(token_ids.shape):
        for d in range(weight.shape[1]):
            out[(*index, d)] = weight[int(token_ids[index]), d]
    return out


def embedding_backward(d_out, token_ids, d_weight):
    """New value of d_weight."""
    rounded = scalar.of(d_weight.dtype).rounded
    table = d_weight.tolist()
    for index in np.ndindex(token_ids.shape):
        row = table[int(token_ids[index])]
        for d, value in enumerate(d_out[index].tolist()):
            row[d] = rounded(row[d] + value)
    return np.array(table, d_weight.dtype).reshape(d_weight.shape)
