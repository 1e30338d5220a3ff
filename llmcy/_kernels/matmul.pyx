"""Matrix products, and the weight gradient with its two-level sum.

``matmul``           out[p, i, j] = fold over k of a[p, i, k] * b[p, k, j]
``matmul_d_weight``  out[i, o]    = fold over b of ( fold over t of x[b, t, i] * d_y[b, t, o] )

Each output element is one chain from +0 in ascending order of the summed index (numerics contract,
section 5): binary64 rounds product and sum separately, binary32 fuses them (float32, rule 1).
The finished sums of the rows b are added one after the other, never fused.
"""

cimport numpy as cnp
from cpython.pycapsule cimport PyCapsule_New

from llmcy._kernels.few_rows cimport FEW_ROWS, few_rows_product
from llmcy._kernels.gemm cimport (
    BLOCK_K, MORE_ROWS, REPLACE, ROWS, Ending, gemm, gemm_scratch, suits_wide_tiles,
)
from llmcy._kernels.pool cimport parallel_for
from llmcy._kernels.strip cimport Ahead, wide_strips
from llmcy._kernels.tile cimport PANEL
from llmcy._kernels.types cimport TILE_ROWS, WIDE_ROWS, real

cnp.import_array()

cdef extern from *:
    """
    #ifdef LLMCY_ANY_ORDER /* a build that benchmarks alone use (setup.py) */
    #define LLMCY_IS_ANY_ORDER 1
    #else
    #define LLMCY_IS_ANY_ORDER 0
    #endif
    """
    enum:
        IS_ANY_ORDER "LLMCY_IS_ANY_ORDER"

cdef enum:
    WIDE = 64           # columns of the narrowest matrix for few_rows.pxd
    GRAIN_WORK = 65536  # multiply-adds below which waking a second thread costs more than it gains
    LONG_WORK = 1 << 29 # ... of a chunk that keeps others waiting for too long: 4 ms in binary32
    MOST_ROWS = 384     # of a gradient over long rows at once: bounds the scratch for unfinished chains


cdef inline Py_ssize_t whole_strips(Py_ssize_t n, Py_ssize_t strip) noexcept nogil:
    return (n + strip - 1) // strip


cdef inline Py_ssize_t grain(Py_ssize_t strips, Py_ssize_t work, int n_threads) noexcept nogil:
    """Strips of the smallest chunk, for `work` multiply-adds in all.

    Every chunk packs its operands for itself: a thread gets one, or two where one would be long.
    """
    cdef Py_ssize_t least = GRAIN_WORK * strips // (work + 1)
    if n_threads > 1 and work // n_threads < LONG_WORK:
        least = max(least, strips // n_threads)
    return least


cdef struct Product:
    const real* a
    const real* b
    real* out
    Py_ssize_t m, n, k
    Py_ssize_t a_batch, a_row, a_col      # steps between elements of a: batch, m and k index
    Py_ssize_t b_batch, b_row, b_col      # of b: batch, k and n index
    bint one_strip                        # a whole matrix is one strip of wide tiles
    bint split_rows                       # threads share out rows of C, or columns
    Py_ssize_t strip, strips              # width of the smallest share, and shares per matrix
    Ahead ahead


cdef void _product_part(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    """Strips lo .. hi-1 of C, counted through the batch; a strip is so many rows or columns."""
    cdef Product* job = <Product*>ctx
    cdef Py_ssize_t p = lo // job.strips, first, last, start, stop
    cdef Ahead ahead = job.ahead    # each thread has a cache of its own
    if WIDE_ROWS > 0 and job.one_strip and lo % job.strips == 0 and hi % job.strips == 0:
        wide_strips(
            hi // job.strips - p, job.m, job.k,
            job.a + p * job.a_batch, job.a_batch, job.a_row, job.a_col,
            job.b + p * job.b_batch, job.b_batch, job.b_row,
            job.out + p * job.m * job.n, job.m * job.n, job.n,
        )
        return
    for p in range(lo // job.strips, (hi - 1) // job.strips + 1):
        first = max(lo - p * job.strips, <Py_ssize_t>0)
        last = min(hi - p * job.strips, job.strips)
        start = first * job.strip
        if job.split_rows:
            stop = min(last * job.strip, job.m)
            gemm(
                stop - start, job.n, job.k,
                job.a + p * job.a_batch + start * job.a_row, job.a_row, job.a_col,
                job.b + p * job.b_batch, job.b_row, job.b_col,
                job.out + (p * job.m + start) * job.n, job.n, REPLACE, 0, scratch, &ahead,
            )
        else:
            stop = min(last * job.strip, job.n)
            gemm(
                job.m, stop - start, job.k,
                job.a + p * job.a_batch, job.a_row, job.a_col,
                job.b + p * job.b_batch + start * job.b_col, job.b_row, job.b_col,
                job.out + p * job.m * job.n + start, job.n, REPLACE, 0, scratch, &ahead,
            )


cdef struct WeightGradient:
    const real* x
    const real* d_y
    real* out
    Py_ssize_t B, T, n_in, n_out
    bint accumulate, split_rows


cdef void _weight_part(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    """Strips lo .. hi-1 of the gradient's rows or columns."""
    cdef WeightGradient* job = <WeightGradient*>ctx
    cdef Py_ssize_t T = job.T, n_in = job.n_in, n_out = job.n_out
    cdef Py_ssize_t first_row = 0, last_row = n_in, first = 0, last = n_out
    cdef Py_ssize_t i, o, b, height
    cdef real* out
    if job.split_rows:
        first_row, last_row = lo * TILE_ROWS, min(hi * TILE_ROWS, n_in)
    else:
        first, last = lo * PANEL, min(hi * PANEL, n_out)
    cdef Ending ending = MORE_ROWS if job.accumulate else ROWS
    if 0 < T <= BLOCK_K or job.B == 0:
        gemm(
            last_row - first_row, last - first, job.B * T, job.x + first_row, 1, n_in,
            job.d_y + first, n_out, 1, job.out + first_row * n_out + first, n_out, ending, T, scratch,
            NULL,
        )
        return
    for i from first_row <= i < last_row by MOST_ROWS:
        height = min(last_row - i, <Py_ssize_t>MOST_ROWS)
        out = job.out + i * n_out + first
        ending = MORE_ROWS if job.accumulate else ROWS
        if T == 0:  # empty sums, +0 each
            for b in range(height):
                for o in range(last - first):
                    out[b * n_out + o] = out[b * n_out + o] + 0 if job.accumulate else 0
        else:
            for b in range(job.B):
                gemm(
                    height, last - first, T, job.x + b * T * n_in + i, 1, n_in,
                    job.d_y + b * T * n_out + first, n_out, 1, out, n_out, ending, T, scratch,
                    NULL,
                )
                ending = MORE_ROWS


cdef int product_asking_ahead(
    const void* a, const void* b, void* out,  # IN, IN, OUT
    Py_ssize_t batch, Py_ssize_t m, Py_ssize_t n, Py_ssize_t k,
    bint transpose_a, bint transpose_b, bint shared_b, int n_threads,
    const char* ahead, Py_ssize_t ahead_bytes,
) noexcept nogil:
    """`matmul` below on plain memory; not 0 if there was none for the scratch buffers."""
    cdef Product job
    job.ahead.at, job.ahead.end = ahead, ahead + ahead_bytes
    job.a, job.b, job.out = <const real*>a, <const real*>b, <real*>out
    job.m, job.n, job.k = m, n, k
    job.a_batch, job.a_row, job.a_col = m * k, 1 if transpose_a else k, m if transpose_a else 1
    job.b_batch, job.b_row, job.b_col = (
        0 if shared_b else k * n, 1 if transpose_b else n, k if transpose_b else 1
    )
    if m == 0 or n == 0:
        return 0
    if 0 < batch * m <= FEW_ROWS and n >= WIDE and k > 0 and (shared_b or batch == 1) and not transpose_a:
        few_rows_product(job.a, job.b, job.out, batch * m, n, k, transpose_b, n_threads)
        return 0
    job.one_strip = n == 2 * PANEL and suits_wide_tiles(m, n, k, job.b_col)
    # the longer side is cut; of equal ones that of B, if it has to be transposed
    job.split_rows = m > n or (m == n and not (transpose_b and n % (n_threads * PANEL) == 0))
    job.strip = TILE_ROWS if job.split_rows else PANEL
    job.strips = whole_strips(m if job.split_rows else n, job.strip)
    return parallel_for(
        _product_part, &job, batch * job.strips,
        grain(batch * job.strips, batch * m * n * k, n_threads), gemm_scratch(m, n, k, REPLACE, k),
        n_threads,
    )


cdef int product(
    const void* a, const void* b, void* out,
    Py_ssize_t batch, Py_ssize_t m, Py_ssize_t n, Py_ssize_t k,
    bint transpose_a, bint transpose_b, bint shared_b, int n_threads,
) noexcept nogil:
    return product_asking_ahead(
        a, b, out, batch, m, n, k, transpose_a, transpose_b, shared_b, n_threads, NULL, 0
    )


entry = PyCapsule_New(<void*>product, "llmcy.product", NULL)  # for front.pyx


def matmul(
    cnp.ndarray a, cnp.ndarray b, cnp.ndarray out,  # IN, IN, OUT
    Py_ssize_t batch, Py_ssize_t m, Py_ssize_t n, Py_ssize_t k,
    bint transpose_a, bint transpose_b, bint shared_b, int n_threads,
    cnp.ndarray ahead=None,
):
    """out (batch, m, n) = a (batch, m, k) x b (batch, k, n).

    A transposed operand is stored (k, m), or (n, k); with shared_b one b serves all the batch.
    `ahead` is what a later product will read: it is asked for meanwhile.
    """
    cdef int status
    cdef const char* next_read = NULL
    cdef Py_ssize_t nbytes = 0
    if ahead is not None:
        next_read, nbytes = <const char*>cnp.PyArray_DATA(ahead), cnp.PyArray_NBYTES(ahead)
    with nogil:
        status = product_asking_ahead(
            cnp.PyArray_DATA(a), cnp.PyArray_DATA(b), cnp.PyArray_DATA(out),
            batch, m, n, k, transpose_a, transpose_b, shared_b, n_threads, next_read, nbytes,
        )
    if status:
        raise MemoryError("matmul: no memory for the threads' scratch buffers")


def matmul_d_weight(
    cnp.ndarray x, cnp.ndarray d_y, cnp.ndarray out,  # IN, IN, IN and OUT
    Py_ssize_t B, Py_ssize_t T, Py_ssize_t n_in, Py_ssize_t n_out, bint accumulate, int n_threads,
):
    """out (I, O) from x (B, T, I) and d_y (B, T, O); accumulate continues the fold over rows."""
    cdef WeightGradient job
    cdef Py_ssize_t strips
    cdef int status
    if IS_ANY_ORDER:  # one product over all tokens
        B, T = 1, B * T
    job.x = <const real*>cnp.PyArray_DATA(x)
    job.d_y = <const real*>cnp.PyArray_DATA(d_y)
    job.out = <real*>cnp.PyArray_DATA(out)
    job.B, job.T, job.n_in, job.n_out = B, T, n_in, n_out
    job.accumulate = accumulate
    if n_in == 0 or n_out == 0:
        return
    job.split_rows = n_in >= n_out
    if job.split_rows:
        strips = whole_strips(n_in, TILE_ROWS)
    else:
        strips = whole_strips(n_out, PANEL)
    with nogil:
        status = parallel_for(
            _weight_part, &job, strips, grain(strips, B * T * n_in * n_out, n_threads),
            gemm_scratch(
                n_in if T <= BLOCK_K else min(n_in, <Py_ssize_t>MOST_ROWS), n_out, B * T, ROWS, T
            ),
            n_threads,
        )
    if status:
        raise MemoryError("matmul_d_weight: no memory for the threads' scratch buffers")
