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
from llmcy._kernels.types cimport IS_F32, fabs, real

cnp.import_array()

cdef enum:
    RATIOS = 64             # elements without a new maximum that are divided side by side
    NORM_BLOCK = 4096


cdef void scaled_sum(const real* g, Py_ssize_t n, double* top_out, double* sq_out) noexcept nogil:
    """The pair (top, sq) after n more elements."""
    cdef Py_ssize_t start, stop, i
    cdef double a, r, top = top_out[0], sq = sq_out[0]
    cdef double ratio[RATIOS]
    cdef int grows
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
    top_out[0] = top
    sq_out[0] = sq


cdef struct Blocks:
    double total            # of the finished blocks
    double block            # chain of the block in progress
    Py_ssize_t filled       # elements it has


cdef void block_sum(const real* g, Py_ssize_t n, Blocks* state) noexcept nogil:
    """The state after n more elements."""
    cdef Py_ssize_t i = 0, j, stop, b
    cdef double chains[ROWS]
    cdef double total = state.total, block = state.block
    cdef Py_ssize_t filled = state.filled
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
    state.total = total
    state.block = block
    state.filled = filled


def total(tuple xs) -> tuple:  # IN
    """(top, sq) of float64 arrays, (1, sum of squares) of float32 ones.

    A NaN or an infinity among the elements makes one of the two not finite, and nothing else does:
    a NaN stays in sq; an infinity stays in top, or as NaN in sq; no square of a binary32 number
    overflows.
    """
    cdef double top = 0.0, sq = 1.0
    cdef Blocks blocks
    cdef cnp.ndarray x
    cdef const real* g
    cdef Py_ssize_t n
    blocks.total = 0.0
    blocks.block = 0.0
    blocks.filled = 0
    for x in xs:
        g = <const real*>cnp.PyArray_DATA(x)
        n = cnp.PyArray_SIZE(x)
        with nogil:
            if IS_F32:
                block_sum(g, n, &blocks)
            else:
                scaled_sum(g, n, &top, &sq)
    if IS_F32:
        return 1.0, blocks.total + blocks.block
    return top, sq
