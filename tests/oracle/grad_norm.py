"""Norm of all gradients, one scalar at a time (numerics contract, section 9; float32, rule 8)."""

import math
import sys


def pair(values):
    """(top, root, norm) of float64 values."""
    top, sq = 0.0, 1.0
    for g in values:
        a = abs(g)
        if a == 0.0:
            continue
        if top < a:
            r = top / a
            sq = 1.0 + (sq * r) * r
            top = a
        else:
            r = a / top
            sq = sq + r * r
    root = math.sqrt(sq)
    return top, root, min(top * root, sys.float_info.max)


def blocks(values):
    """(norm, 1, norm) of float32 values."""
    total = 0.0
    for start in range(0, len(values), 4096):
        block = 0.0
        for g in values[start : start + 4096]:
            block = block + g * g
        total = total + block
    norm = math.sqrt(total)
    return norm, 1.0, norm


def grad_norm(arrays):
    values = [g for x in arrays for g in x.ravel().tolist()]
    narrow = bool(arrays) and arrays[0].dtype.itemsize == 4
    return blocks(values) if narrow else pair(values)
