"""One token through a whole decoder over plain lists of cached keys and values."""

import numpy as np

from tests.oracle.attention_step import attention_step
from tests.oracle.matmul import matmul
from tests.oracle.rms_norm import rms_norm
from tests.oracle.rope import rope
from tests.oracle.swiglu import swiglu


def decode_step(weights, eps, n_heads, n_kv_heads, token, caches):
    """Logits (V,) and for every layer the token's rotated key and its value, (Hk * w,) each.

    ``caches`` holds for every layer the rotated keys and the values so far, (n, Hk * w) each.
    """
    width = 2 * weights.cos.shape[1]
    x = weights.table[token : token + 1]
    new = []
    for block, (keys, values) in zip(weights.blocks, caches, strict=True):
        position = len(keys)
        h = rms_norm(x, block.attention_gain, eps)[0]
        q, k, v = (matmul(h, matrix) for matrix in (block.query, block.key, block.value))
        q, k = (
            rope(
                y.reshape(1, -1, width),
                weights.cos[position : position + 1],
                weights.sin[position : position + 1],
            ).reshape(1, -1)
            for y in (q, k)
        )
        all_keys, all_values = np.concatenate([keys, k]), np.concatenate([values, v])
        mixed = np.zeros_like(q)
        for head in range(n_heads):
            mine = slice(head * width, (head + 1) * width)
            shared = head // (n_heads // n_kv_heads) * width
            shared = slice(shared, shared + width)
            found = attention_step(q[0, mine], all_keys[:, shared], all_values[:, shared])
            mixed[0, mine] = found[0]
        x = x + matmul(mixed, block.output)
        h = rms_norm(x, block.ffn_gain, eps)[0]
        x = x + matmul(swiglu(matmul(h, block.gate), matmul(h, block.up)), block.down)
        new.append((k[0], v[0]))
    logits = matmul(rms_norm(x, weights.final_gain, eps)[0], np.ascontiguousarray(weights.head.T))
    return logits[0], new
