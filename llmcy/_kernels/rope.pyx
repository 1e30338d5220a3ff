"""Rotary position embedding: the table of cosines and sines, the rotation and its inverse.

    frequency   f[j] = pow(base, (-2 * j) / w), j = 0 ... w/2 - 1, for heads of width w
    table       cos[p, j] = zero(cos(p * f[j])),  sin[p, j] = zero(sin(p * f[j]))
    rotation    of features a = x[2j], b = x[2j + 1] of a token at position p:
                a' = zero(a * c - b * s),  b' = zero(a * s + b * c)
    inverse     the same with -s for s

(numerics contract, section 6).  Every operation is in the build's scalar type.  zero(x) is written
0 + x.  A thread owns whole positions of the table, whole tokens of the rotation.
"""

cimport numpy as cnp

from llmcy._kernels.cr_math cimport cr_cos_r, cr_pow_r, cr_sin_r
from llmcy._kernels.order cimport row_grain
from llmcy._kernels.pool cimport parallel_for
from llmcy._kernels.types cimport real

cnp.import_array()

cdef struct Table:
    real* cos
    real* sin
    const real* frequency
    Py_ssize_t half         # w / 2

cdef struct Job:
    const real* x
    real* out
    const real* cos
    const real* sin
    Py_ssize_t T
    Py_ssize_t H
    Py_ssize_t half
    Py_ssize_t position     # of the first token of each row
    real sign               # -1 for the inverse


cdef void _table(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Table* table = <Table*>ctx
    cdef Py_ssize_t p, j
    cdef real angle
    for p in range(lo, hi):
        for j in range(table.half):
            angle = <real>p * table.frequency[j]
            table.cos[p * table.half + j] = <real>0 + cr_cos_r(angle)
            table.sin[p * table.half + j] = <real>0 + cr_sin_r(angle)


cdef void _rotate(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    # Both features of a pair are written as the same sum, x[i] * c[i] + x[partner of i] * s[i], with
    # the sign in s, which changes no bit.  A subtraction beside an addition is a pattern that gcc 12
    # turns into fused instructions, -ffp-contract=off or not.
    cdef Job* job = <Job*>ctx
    cdef Py_ssize_t token, head, j, at, half = job.half, width = 2 * job.half
    cdef real* cos = <real*>scratch
    cdef real* sin = cos + width
    cdef const real* x
    cdef real* out
    cdef real a, b
    for token in range(lo, hi):
        at = (job.position + token % job.T) * half
        for j in range(half):
            cos[2 * j] = job.cos[at + j]
            cos[2 * j + 1] = job.cos[at + j]
            sin[2 * j] = -job.sign * job.sin[at + j]
            sin[2 * j + 1] = job.sign * job.sin[at + j]
        for head in range(job.H):
            x = job.x + (token * job.H + head) * width
            out = job.out + (token * job.H + head) * width
            for j in range(half):
                a = x[2 * j]
                b = x[2 * j + 1]
                out[2 * j] = <real>0 + (a * cos[2 * j] + b * sin[2 * j])
                out[2 * j + 1] = <real>0 + (b * cos[2 * j + 1] + a * sin[2 * j + 1])


def rope_table(
    double base, cnp.ndarray frequency, cnp.ndarray cos, cnp.ndarray sin, int n_threads     # OUT
):
    cdef Table table
    cdef real* f = <real*>cnp.PyArray_DATA(frequency)
    cdef Py_ssize_t j, positions = cnp.PyArray_DIM(cos, 0)
    cdef real width
    table.half = cnp.PyArray_SIZE(frequency)
    table.frequency = f
    table.cos = <real*>cnp.PyArray_DATA(cos)
    table.sin = <real*>cnp.PyArray_DATA(sin)
    width = <real>(2 * table.half)
    with nogil:
        for j in range(table.half):
            f[j] = cr_pow_r(<real>base, (<real>-2 * <real>j) / width)
        # a sine costs about as much as a hundred plain operations
        parallel_for(_table, &table, positions, row_grain(100 * table.half), 0, n_threads)


def rope(
    cnp.ndarray x, cnp.ndarray cos, cnp.ndarray sin,        # IN; x is (..., T, H, w)
    Py_ssize_t position, bint inverse,
    cnp.ndarray out,                                        # OUT, may be x
    int n_threads,
):
    cdef Job job
    cdef int ndim = cnp.PyArray_NDIM(x)
    cdef Py_ssize_t tokens
    cdef int status
    job.x = <const real*>cnp.PyArray_DATA(x)
    job.out = <real*>cnp.PyArray_DATA(out)
    job.cos = <const real*>cnp.PyArray_DATA(cos)
    job.sin = <const real*>cnp.PyArray_DATA(sin)
    job.T = cnp.PyArray_DIM(x, ndim - 3)
    job.H = cnp.PyArray_DIM(x, ndim - 2)
    job.half = cnp.PyArray_DIM(x, ndim - 1) // 2
    job.position = position
    job.sign = -1 if inverse else 1
    if cnp.PyArray_SIZE(x) == 0:
        return
    tokens = cnp.PyArray_SIZE(x) // (job.H * job.half * 2)
    with nogil:
        status = parallel_for(
            _rotate, &job, tokens, row_grain(job.H * job.half * 2),
            4 * job.half * sizeof(real), n_threads,
        )
    if status != 0:
        raise MemoryError("scratch memory of rope")
