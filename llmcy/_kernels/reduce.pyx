"""Sums over a whole array or over its rows.

``sum_all``       fold_i x[i], row-major: one chain in binary64 (numerics contract, section 1;
                  contract for float32, rule 2)
``sum_rows_into`` into[d] = fold over rows n, from what into[d] holds, of x[n, d]: one flat chain
                  per column in the array's own type (section 5, the general broadcast rule)

A thread owns whole columns.
"""

cimport numpy as cnp

from llmcy._kernels.order cimport GRAIN
from llmcy._kernels.pool cimport parallel_for
from llmcy._kernels.types cimport real

cnp.import_array()

cdef struct Chain:
    const real* x
    Py_ssize_t n
    double total


cdef struct Job:
    const real* x
    real* into
    Py_ssize_t n
    Py_ssize_t D


cdef void _chain(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Chain* chain = <Chain*>ctx
    cdef Py_ssize_t i
    cdef double total = 0.0
    for i in range(chain.n):
        total = total + <double>chain.x[i]
    chain.total = total


def sum_all(cnp.ndarray x) -> float:  # IN
    cdef Chain chain
    chain.x = <const real*>cnp.PyArray_DATA(x)
    chain.n = cnp.PyArray_SIZE(x)
    with nogil:
        parallel_for(_chain, &chain, 1, 1, 0, 1)  # not to share: for the state of the processor
    return chain.total


cdef void _columns(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef const real* row = job.x
    cdef real* into = job.into
    cdef Py_ssize_t n, d
    for n in range(job.n):
        for d in range(lo, hi):
            into[d] = into[d] + row[d]
        row += job.D


def sum_rows_into(cnp.ndarray x, cnp.ndarray into, int n_threads):  # IN, IN and OUT
    cdef Job job
    job.x = <const real*>cnp.PyArray_DATA(x)
    job.into = <real*>cnp.PyArray_DATA(into)
    job.D = cnp.PyArray_SIZE(into)
    if job.D == 0:
        return
    job.n = cnp.PyArray_SIZE(x) // job.D
    with nogil:
        parallel_for(_columns, &job, job.D, GRAIN // (job.n + 1) + 16, 0, n_threads)
