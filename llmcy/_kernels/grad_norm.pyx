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
from cpython.mem cimport PyMem_Free, PyMem_Malloc

from llmcy._kernels.order cimport ROWS, dot_rows
from llmcy._kernels.pool cimport parallel_for
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


# One array of the concatenation: elements that end a block, whole blocks, elements that begin one.
cdef struct Part:
    const real* g
    Py_ssize_t head, blocks, tail
    Py_ssize_t first_group      # of ROWS whole blocks, the last perhaps of fewer; among all arrays
    double* sums                # of the whole blocks

cdef struct Parts:
    Py_ssize_t n
    Part* part


cdef void _block_sums(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    # blocks are independent: the chains of ROWS of them run side by side
    cdef Parts* all = <Parts*>ctx
    cdef Part* part
    cdef const real* g
    cdef Py_ssize_t p = 0, block, group, rows, r
    cdef double chains[ROWS]
    for group in range(lo, hi):
        while p + 1 < all.n and all.part[p + 1].first_group <= group:
            p += 1
        part = &all.part[p]
        block = (group - part.first_group) * ROWS
        rows = min(part.blocks - block, <Py_ssize_t>ROWS)
        g = part.g + part.head + block * NORM_BLOCK
        dot_rows(g, g, rows, NORM_BLOCK, chains)
        for r in range(rows):
            part.sums[block + r] = chains[r]


cdef inline double chain(double sum, const real* g, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        sum = sum + <double>g[i] * <double>g[i]
    return sum


cdef double sum_of_blocks(Parts* all) noexcept nogil:
    """The sums of all blocks in their order, those that join arrays made on the way."""
    cdef Part* part
    cdef Py_ssize_t p, b
    cdef double total = 0.0, block = 0.0
    for p in range(all.n):
        part = &all.part[p]
        block = chain(block, part.g, part.head)
        if part.blocks > 0 or part.tail > 0:  # the head, if any, ended a block
            total = total + block
            block = 0.0
        for b in range(part.blocks):
            total = total + part.sums[b]
        block = chain(block, part.g + part.head + part.blocks * NORM_BLOCK, part.tail)
    return total + block


cdef double blockwise_sum(tuple xs, int n_threads):
    cdef Parts all
    cdef Py_ssize_t n, p, before = 0, blocks = 0, groups = 0
    cdef double result
    cdef double* sums
    cdef cnp.ndarray x
    all.n = len(xs)
    for x in xs:
        blocks += cnp.PyArray_SIZE(x) // NORM_BLOCK
    all.part = <Part*>PyMem_Malloc(all.n * sizeof(Part) + blocks * sizeof(double))
    if all.part == NULL:
        raise MemoryError("no memory for the sums of blocks of gradients")
    sums = <double*>(all.part + all.n)
    for p in range(all.n):
        x = xs[p]
        n = cnp.PyArray_SIZE(x)
        all.part[p].g = <const real*>cnp.PyArray_DATA(x)
        all.part[p].head = min(n, (NORM_BLOCK - before) % NORM_BLOCK)
        all.part[p].blocks = (n - all.part[p].head) // NORM_BLOCK
        all.part[p].tail = (n - all.part[p].head) % NORM_BLOCK
        all.part[p].first_group = groups
        all.part[p].sums = sums
        sums += all.part[p].blocks
        groups += (all.part[p].blocks + ROWS - 1) // ROWS
        before = (before + n) % NORM_BLOCK
    with nogil:
        parallel_for(_block_sums, &all, groups, 2, 0, n_threads)
        result = sum_of_blocks(&all)
    PyMem_Free(all.part)
    return result


def total(tuple xs, int n_threads) -> tuple:  # IN
    """(top, sq) of float64 arrays, (1, sum of squares) of float32 ones.

    A NaN or an infinity among the elements makes one of the two not finite, and nothing else does:
    a NaN stays in sq; an infinity stays in top, or as NaN in sq; no square of a binary32 number
    overflows.
    """
    cdef double top = 0.0, sq = 1.0
    cdef cnp.ndarray x
    cdef const real* g
    cdef Py_ssize_t n
    if IS_F32:
        return 1.0, blockwise_sum(xs, n_threads)
    for x in xs:
        g = <const real*>cnp.PyArray_DATA(x)
        n = cnp.PyArray_SIZE(x)
        with nogil:
            scaled_sum(g, n, &top, &sq)
    return top, sq
