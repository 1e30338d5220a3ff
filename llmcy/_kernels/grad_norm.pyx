"""The size of all gradients together, array by array (numerics contract, section 9).

float64: a running pair (top, sq) with norm = top * sqrt(sq), from (0, 1).  For a = |g|:

    a = 0       nothing
    top < a     r = top / a;  sq = 1 + (sq * r) * r;  top = a
    else        r = a / top;  sq = sq + r * r

float32 (contract for float32, rule 8): the concatenation of all arrays is cut into blocks of 4096
elements; a block is a binary64 chain of exact squares, and blocks are added in order.

float64 carries its state from one array to the next, and adds side by side while the sum's exponent
stays (llmcy_chain.h).  In float32 only blocks that span several arrays are copied.  Blocks that lie
in one array may have been summed before, when that array was searched for values that are not finite.
"""

cimport numpy as cnp
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.string cimport memcpy

from llmcy._kernels.memory cimport new_array
from llmcy._kernels.pool cimport parallel_for
from llmcy._kernels.types cimport IS_F32, fabs, is_finite, is_finite_real, real

cnp.import_array()

cdef extern from "llmcy_search.h" nogil:
    bint any_non_finite "llmcy_any_non_finite"(const real* x, Py_ssize_t n)

cdef extern from "llmcy_chain.h" nogil:
    bint add_scaled_squares "llmcy_add_scaled_squares"(
        const double* g, Py_ssize_t n, double top, double* sum)

cdef extern from "llmcy_squares.h" nogil:
    enum:
        RUNS "LLMCY_RUNS"
    void sum_squares "llmcy_sum_squares"(const real* const* x, Py_ssize_t n, double* sums)

cdef enum:
    SIDE_BY_SIDE = 512      # elements that are divided and added at once, where that is one chain
    RATIOS = 64             # elements without a new maximum that are divided at once
    NORM_BLOCK = 4096
    FEWEST_RUNS = 3         # for which running side by side pays


cdef void scaled_sum(const real* g, Py_ssize_t n, double* top_out, double* sq_out) noexcept nogil:
    """The pair (top, sq) after n more elements."""
    cdef Py_ssize_t start = 0, stop, i
    cdef double a, r, top = top_out[0], sq = sq_out[0]
    cdef double square[RATIOS]
    cdef int grows
    while start < n:
        if not IS_F32 and start % SIDE_BY_SIDE == 0 and start + SIDE_BY_SIDE <= n and top > 0.0:
            if add_scaled_squares(<const double*>g + start, SIDE_BY_SIDE, top, &sq):
                start += SIDE_BY_SIDE
                continue
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
                square[i - start] = r * r
            for i in range(stop - start):
                sq = sq + square[i]
        start = stop
    top_out[0] = top
    sq_out[0] = sq


# Blocks to be summed, each in one piece.
cdef struct Blocks:
    Py_ssize_t n
    const real** start      # in an array, or in the copy of one that spans several
    double** sum            # OUT


cdef inline double chain(const real* g, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    cdef double sum = 0.0
    for i in range(n):
        sum = sum + <double>g[i] * <double>g[i]
    return sum


cdef void _block_sums(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    """Groups lo .. hi-1 of RUNS blocks, whose chains are independent and run side by side."""
    cdef Blocks* blocks = <Blocks*>ctx
    cdef Py_ssize_t group, i, first, n
    cdef const real* run[RUNS]
    cdef double sums[RUNS]
    for group in range(lo, hi):
        first = group * RUNS
        n = min(blocks.n - first, <Py_ssize_t>RUNS)
        if n >= FEWEST_RUNS:
            for i in range(RUNS):   # the last one fills up the last group
                run[i] = blocks.start[first + min(i, n - 1)]
            sum_squares(run, NORM_BLOCK, sums)
            for i in range(n):
                blocks.sum[first + i][0] = sums[i]
        else:
            for i in range(first, first + n):
                blocks.sum[i][0] = chain(blocks.start[i], NORM_BLOCK)


cdef int new_blocks(Blocks* blocks, Py_ssize_t most) except -1:
    blocks.n = 0
    blocks.start = <const real**>PyMem_Malloc(most * (sizeof(const real*) + sizeof(double*)))
    if blocks.start == NULL:
        raise MemoryError("no memory for the sums of blocks of gradients")
    blocks.sum = <double**>(blocks.start + most)
    return 0


cdef inline void add_block(Blocks* blocks, const real* start, double* sum) noexcept nogil:
    blocks.start[blocks.n] = start
    blocks.sum[blocks.n] = sum
    blocks.n += 1


cdef void sum_blocks(Blocks* blocks, int n_threads) noexcept nogil:
    parallel_for(_block_sums, blocks, (blocks.n + RUNS - 1) // RUNS, 1, 0, n_threads)


# The concatenation: the sums of its blocks in order, and what is left.
cdef struct Whole:
    Py_ssize_t n
    double* sums
    const real* rest
    Py_ssize_t n_rest
    double total            # OUT


cdef void _sum_of_blocks(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    """What cannot be shared out; the pool runs it for the state of the processor."""
    cdef Whole* whole = <Whole*>ctx
    cdef Py_ssize_t b
    whole.total = 0.0
    for b in range(whole.n):
        whole.total = whole.total + whole.sums[b]
    if whole.n_rest > 0:
        whole.total = whole.total + chain(whole.rest, whole.n_rest)


cdef void cut_into_blocks(
    tuple xs, tuple known, Whole* whole, Blocks* blocks, real* copies
):
    """Blocks that lie in one array are used where they lie, the others put together in `copies`.

    `known` is empty, or has the sums of the blocks that lie in each array.
    """
    cdef Py_ssize_t n, at, count, i, b, filled = 0
    cdef const real* g
    whole.n = 0
    for i in range(len(xs)):
        g = <const real*>cnp.PyArray_DATA(<cnp.ndarray>xs[i])
        n = cnp.PyArray_SIZE(<cnp.ndarray>xs[i])
        at = 0
        if filled > 0:
            at = min(n, NORM_BLOCK - filled)
            memcpy(copies + filled, g, at * sizeof(real))
            filled += at
            if filled == NORM_BLOCK:
                add_block(blocks, copies, whole.sums + whole.n)
                whole.n += 1
                copies += NORM_BLOCK
                filled = 0
        count = (n - at) // NORM_BLOCK
        if len(known) > 0:
            memcpy(
                whole.sums + whole.n, cnp.PyArray_DATA(<cnp.ndarray>known[i]),
                count * sizeof(double),
            )
        else:
            for b in range(count):
                add_block(blocks, g + at + b * NORM_BLOCK, whole.sums + whole.n + b)
        whole.n += count
        at += count * NORM_BLOCK
        if at < n:
            memcpy(copies, g + at, (n - at) * sizeof(real))
            filled = n - at
    whole.rest = copies
    whole.n_rest = filled


cdef double blockwise_sum(tuple xs, tuple known, int n_threads):
    cdef Blocks blocks
    cdef Whole whole
    cdef Py_ssize_t n = 0
    cdef cnp.npy_intp room
    cdef cnp.ndarray copies
    for x in xs:
        n += cnp.PyArray_SIZE(<cnp.ndarray>x)
    # an array begins at most one block that ends in another
    room = NORM_BLOCK * min(<Py_ssize_t>len(xs), n // NORM_BLOCK + 1)
    copies = new_array(1, &room, cnp.NPY_FLOAT32, sizeof(real))
    new_blocks(&blocks, n // NORM_BLOCK + 1)
    whole.sums = <double*>PyMem_Malloc((n // NORM_BLOCK + 1) * sizeof(double))
    if whole.sums == NULL:
        PyMem_Free(blocks.start)
        raise MemoryError("no memory for the sums of blocks of gradients")
    cut_into_blocks(xs, known, &whole, &blocks, <real*>cnp.PyArray_DATA(copies))
    with nogil:
        sum_blocks(&blocks, n_threads)
        parallel_for(_sum_of_blocks, &whole, 1, 1, 0, 1)
    PyMem_Free(whole.sums)
    PyMem_Free(blocks.start)
    return whole.total


def whole_blocks(Py_ssize_t start, Py_ssize_t n) -> tuple:
    """(offset of the first block in an array of n elements from element `start` of the
    concatenation, number of blocks that lie in it)."""
    cdef Py_ssize_t first = min(n, (NORM_BLOCK - start % NORM_BLOCK) % NORM_BLOCK)
    return first, (n - first) // NORM_BLOCK


def search_and_sum(
    cnp.ndarray x,              # IN, float32
    Py_ssize_t first,           # offset of its first whole block
    cnp.ndarray sums,           # OUT, (number of whole blocks,) float64
    int n_threads,
) -> int:
    """Flat index of the first NaN or infinity, or -1; then `sums` are those of the blocks.

    A sum of squares of binary32 numbers is finite exactly when all of them are.
    """
    cdef Blocks blocks
    cdef Py_ssize_t i, count = cnp.PyArray_SIZE(sums), n = cnp.PyArray_SIZE(x), found = -1
    cdef Py_ssize_t end = first + count * NORM_BLOCK
    cdef const real* g = <const real*>cnp.PyArray_DATA(x)
    cdef double* sum = <double*>cnp.PyArray_DATA(sums)
    cdef bint bad
    new_blocks(&blocks, count)
    with nogil:
        for i in range(count):
            add_block(&blocks, g + first + i * NORM_BLOCK, sum + i)
        sum_blocks(&blocks, n_threads)
        bad = any_non_finite(g, first) or any_non_finite(g + end, n - end)
        for i in range(count):
            bad |= not is_finite(sum[i])
        if bad:
            for i in range(n):
                if not is_finite_real(g[i]):
                    found = i
                    break
    PyMem_Free(blocks.start)
    return found


# float64: one chain, which cannot be shared out either
cdef struct Scaled:
    const real* g
    Py_ssize_t n
    double top, sq          # IN and OUT


cdef void _scaled_sum(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Scaled* job = <Scaled*>ctx
    scaled_sum(job.g, job.n, &job.top, &job.sq)


def total(tuple xs, tuple known, int n_threads) -> tuple:  # IN, IN
    """(top, sq) of float64 arrays, (1, sum of squares) of float32 ones.

    `known`: what `search_and_sum` found of each array of float32, or nothing.

    A NaN or an infinity among the elements makes one of the two not finite, and nothing else does:
    a NaN stays in sq; an infinity stays in top, or as NaN in sq; no square of a binary32 number
    overflows.
    """
    cdef Scaled job
    cdef cnp.ndarray x
    if IS_F32:
        return 1.0, blockwise_sum(xs, known, n_threads)
    job.top = 0.0
    job.sq = 1.0
    for x in xs:
        job.g = <const real*>cnp.PyArray_DATA(x)
        job.n = cnp.PyArray_SIZE(x)
        with nogil:
            parallel_for(_scaled_sum, &job, 1, 1, 0, 1)
    return job.top, job.sq
