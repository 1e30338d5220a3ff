"""RMSNorm of rows of width D, forward and backward.

    forward    ms = (fold_d x[d] * x[d]) / D;  st = ms + eps
               inv = exp(log(st) * -0.5)       float64 (numerics contract, section 6)
               inv = 1 / sqrt(st)              float32, in binary64 (contract for float32, rule 3)
               out[d] = (x[d] * inv) * g[d]
    backward   dn[d] = 0 + up[d] * g[d];  dinv = fold_d dn[d] * x[d]
               dsq = ((((dinv * inv) * -0.5) / st) / D)
               d_x[d] = ((d_x[d] + dn[d] * inv) + dsq * x[d]) + dsq * x[d]
               d_g[d] = fold over all tokens, from what d_g[d] holds, of up[d] * (x[d] * inv)

(section 8; the buffers that receive dlg and dsq start at +0 there, hence a few sums with +0 below).
Saved for the backward pass: inv in the type of x, st in binary64.  For float32 the row sums and the
scalars made of them (st, dinv, dlg, dsq) stay in binary64 until they meet elements: inv and dsq are
rounded once.

Rows of d_x belong to a thread each; columns of d_g do, because a gain's gradient is one chain over
all tokens.
"""

cimport numpy as cnp

from llmcy._kernels.inverse_root cimport inverse_root
from llmcy._kernels.order cimport GRAIN, ROWS, dot_rows, row_grain
from llmcy._kernels.pool cimport parallel_for
from llmcy._kernels.types cimport real

cnp.import_array()

cdef enum:
    COLUMNS = 64

cdef struct Job:
    const real* x
    const real* gain
    const real* d_out
    real* out           # d_x in the backward pass
    real* inv
    double* st
    real* d_gain
    Py_ssize_t n        # rows
    Py_ssize_t D
    double eps


cdef void _forward(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef Py_ssize_t D = job.D
    cdef const real* gain = job.gain
    cdef const real* x
    cdef real* out
    cdef double sums[ROWS]
    cdef double st
    cdef real inv
    cdef Py_ssize_t row, r, rows, d
    for row from lo <= row < hi by ROWS:
        rows = min(hi - row, ROWS)
        x = job.x + row * D
        dot_rows(x, x, rows, D, sums)
        for r in range(rows):
            st = sums[r] / <double>D + job.eps
            inv = inverse_root(st)
            job.st[row + r] = st
            job.inv[row + r] = inv
            x = job.x + (row + r) * D
            out = job.out + (row + r) * D
            for d in range(D):
                out[d] = (x[d] * inv) * gain[d]


cdef void _backward_x(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef Py_ssize_t D = job.D
    cdef const real* gain = job.gain
    cdef const real* x
    cdef const real* up
    cdef real* d_x
    cdef double sums[ROWS]
    cdef double scalar
    cdef real inv, dsq
    cdef real* dn = <real*>scratch
    cdef Py_ssize_t row, r, rows, d
    for row from lo <= row < hi by ROWS:
        rows = min(hi - row, ROWS)
        up = job.d_out + row * D
        for r in range(rows):
            for d in range(D):
                dn[r * D + d] = <real>0 + up[r * D + d] * gain[d]
        dot_rows(dn, job.x + row * D, rows, D, sums)
        for r in range(rows):
            inv = job.inv[row + r]
            scalar = 0.0 + (0.0 + sums[r] * <double>inv) * -0.5
            dsq = <real>((0.0 + scalar / job.st[row + r]) / <double>D)
            x = job.x + (row + r) * D
            d_x = job.out + (row + r) * D
            for d in range(D):
                d_x[d] = ((d_x[d] + dn[r * D + d] * inv) + dsq * x[d]) + dsq * x[d]


cdef void _backward_gain(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef Py_ssize_t D = job.D, n = job.n
    cdef const real* x
    cdef const real* up
    cdef const real* inv
    cdef real acc[COLUMNS]
    cdef Py_ssize_t start, width, row, d
    # COLUMNS chains at a time stay in registers over all rows
    for start from lo <= start < hi by COLUMNS:
        width = min(hi - start, COLUMNS)
        x = job.x + start
        up = job.d_out + start
        inv = job.inv
        for d in range(width):
            acc[d] = job.d_gain[start + d]
        if width == COLUMNS:
            for row in range(n):
                for d in range(COLUMNS):
                    acc[d] = acc[d] + up[d] * (x[d] * inv[row])
                x += D
                up += D
        else:
            for row in range(n):
                for d in range(width):
                    acc[d] = acc[d] + up[d] * (x[d] * inv[row])
                x += D
                up += D
        for d in range(width):
            job.d_gain[start + d] = acc[d]


def rms_norm(
    cnp.ndarray x, cnp.ndarray gain, double eps,                        # IN
    cnp.ndarray out, cnp.ndarray inv_rms, cnp.ndarray mean_square_eps,  # OUT
    int n_threads,
):
    cdef Job job
    job.x = <const real*>cnp.PyArray_DATA(x)
    job.gain = <const real*>cnp.PyArray_DATA(gain)
    job.out = <real*>cnp.PyArray_DATA(out)
    job.inv = <real*>cnp.PyArray_DATA(inv_rms)
    job.st = <double*>cnp.PyArray_DATA(mean_square_eps)
    job.n = cnp.PyArray_SIZE(inv_rms)
    job.D = cnp.PyArray_SIZE(gain)
    job.eps = eps
    with nogil:
        parallel_for(_forward, &job, job.n, row_grain(job.D), 0, n_threads)


def rms_norm_backward(
    cnp.ndarray d_out, cnp.ndarray x, cnp.ndarray gain,         # IN
    cnp.ndarray inv_rms, cnp.ndarray mean_square_eps,           # IN
    cnp.ndarray d_x, cnp.ndarray d_gain,                        # IN and OUT
    int n_threads,
):
    cdef Job job
    cdef int status
    job.d_out = <const real*>cnp.PyArray_DATA(d_out)
    job.x = <const real*>cnp.PyArray_DATA(x)
    job.gain = <const real*>cnp.PyArray_DATA(gain)
    job.inv = <real*>cnp.PyArray_DATA(inv_rms)
    job.st = <double*>cnp.PyArray_DATA(mean_square_eps)
    job.out = <real*>cnp.PyArray_DATA(d_x)
    job.d_gain = <real*>cnp.PyArray_DATA(d_gain)
    job.n = cnp.PyArray_SIZE(inv_rms)
    job.D = cnp.PyArray_SIZE(gain)
    with nogil:
        status = parallel_for(
            _backward_x, &job, job.n, row_grain(job.D), ROWS * job.D * sizeof(real), n_threads
        )
        if status == 0:
            parallel_for(
                _backward_gain, &job, job.D, GRAIN // (job.n + 1) + 16, 0, n_threads
            )
    if status != 0:
        raise MemoryError("scratch memory of rms_norm_backward")
