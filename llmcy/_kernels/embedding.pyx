"""Rows of a table by token id, and the sum of gradients into those rows.

    forward     out[n, :] = weight[id[n], :]
    backward    for n = 0, 1, ...: d_weight[id[n], :] = d_weight[id[n], :] + d_out[n, :]

(numerics contract, section 8, "lookup part").  In the backward pass a thread owns columns and walks
over all tokens, so that each row of the table receives its contributions in the order of tokens.
"""

cimport numpy as cnp
from libc.string cimport memcpy

from llmcy._kernels.order cimport GRAIN, row_grain
from llmcy._kernels.pool cimport parallel_for
from llmcy._kernels.types cimport i64, real

cnp.import_array()

cdef struct Job:
    const real* x       # weight, or d_out
    const i64* ids
    real* out           # out, or d_weight
    Py_ssize_t n
    Py_ssize_t D


cdef void _gather(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef Py_ssize_t n
    for n in range(lo, hi):
        memcpy(job.out + n * job.D, job.x + job.ids[n] * job.D, job.D * sizeof(real))


cdef void _scatter(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef const real* d_out = job.x
    cdef real* row
    cdef Py_ssize_t n, d
    for n in range(job.n):
        row = job.out + job.ids[n] * job.D
        for d in range(lo, hi):
            row[d] = row[d] + d_out[d]
        d_out += job.D


def embedding(cnp.ndarray weight, cnp.ndarray ids, cnp.ndarray out, int n_threads):  # IN, IN, OUT
    cdef Job job
    job.x = <const real*>cnp.PyArray_DATA(weight)
    job.ids = <const i64*>cnp.PyArray_DATA(ids)
    job.out = <real*>cnp.PyArray_DATA(out)
    job.n = cnp.PyArray_SIZE(ids)
    job.D = cnp.PyArray_DIM(weight, 1)
    with nogil:
        parallel_for(_gather, &job, job.n, row_grain(job.D), 0, n_threads)


def embedding_backward(
    cnp.ndarray d_out, cnp.ndarray ids, cnp.ndarray d_weight, int n_threads   # IN, IN, IN and OUT
):
    cdef Job job
    job.x = <const real*>cnp.PyArray_DATA(d_out)
    job.ids = <const i64*>cnp.PyArray_DATA(ids)
    job.out = <real*>cnp.PyArray_DATA(d_weight)
    job.n = cnp.PyArray_SIZE(ids)
    job.D = cnp.PyArray_DIM(d_weight, 1)
    with nogil:
        parallel_for(_scatter, &job, job.D, GRAIN // (job.n + 1) + 16, 0, n_threads)


def first_out_of_range(cnp.ndarray ids, i64 vocab_size) -> int:  # IN
    """Flat index of the first id below 0 or not below vocab_size, or -1."""
    cdef const i64* values = <const i64*>cnp.PyArray_DATA(ids)
    cdef Py_ssize_t n = cnp.PyArray_SIZE(ids)
    cdef Py_ssize_t start, stop, i, found = -1
    cdef int bad
    with nogil:
        for start from 0 <= start < n by 1024:
            stop = min(start + 1024, n)
            bad = 0
            for i in range(start, stop):
                bad |= (values[i] < 0) | (values[i] >= vocab_size)
            if bad:
                for i in range(start, stop):
                    if values[i] < 0 or values[i] >= vocab_size:
                        found = i
                        break
                break
    return found
