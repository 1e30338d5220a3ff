"""exp, log, log1p, sin, cos and pow of whole arrays: out[i] = f(x[i]).

Each value is correctly rounded (numerics contract, section 13), so neither the order of the
elements nor the instruction set can reach it.  Nothing is saved for a backward pass.
"""

cimport numpy as cnp

from llmcy._kernels.cr_math cimport (
    cr_cos_r, cr_exp, cr_exp_block, cr_log1p_r, cr_log_r, cr_pow_r, cr_sin_r,
)
from llmcy._kernels.pool cimport parallel_for
from llmcy._kernels.types cimport real

cnp.import_array()

cdef enum:
    EXP_GRAIN = 4096        # elements below which a second thread costs more than it gains
    GRAIN = 512

cdef struct Job:
    const real* x
    const real* y
    real* out


cdef void _exp(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cr_exp_block(job.x + lo, job.out + lo, hi - lo)


cdef void _log(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef Py_ssize_t i
    for i in range(lo, hi):
        job.out[i] = cr_log_r(job.x[i])


cdef void _log1p(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef Py_ssize_t i
    for i in range(lo, hi):
        job.out[i] = cr_log1p_r(job.x[i])


cdef void _sin(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef Py_ssize_t i
    for i in range(lo, hi):
        job.out[i] = cr_sin_r(job.x[i])


cdef void _cos(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef Py_ssize_t i
    for i in range(lo, hi):
        job.out[i] = cr_cos_r(job.x[i])


cdef void _pow(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef Py_ssize_t i
    for i in range(lo, hi):
        job.out[i] = cr_pow_r(job.x[i], job.y[i])


cdef inline Job _job(cnp.ndarray x, cnp.ndarray y, cnp.ndarray out):
    cdef Job job
    job.x = <const real*>cnp.PyArray_DATA(x)
    job.y = <const real*>cnp.PyArray_DATA(y)
    job.out = <real*>cnp.PyArray_DATA(out)
    return job


def exp(cnp.ndarray x, cnp.ndarray out, int n_threads):  # IN, OUT
    cdef Job job = _job(x, x, out)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(out)
    with nogil:
        parallel_for(_exp, &job, n, EXP_GRAIN, 0, n_threads)


def exp_singly(cnp.ndarray x, cnp.ndarray out):  # IN, OUT
    """exp as other kernels ask for it: one binary64 number at a time."""
    cdef Job job = _job(x, x, out)
    cdef Py_ssize_t i
    for i in range(cnp.PyArray_SIZE(out)):
        job.out[i] = <real>cr_exp(<double>job.x[i])


def log(cnp.ndarray x, cnp.ndarray out, int n_threads):  # IN, OUT
    cdef Job job = _job(x, x, out)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(out)
    with nogil:
        parallel_for(_log, &job, n, GRAIN, 0, n_threads)


def log1p(cnp.ndarray x, cnp.ndarray out, int n_threads):  # IN, OUT
    cdef Job job = _job(x, x, out)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(out)
    with nogil:
        parallel_for(_log1p, &job, n, GRAIN, 0, n_threads)


def sin(cnp.ndarray x, cnp.ndarray out, int n_threads):  # IN, OUT
    cdef Job job = _job(x, x, out)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(out)
    with nogil:
        parallel_for(_sin, &job, n, GRAIN, 0, n_threads)


def cos(cnp.ndarray x, cnp.ndarray out, int n_threads):  # IN, OUT
    cdef Job job = _job(x, x, out)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(out)
    with nogil:
        parallel_for(_cos, &job, n, GRAIN, 0, n_threads)


def pow(cnp.ndarray x, cnp.ndarray y, cnp.ndarray out, int n_threads):  # IN, IN, OUT
    cdef Job job = _job(x, y, out)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(out)
    with nogil:
        parallel_for(_pow, &job, n, GRAIN, 0, n_threads)
