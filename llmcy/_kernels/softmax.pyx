"""Softmax and log-softmax of rows, and of the lower triangle of square matrices.

With M, e and tail as in softmax_rows.pxd, for a row of n values:

    softmax               p[j] = zero(e[j] / (1 + tail))
    softmax, backward     W = fold_j (d_p[j] * p[j]);  d_x[j] = zero(p[j] * (d_p[j] - W))
    log-softmax           y[j] = zero((x[j] - M) - log1p(tail))
    log-softmax, backward S = fold_j d_y[j];           d_x[j] = zero(d_y[j] - exp(y[j]) * S)

(numerics contract, sections 6 and 8, number 14; log-softmax is not part of the decoder).  In a
causal softmax row i of a (T, T) matrix has i + 1 entries and +0 after them.  For float32, 1 + tail,
W, S and log1p(tail) are formed in binary64 and rounded once (contract for float32, rule 2).

A thread owns whole rows.  zero(x) is written 0 + x, which is the same.
"""

cimport numpy as cnp
from libc.string cimport memset

from llmcy._kernels.cr_math cimport cr_exp_block, cr_log1p
from llmcy._kernels.order cimport ROWS, dot_rows, dot_triangle, row_grain, sum_rows
from llmcy._kernels.pool cimport parallel_for
from llmcy._kernels.softmax_rows cimport exponential_rows, exponential_triangle
from llmcy._kernels.types cimport real

cnp.import_array()

cdef struct Job:
    const real* x       # logits; probabilities or their logarithms in the backward functions
    const real* d       # gradient that arrives, backward only
    real* out
    Py_ssize_t n        # row width


cdef inline void softmax_row(real* e, double tail, Py_ssize_t n) noexcept nogil:
    """Exponentials to probabilities, in place."""
    cdef real total = <real>(1.0 + tail)
    cdef Py_ssize_t j
    for j in range(n):
        e[j] = e[j] / total


cdef inline void softmax_row_backward(
    const real* p, const real* d, double sum, Py_ssize_t n, real* d_x
) noexcept nogil:
    cdef real W = <real>sum
    cdef Py_ssize_t j
    for j in range(n):
        d_x[j] = <real>0 + p[j] * (d[j] - W)


cdef void _softmax(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef Py_ssize_t n = job.n, row, rows, r
    cdef real tops[ROWS]
    cdef double tails[ROWS]
    cdef real* p
    for row from lo <= row < hi by ROWS:
        rows = min(hi - row, ROWS)
        p = job.out + row * n
        exponential_rows(job.x + row * n, rows, n, p, tops, tails)
        for r in range(rows):
            softmax_row(p + r * n, tails[r], n)


cdef void _softmax_backward(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef Py_ssize_t n = job.n, row, rows, r, at
    cdef double sums[ROWS]
    for row from lo <= row < hi by ROWS:
        rows = min(hi - row, ROWS)
        dot_rows(job.d + row * n, job.x + row * n, rows, n, sums)
        for r in range(rows):
            at = (row + r) * n
            softmax_row_backward(job.x + at, job.d + at, sums[r], n, job.out + at)


# Rows side by side are of one matrix: each has one entry more than the one before.

cdef void _causal(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef Py_ssize_t T = job.n, row = lo, rows, r, n
    cdef real tops[ROWS]
    cdef double tails[ROWS]
    cdef real* p
    while row < hi:
        n = row % T + 1
        rows = min(min(hi - row, T + 1 - n), <Py_ssize_t>ROWS)
        p = job.out + row * T
        exponential_triangle(job.x + row * T, rows, T, n, p, tops, tails)
        for r in range(rows):
            softmax_row(p + r * T, tails[r], n + r)
            memset(p + r * T + n + r, 0, (T - n - r) * sizeof(real))
        row += rows


cdef void _causal_backward(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef Py_ssize_t T = job.n, row = lo, rows, r, n, at
    cdef double sums[ROWS]
    while row < hi:
        n = row % T + 1
        rows = min(min(hi - row, T + 1 - n), <Py_ssize_t>ROWS)
        dot_triangle(job.d + row * T, job.x + row * T, rows, T, n, sums)
        for r in range(rows):
            at = (row + r) * T
            softmax_row_backward(job.x + at, job.d + at, sums[r], n + r, job.out + at)
            memset(job.out + at + n + r, 0, (T - n - r) * sizeof(real))
        row += rows


cdef void _log_softmax(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef Py_ssize_t n = job.n
    cdef real tops[ROWS]
    cdef double tails[ROWS]
    cdef real log_tail
    cdef Py_ssize_t row, r, rows, j
    cdef const real* x
    cdef real* out
    for row from lo <= row < hi by ROWS:
        rows = min(hi - row, ROWS)
        x = job.x + row * n
        out = job.out + row * n
        exponential_rows(x, rows, n, out, tops, tails)      # out serves as scratch
        for r in range(rows):
            log_tail = <real>cr_log1p(tails[r])
            for j in range(r * n, r * n + n):
                out[j] = <real>0 + ((x[j] - tops[r]) - log_tail)


cdef void _log_softmax_backward(
    void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch
) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef Py_ssize_t n = job.n
    cdef double sums[ROWS]
    cdef real S
    cdef Py_ssize_t row, r, rows, j
    cdef const real* d
    cdef real* out
    for row from lo <= row < hi by ROWS:
        rows = min(hi - row, ROWS)
        d = job.d + row * n
        out = job.out + row * n
        sum_rows(d, rows, n, sums)
        cr_exp_block(job.x + row * n, out, rows * n)
        for r in range(rows):
            S = <real>sums[r]
            for j in range(r * n, r * n + n):
                out[j] = <real>0 + (d[j] - out[j] * S)


cdef inline Py_ssize_t _fill(Job* job, cnp.ndarray x, cnp.ndarray d, cnp.ndarray out):
    """Set the job; the number of rows."""
    job.x = <const real*>cnp.PyArray_DATA(x)
    job.d = <const real*>cnp.PyArray_DATA(d)
    job.out = <real*>cnp.PyArray_DATA(out)
    job.n = cnp.PyArray_DIM(x, cnp.PyArray_NDIM(x) - 1)
    return cnp.PyArray_SIZE(x) // job.n if job.n > 0 else 0


def softmax(cnp.ndarray x, cnp.ndarray out, bint causal, int n_threads):  # IN, OUT
    cdef Job job
    cdef Py_ssize_t rows = _fill(&job, x, x, out)
    with nogil:
        parallel_for(
            _causal if causal else _softmax, &job, rows, row_grain(8 * job.n), 0, n_threads
        )


def softmax_backward(
    cnp.ndarray p, cnp.ndarray d_p, cnp.ndarray d_x, bint causal, int n_threads     # IN, IN, OUT
):
    cdef Job job
    cdef Py_ssize_t rows = _fill(&job, p, d_p, d_x)
    with nogil:
        parallel_for(
            _causal_backward if causal else _softmax_backward,
            &job, rows, row_grain(job.n), 0, n_threads,
        )


def log_softmax(cnp.ndarray x, cnp.ndarray out, int n_threads):  # IN, OUT
    cdef Job job
    cdef Py_ssize_t rows = _fill(&job, x, x, out)
    with nogil:
        parallel_for(_log_softmax, &job, rows, row_grain(8 * job.n), 0, n_threads)


def log_softmax_backward(
    cnp.ndarray log_p, cnp.ndarray d_log_p, cnp.ndarray d_x, int n_threads     # IN, IN, OUT
):
    cdef Job job
    cdef Py_ssize_t rows = _fill(&job, log_p, d_log_p, d_x)
    with nogil:
        parallel_for(_log_softmax_backward, &job, rows, row_grain(8 * job.n), 0, n_threads)
