"""Mean negative log-likelihood of target classes, and its gradient at the logits.

With M, e and tail of a row of V logits as in softmax_rows.pxd, and its target c:

    row loss   (M - x[c]) + log1p(tail)
    mean       zero(fold over rows of the row losses / N)
    gradient   zero((p[v] - [v = c]) * r),  p[v] = zero(e[v] / (1 + tail)),  r = d_loss / N

(numerics contract, section 7).  When a row loss or the running sum overflows, the mean is the fold
of ((M - x[c]) / N) + (log1p(tail) / N), and where M - x[c] itself overflows, of
((M / N) - (x[c] / N)) + (log1p(tail) / N).  Everything about the loss is binary64 for both types,
the gradient is of the build's own (contract for float32, rule 6).

A thread owns whole rows; the fold over rows is one chain.
"""

cimport numpy as cnp

from llmcy._kernels.cr_math cimport cr_log1p
from llmcy._kernels.order cimport ROWS, row_grain
from llmcy._kernels.pool cimport parallel_for
from llmcy._kernels.softmax_rows cimport exponential_rows
from llmcy._kernels.types cimport i64, is_finite, real

cnp.import_array()

cdef struct Job:
    const real* logits
    const i64* targets
    real* p             # probabilities: kept (forward, may be NULL) or read (backward)
    double* losses
    double* log_tails
    double* tops
    real* d_logits
    Py_ssize_t V
    real r


cdef void _losses(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef Py_ssize_t V = job.V
    cdef real tops[ROWS]
    cdef double tails[ROWS]
    cdef real total
    cdef real* e = <real*>scratch
    cdef const real* x
    cdef Py_ssize_t row, r, rows, v
    for row from lo <= row < hi by ROWS:
        rows = min(hi - row, ROWS)
        x = job.logits + row * V
        if job.p != NULL:
            e = job.p + row * V
        exponential_rows(x, rows, V, e, tops, tails)
        for r in range(rows):
            job.tops[row + r] = <double>tops[r]
            job.log_tails[row + r] = cr_log1p(tails[r])
            job.losses[row + r] = (
                <double>tops[r] - <double>x[r * V + job.targets[row + r]]
            ) + job.log_tails[row + r]
            if job.p != NULL:
                total = <real>(1.0 + tails[r])
                for v in range(r * V, r * V + V):
                    e[v] = e[v] / total


cdef void _gradient(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef Py_ssize_t V = job.V
    cdef real r_scale = job.r
    cdef real tops[ROWS]
    cdef double tails[ROWS]
    cdef real total, at_target
    cdef real* out
    cdef const real* p
    cdef Py_ssize_t row, r, rows, v
    for row from lo <= row < hi by ROWS:
        rows = min(hi - row, ROWS)
        out = job.d_logits + row * V
        if job.p == NULL:
            exponential_rows(job.logits + row * V, rows, V, out, tops, tails)
        for r in range(rows):
            if job.p == NULL:
                total = <real>(1.0 + tails[r])
                at_target = out[job.targets[row + r]] / total
                for v in range(V):
                    out[v] = <real>0 + (out[v] / total) * r_scale
            else:
                p = job.p + (row + r) * V               # may be `out` itself
                at_target = p[job.targets[row + r]]
                for v in range(V):
                    out[v] = <real>0 + p[v] * r_scale
            out[job.targets[row + r]] = <real>0 + (at_target - <real>1) * r_scale
            out += V


cdef double _mean(
    const real* logits, const i64* targets, const double* losses, const double* log_tails,
    const double* tops, Py_ssize_t N, Py_ssize_t V,
) noexcept nogil:
    cdef double n = <double>N, total = 0.0, target, below
    cdef Py_ssize_t i
    cdef bint finite = True
    for i in range(N):
        total = total + losses[i]
        finite = finite and is_finite(losses[i]) and is_finite(total)
    if finite:
        return 0.0 + total / n
    total = 0.0
    for i in range(N):
        target = <double>logits[i * V + targets[i]]
        below = tops[i] - target
        below = below / n if is_finite(below) else (tops[i] / n) - (target / n)
        total = total + (below + log_tails[i] / n)
    return 0.0 + total


def cross_entropy(
    cnp.ndarray logits, cnp.ndarray targets,                            # IN
    cnp.ndarray losses, cnp.ndarray log_tails, cnp.ndarray tops,        # OUT, (N,) float64
    cnp.ndarray mean,                                                   # OUT, () float64
    object p,                                                           # OUT or None
    int n_threads,
):
    """The mean, and the row losses with their parts."""
    cdef Job job
    cdef Py_ssize_t N = cnp.PyArray_SIZE(targets)
    cdef double* out = <double*>cnp.PyArray_DATA(mean)
    cdef int status
    job.logits = <const real*>cnp.PyArray_DATA(logits)
    job.targets = <const i64*>cnp.PyArray_DATA(targets)
    job.losses = <double*>cnp.PyArray_DATA(losses)
    job.log_tails = <double*>cnp.PyArray_DATA(log_tails)
    job.tops = <double*>cnp.PyArray_DATA(tops)
    job.p = <real*>cnp.PyArray_DATA(<cnp.ndarray>p) if p is not None else NULL
    job.V = cnp.PyArray_DIM(logits, cnp.PyArray_NDIM(logits) - 1)
    with nogil:
        status = parallel_for(
            _losses, &job, N, row_grain(8 * job.V), ROWS * job.V * sizeof(real), n_threads
        )
        out[0] = _mean(
            job.logits, job.targets, job.losses, job.log_tails, job.tops, N, job.V
        )
    if status != 0:
        raise MemoryError("scratch memory of cross_entropy")


def cross_entropy_backward(
    cnp.ndarray logits, cnp.ndarray targets, double r, object p,        # IN; p may be None
    cnp.ndarray d_logits, int n_threads,                                # OUT
):
    cdef Job job
    cdef Py_ssize_t N = cnp.PyArray_SIZE(targets)
    job.logits = <const real*>cnp.PyArray_DATA(logits)
    job.targets = <const i64*>cnp.PyArray_DATA(targets)
    job.d_logits = <real*>cnp.PyArray_DATA(d_logits)
    job.p = <real*>cnp.PyArray_DATA(<cnp.ndarray>p) if p is not None else NULL
    job.V = cnp.PyArray_DIM(logits, cnp.PyArray_NDIM(logits) - 1)
    job.r = <real>r
    with nogil:
        parallel_for(_gradient, &job, N, row_grain(8 * job.V), 0, n_threads)
