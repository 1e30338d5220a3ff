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

from llmcy._kernels.pool cimport parallel_for
from llmcy._kernels.types cimport IS_F32, fabs, real

cnp.import_array()

cdef extern from "llmcy_squares.h" nogil:
    enum:
        RUNS "LLMCY_RUNS"
    void sum_squares "llmcy_sum_squares"(const real* const* x, Py_ssize_t n, double* sums)

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

cdef struct Blocks:
    Py_ssize_t n
    const real** start      # of every whole block of every array
    double* sums


cdef void _block_sums(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    # blocks are independent: the chains of RUNS of them run side by side
    cdef Blocks* blocks = <Blocks*>ctx
    cdef Py_ssize_t i
    while hi - lo >= RUNS:
        sum_squares(blocks.start + lo, NORM_BLOCK, blocks.sums + lo)
        lo += RUNS
    for i in range(lo, hi):
        blocks.sums[i] = chain(0.0, blocks.start[i], NORM_BLOCK)


cdef inline double chain(double sum, const real* g, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(n):
        sum = sum + <double>g[i] * <double>g[i]
    return sum


# What cannot be shared out: the pool runs it as one chunk, for the state of the processor.
cdef struct Serial:
    const Part* parts
    Py_ssize_t n
    const double* sums
    double total            # OUT, float32
    double top, sq          # IN and OUT, float64


cdef void _serial(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Serial* job = <Serial*>ctx
    if IS_F32:
        job.total = sum_of_parts(job.parts, job.n, job.sums)
    else:
        scaled_sum(job.parts.g, job.n, &job.top, &job.sq)


cdef double sum_of_parts(const Part* parts, Py_ssize_t n, const double* sums) noexcept nogil:
    """The sums of all blocks in their order, of those that join arrays made on the way."""
    cdef Py_ssize_t p, b
    cdef double total = 0.0, block = 0.0
    for p in range(n):
        block = chain(block, parts[p].g, parts[p].head)
        if parts[p].blocks > 0 or parts[p].tail > 0:  # the head, if any, ended a block
            total = total + block
            block = 0.0
        for b in range(parts[p].blocks):
            total = total + sums[b]
        sums += parts[p].blocks
        block = chain(
            block, parts[p].g + parts[p].head + parts[p].blocks * NORM_BLOCK, parts[p].tail
        )
    return total + block


cdef double blockwise_sum(tuple xs, int n_threads):
    cdef Blocks blocks
    cdef Part* parts
    cdef Part* part
    cdef Py_ssize_t n, p, b, n_arrays = len(xs), before = 0, most = 0
    cdef Serial job
    cdef cnp.ndarray x
    for x in xs:
        most += cnp.PyArray_SIZE(x) // NORM_BLOCK
    parts = <Part*>PyMem_Malloc(
        n_arrays * sizeof(Part) + most * (sizeof(double) + sizeof(const real*))
    )
    if parts == NULL:
        raise MemoryError("no memory for the sums of blocks of gradients")
    blocks.n = 0
    blocks.sums = <double*>(parts + n_arrays)
    blocks.start = <const real**>(blocks.sums + most)
    for p in range(n_arrays):
        x = xs[p]
        n = cnp.PyArray_SIZE(x)
        part = &parts[p]
        part.g = <const real*>cnp.PyArray_DATA(x)
        part.head = min(n, (NORM_BLOCK - before) % NORM_BLOCK)
        part.blocks = (n - part.head) // NORM_BLOCK
        part.tail = (n - part.head) % NORM_BLOCK
        for b in range(part.blocks):
            blocks.start[blocks.n] = part.g + part.head + b * NORM_BLOCK
            blocks.n += 1
        before = (before + n) % NORM_BLOCK
    job.parts = parts
    job.n = n_arrays
    job.sums = blocks.sums
    with nogil:
        parallel_for(_block_sums, &blocks, blocks.n, RUNS, 0, n_threads)
        parallel_for(_serial, &job, 1, 1, 0, 1)
    PyMem_Free(parts)
    return job.total


def total(tuple xs, int n_threads) -> tuple:  # IN
    """(top, sq) of float64 arrays, (1, sum of squares) of float32 ones.

    A NaN or an infinity among the elements makes one of the two not finite, and nothing else does:
    a NaN stays in sq; an infinity stays in top, or as NaN in sq; no square of a binary32 number
    overflows.
    """
    cdef Serial job
    cdef Part part
    cdef cnp.ndarray x
    if IS_F32:
        return 1.0, blockwise_sum(xs, n_threads)
    job.top = 0.0
    job.sq = 1.0
    job.parts = &part
    for x in xs:
        part.g = <const real*>cnp.PyArray_DATA(x)
        job.n = cnp.PyArray_SIZE(x)
        with nogil:
            parallel_for(_serial, &job, 1, 1, 0, 1)
    return job.top, job.sq
