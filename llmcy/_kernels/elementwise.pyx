"""Elementwise sums and products, and the search for the first value that is not finite.

``add``                out[i] = a[i] + b[i]
``accumulate``         into[i] = into[i] + x[i]   (a contribution arriving at an adjoint buffer)
``multiply``           out[i] = a[i] * b[i]
``multiply_backward``  d_a[i] = 0 + d[i] * b[i],  d_b[i] = 0 + d[i] * a[i]
``scale``              out[i] = x[i] * s
``scale_backward``     d_x[i] = 0 + d[i] * s
``clear``              x[i] = 0
``copy``               into[i] = x[i]

Every operation is rounded once (numerics contract, section 1), so any order over elements gives
the same bits.  The sums with +0 stand for buffers that start at +0 and receive a contribution
(section 8): they turn -0 into +0 and change nothing else.
"""

cimport numpy as cnp
from libc.string cimport memcpy, memset

from llmcy._kernels.order cimport GRAIN
from llmcy._kernels.pool cimport parallel_for
from llmcy._kernels.types cimport is_finite_real, real

cnp.import_array()

cdef extern from "llmcy_search.h" nogil:
    bint any_non_finite "llmcy_any_non_finite"(const real* x, Py_ssize_t n)

cdef struct Job:
    const real* a
    const real* b
    real* out
    double s            # rounded within the chunk
    const real* d       # of multiply_backward
    real* d_b


cdef void _add(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef const real* a = job.a
    cdef const real* b = job.b
    cdef real* out = job.out
    cdef Py_ssize_t i
    for i in range(lo, hi):
        out[i] = a[i] + b[i]


cdef void _multiply(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef const real* a = job.a
    cdef const real* b = job.b
    cdef real* out = job.out
    cdef Py_ssize_t i
    for i in range(lo, hi):
        out[i] = a[i] * b[i]


cdef void _scale(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef const real* a = job.a
    cdef real s = <real>job.s
    cdef real* out = job.out
    cdef Py_ssize_t i
    for i in range(lo, hi):
        out[i] = a[i] * s


cdef void _scale_backward(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef const real* d = job.a
    cdef real s = <real>job.s
    cdef real* out = job.out
    cdef Py_ssize_t i
    for i in range(lo, hi):
        out[i] = <real>0 + d[i] * s


cdef void _multiply_backward(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef const real* a = job.a
    cdef const real* b = job.b
    cdef const real* d = job.d
    cdef real* d_a = job.out
    cdef real* d_b = job.d_b
    cdef Py_ssize_t i
    for i in range(lo, hi):
        d_a[i] = <real>0 + d[i] * b[i]
        d_b[i] = <real>0 + d[i] * a[i]


cdef inline Job _job(cnp.ndarray a, cnp.ndarray b, cnp.ndarray out, double s):
    cdef Job job
    job.a = <const real*>cnp.PyArray_DATA(a)
    job.b = <const real*>cnp.PyArray_DATA(b)
    job.out = <real*>cnp.PyArray_DATA(out)
    job.s = s
    job.d = NULL
    job.d_b = NULL
    return job


def add(cnp.ndarray a, cnp.ndarray b, cnp.ndarray out, int n_threads):  # IN, IN, OUT
    cdef Job job = _job(a, b, out, 0)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(out)
    with nogil:
        parallel_for(_add, &job, n, GRAIN, 0, n_threads)


def accumulate(cnp.ndarray into, cnp.ndarray x, int n_threads):  # IN and OUT, IN
    cdef Job job = _job(into, x, into, 0)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(into)
    with nogil:
        parallel_for(_add, &job, n, GRAIN, 0, n_threads)


def multiply(cnp.ndarray a, cnp.ndarray b, cnp.ndarray out, int n_threads):  # IN, IN, OUT
    cdef Job job = _job(a, b, out, 0)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(out)
    with nogil:
        parallel_for(_multiply, &job, n, GRAIN, 0, n_threads)


def scale(cnp.ndarray x, double s, cnp.ndarray out, int n_threads):  # IN, IN, OUT
    cdef Job job = _job(x, x, out, s)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(out)
    with nogil:
        parallel_for(_scale, &job, n, GRAIN, 0, n_threads)


def multiply_backward(
    cnp.ndarray d, cnp.ndarray a, cnp.ndarray b,    # IN
    cnp.ndarray d_a, cnp.ndarray d_b,               # OUT
    int n_threads,
):
    cdef Job job = _job(a, b, d_a, 0)
    job.d = <const real*>cnp.PyArray_DATA(d)
    job.d_b = <real*>cnp.PyArray_DATA(d_b)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(d)
    with nogil:
        parallel_for(_multiply_backward, &job, n, GRAIN, 0, n_threads)


def scale_backward(cnp.ndarray d, double s, cnp.ndarray d_x, int n_threads):  # IN, IN, OUT
    cdef Job job = _job(d, d, d_x, s)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(d_x)
    with nogil:
        parallel_for(_scale_backward, &job, n, GRAIN, 0, n_threads)


cdef void _clear(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    memset(job.out + lo, 0, (hi - lo) * sizeof(real))


cdef void _copy(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    memcpy(job.out + lo, job.a + lo, (hi - lo) * sizeof(real))


def clear(cnp.ndarray x, int n_threads):  # OUT
    cdef Job job = _job(x, x, x, 0)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(x)
    with nogil:
        parallel_for(_clear, &job, n, GRAIN, 0, n_threads)


def copy(cnp.ndarray into, cnp.ndarray x, int n_threads):  # OUT, IN
    cdef Job job = _job(x, x, into, 0)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(into)
    with nogil:
        parallel_for(_copy, &job, n, GRAIN, 0, n_threads)


def copy_all(tuple into, tuple xs, int n_threads):  # OUT, IN
    """``copy`` for each pair."""
    cdef cnp.ndarray target, source
    for target, source in zip(into, xs):
        copy(target, source, n_threads)


cdef struct Search:
    const real* values
    int bad             # set, never cleared, by any thread that meets one


cdef void _search(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Search* search = <Search*>ctx
    if any_non_finite(search.values + lo, hi - lo):
        search.bad = 1


def first_non_finite(cnp.ndarray x, int n_threads) -> int:  # IN
    """Flat index of the first NaN or infinity, or -1."""
    cdef Search search
    cdef Py_ssize_t n = cnp.PyArray_SIZE(x)
    cdef Py_ssize_t i, found = -1
    search.values = <const real*>cnp.PyArray_DATA(x)
    search.bad = 0
    with nogil:
        parallel_for(_search, &search, n, 8 * GRAIN, 0, n_threads)
        if search.bad:
            for i in range(n):
                if not is_finite_real(search.values[i]):
                    found = i
                    break
    return found


def first_with_non_finite(tuple xs) -> int:  # IN
    """Index of the first of several small arrays that holds a NaN or an infinity, or -1."""
    cdef Py_ssize_t k
    cdef cnp.ndarray x
    for k in range(len(xs)):
        x = xs[k]
        if any_non_finite(<const real*>cnp.PyArray_DATA(x), cnp.PyArray_SIZE(x)):
            return k
    return -1
