"""The size of all gradients together, array by array (numerics contract, section 9).

float64: a running pair (top, sq) with norm = top * sqrt(sq), from (0, 1).  For a = |g|:

    a = 0       nothing
    top < a     r = top / a;  sq = 1 + (sq * r) * r;  top = a
    else        r = a / top;  sq = sq + r * r

float32 (contract for float32, rule 8): the concatenation of all arrays is cut into blocks of 4096
elements; a block is a binary64 chain of exact squares, and blocks are added in order.

Both carry their state from one array to the next, so no concatenated copy is ever made.
"""

cimport numpy as cnp

from llmcy._kernels.order cimport ROWS
from llmcy._kernels.types cimport fabs, is_finite_real, real, sqrt

cnp.import_array()

cdef enum:
    RATIOS = 64             # elements without a new maximum that are divided side by side
    NORM_BLOCK = 4096


def scaled_sum(cnp.ndarray x, double top, double sq):  # IN
    """The pair (top, sq) after the elements of x; for finite float64 values."""
    cdef const real* g = <const real*>cnp.PyArray_DATA(x)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(x)
    cdef Py_ssize_t start, stop, i
    cdef double a, r
    cdef double ratio[RATIOS]
    cdef int grows
    with nogil:
        for start from 0 <= start < n by RATIOS:
            stop = min(start + RATIOS, n)
            grows = top == 0.0
            for i in range(start, stop):
                grows |= fabs(g[i]) > top
            if grows:
                for i in range(start, stop):
                    a = fabs(g[i])
                    if a == 0.0:
                        continue
                    if top < a:
                        r = top / a
                        sq = 1.0 + (sq * r) * r
                        top = a
                    else:
                        r = a / top
                        sq = sq + r * r
            else:
                # a zero adds a zero here, which is the same as skipping it: sq >= 1
                for i in range(start, stop):
                    r = fabs(g[i]) / top
                    ratio[i - start] = r * r
                for i in range(stop - start):
                    sq = sq + ratio[i]
    return top, sq


def block_sum(cnp.ndarray x, double total, double block, Py_ssize_t filled):  # IN
    """(total, block, filled) after the elements of x: the sum of the finished blocks, the chain of
    the block in progress and how many elements it has; for finite float32 values."""
    cdef const real* g = <const real*>cnp.PyArray_DATA(x)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(x)
    cdef Py_ssize_t i = 0, j, stop, b
    cdef double chains[ROWS]
    with nogil:
        while i < n:
            if filled == 0 and n - i >= ROWS * NORM_BLOCK:
                # blocks are independent: their chains run side by side
                for b in range(ROWS):
                    chains[b] = 0.0
                for j in range(NORM_BLOCK):
                    for b in range(ROWS):
                        chains[b] = (
                            chains[b]
                            + <double>g[i + b * NORM_BLOCK + j] * <double>g[i + b * NORM_BLOCK + j]
                        )
                for b in range(ROWS):
                    total = total + chains[b]
                i += ROWS * NORM_BLOCK
            else:
                stop = min(n, i + NORM_BLOCK - filled)
                for j in range(i, stop):
                    block = block + <double>g[j] * <double>g[j]
                filled += stop - i
                i = stop
                if filled == NORM_BLOCK:
                    total = total + block
                    block = 0.0
                    filled = 0
    return total, block, filled
