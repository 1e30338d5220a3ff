"""The size of all gradients together, array by array (numerics contract, section 9).

float64: a running pair (top, sq) with norm = top * sqrt(sq), from (0, 1).  For a = |g|:

    a = 0       nothing
    top < a     r = top / a;  sq = 1 + (sq * r) * r;  top = a
    else        r = a / top;  sq = sq + r * r

float32 (contract for float32, rule 8): the concatenation of all arrays is cut into blocks of 4096
elements; a block is a binary64 chain of exact squares, and blocks are added in order.

float64 carries its state from one array to the next; in float32 only blocks that span several
arrays are copied.
"""

cimport numpy as cnp
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.string cimport memcpy

from llmcy._kernels.memory cimport new_array
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
    FEWEST_RUNS = 3         # for which running side by side pays


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


# Whole blocks of the concatenation, and how many elements of one more there are.
cdef struct Blocks:
    Py_ssize_t n
    const real** start      # of each block: in an array, or in the copy of one that spans several
    double* sums
    const real* rest
    Py_ssize_t n_rest
    double total            # OUT


cdef inline double chain(const real* g, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    cdef double sum = 0.0
    for i in range(n):
        sum = sum + <double>g[i] * <double>g[i]
    return sum


cdef void _block_sums(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    """Groups lo .. hi-1 of RUNS blocks, whose chains are independent and run side by side."""
    cdef Blocks* blocks = <Blocks*>ctx
    cdef Py_ssize_t group, i, first, last
    for group in range(lo, hi):
        first, last = group * RUNS, min((group + 1) * RUNS, blocks.n)
        if last - first >= FEWEST_RUNS:
            sum_squares(blocks.start + first, NORM_BLOCK, blocks.sums + first)
        else:
            for i in range(first, last):
                blocks.sums[i] = chain(blocks.start[i], NORM_BLOCK)


cdef void _sum_of_blocks(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    """What cannot be shared out; the pool runs it for the state of the processor."""
    cdef Blocks* blocks = <Blocks*>ctx
    cdef Py_ssize_t b
    blocks.total = 0.0
    for b in range(blocks.n):
        blocks.total = blocks.total + blocks.sums[b]
    if blocks.n_rest > 0:
        blocks.total = blocks.total + chain(blocks.rest, blocks.n_rest)


cdef void cut_into_blocks(tuple xs, Blocks* blocks, real* copies):
    """Blocks that lie in one array are used where they lie, the others put together in `copies`."""
    cdef Py_ssize_t n, at, filled = 0
    cdef const real* g
    blocks.n = 0
    for x in xs:
        g = <const real*>cnp.PyArray_DATA(<cnp.ndarray>x)
        n = cnp.PyArray_SIZE(<cnp.ndarray>x)
        at = 0
        if filled > 0:
            at = min(n, NORM_BLOCK - filled)
            memcpy(copies + filled, g, at * sizeof(real))
            filled += at
            if filled == NORM_BLOCK:
                blocks.start[blocks.n] = copies
                blocks.n += 1
                copies += NORM_BLOCK
                filled = 0
        while n - at >= NORM_BLOCK:
            blocks.start[blocks.n] = g + at
            blocks.n += 1
            at += NORM_BLOCK
        if at < n:
            memcpy(copies, g + at, (n - at) * sizeof(real))
            filled = n - at
    blocks.rest = copies
    blocks.n_rest = filled


cdef double blockwise_sum(tuple xs, int n_threads):
    cdef Blocks blocks
    cdef Py_ssize_t i, most, n = 0
    cdef cnp.npy_intp room
    cdef cnp.ndarray copies
    for x in xs:
        n += cnp.PyArray_SIZE(<cnp.ndarray>x)
    most = n // NORM_BLOCK + RUNS
    # an array begins at most one block that ends in another
    room = NORM_BLOCK * min(<Py_ssize_t>len(xs), n // NORM_BLOCK + 1)
    copies = new_array(1, &room, cnp.NPY_FLOAT32, sizeof(real))
    blocks.sums = <double*>PyMem_Malloc(most * (sizeof(double) + sizeof(const real*)))
    if blocks.sums == NULL:
        raise MemoryError("no memory for the sums of blocks of gradients")
    blocks.start = <const real**>(blocks.sums + most)
    cut_into_blocks(xs, &blocks, <real*>cnp.PyArray_DATA(copies))
    for i in range(blocks.n, (blocks.n + RUNS - 1) // RUNS * RUNS):  # to fill up the last group
        blocks.start[i] = blocks.start[blocks.n - 1]
    with nogil:
        parallel_for(
            _block_sums, &blocks, (blocks.n + RUNS - 1) // RUNS, 1, 0, n_threads
        )
        parallel_for(_sum_of_blocks, &blocks, 1, 1, 0, 1)
    PyMem_Free(blocks.sums)
    return blocks.total


# float64: one chain, which cannot be shared out either
cdef struct Scaled:
    const real* g
    Py_ssize_t n
    double top, sq          # IN and OUT


cdef void _scaled_sum(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Scaled* job = <Scaled*>ctx
    scaled_sum(job.g, job.n, &job.top, &job.sq)


def total(tuple xs, int n_threads) -> tuple:  # IN
    """(top, sq) of float64 arrays, (1, sum of squares) of float32 ones.

    A NaN or an infinity among the elements makes one of the two not finite, and nothing else does:
    a NaN stays in sq; an infinity stays in top, or as NaN in sq; no square of a binary32 number
    overflows.
    """
    cdef Scaled job
    cdef cnp.ndarray x
    if IS_F32:
        return 1.0, blockwise_sum(xs, n_threads)
    job.top = 0.0
    job.sq = 1.0
    for x in xs:
        job.g = <const real*>cnp.PyArray_DATA(x)
        job.n = cnp.PyArray_SIZE(x)
        with nogil:
            parallel_for(_scaled_sum, &job, 1, 1, 0, 1)
    return job.top, job.sq
