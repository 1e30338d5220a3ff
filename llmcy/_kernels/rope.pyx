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

cdef enum:
    PAIRS = 64              # rotated at a time

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


# One loop for each of the two features.  Side by side they look like a complex product, which GCC
# (12 and others) turns into fused vfmaddsub instructions whatever -ffp-contract says.
cdef inline void rotate_even(
    real* out, const real* x, const real* cos, const real* sin, real sign, Py_ssize_t n
) noexcept nogil:
    cdef Py_ssize_t j
    for j in range(n):
        out[j] = <real>0 + (x[2 * j] * cos[j] - x[2 * j + 1] * (sign * sin[j]))


cdef inline void rotate_odd(
    real* out, const real* x, const real* cos, const real* sin, real sign, Py_ssize_t n
) noexcept nogil:
    cdef Py_ssize_t j
    for j in range(n):
        out[j] = <real>0 + (x[2 * j] * (sign * sin[j]) + x[2 * j + 1] * cos[j])


cdef void _rotate(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef const real* cos
    cdef const real* sin
    cdef const real* x
    cdef real* out
    cdef real even[PAIRS]
    cdef real odd[PAIRS]
    cdef real sign = job.sign
    cdef Py_ssize_t token, head, j, at, start, n, half = job.half
    for token in range(lo, hi):
        at = (job.position + token % job.T) * half
        cos = job.cos + at
        sin = job.sin + at
        x = job.x + token * job.H * half * 2
        out = job.out + token * job.H * half * 2
        for head in range(job.H):
            for start from 0 <= start < half by PAIRS:
                n = min(half - start, PAIRS)
                rotate_even(even, x + 2 * start, cos + start, sin + start, sign, n)
                rotate_odd(odd, x + 2 * start, cos + start, sin + start, sign, n)
                for j in range(n):
                    out[2 * (start + j)] = even[j]
                    out[2 * (start + j) + 1] = odd[j]
            x += 2 * half
            out += 2 * half


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
        parallel_for(_rotate, &job, tokens, row_grain(job.H * job.half * 2), 0, n_threads)
