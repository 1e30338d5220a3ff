"""Causal attention over heads side by side, forward and backward; q and k are already rotated.

For each row b, head h and query i, with j running over the keys 0 .. i and w = D / H:

    score[i, j] = (fold over e of q[i, e] * k[j, e]) * (1 / sqrt(w))
    p[i, :]     = softmax(score[i, 0 .. i])
    out[i, e]   = fold over j of p[i, j] * v[j, e]

and backward, probabilities computed again instead of kept:

    d_v[j, e]   = fold over i >= j of p[i, j] * d_out[i, e]
    d_p[i, j]   = fold over e of d_out[i, e] * v[j, e]
    W[i]        = fold over j of d_p[i, j] * p[i, j]
    d_r[i, j]   = zero(p[i, j] * (d_p[i, j] - W[i])) * (1 / sqrt(w))
    d_q[i, e]   = fold over j of d_r[i, j] * k[j, e]
    d_k[j, e]   = fold over i >= j of q[i, e] * d_r[i, j]

(numerics contract, sections 6 and 8, rules 5-7 and 12-16).  In binary32 the products are fused into
their chains, and the softmax tail and W are binary64 chains rounded once (part two, rules 1, 2).
"""

cimport numpy as cnp

from llmcy._kernels.cr_math cimport cr_exp_block
from llmcy._kernels.pool cimport parallel_for
from llmcy._kernels.types cimport IS_F32, mul_add, real, sqrt, sqrtf, zero

cnp.import_array()


cdef struct Job:
    const real* d_out
    const real* q
    const real* k
    const real* v
    real* out
    real* d_q
    real* d_k
    real* d_v
    Py_ssize_t T, H, Dh
    real scale


cdef inline real _score_scale(Py_ssize_t Dh) noexcept nogil:
    """The rounded reciprocal of a rounded root."""
    if IS_F32:
        return <real>(<float>1.0 / sqrtf(<float>Dh))
    return <real>(1.0 / sqrt(<double>Dh))


cdef inline void _softmax(real* x, Py_ssize_t n) noexcept nogil:
    """Replace n >= 1 scores by probabilities."""
    cdef Py_ssize_t j, first = 0
    cdef real top = x[0]
    cdef double tail = 0
    cdef real den
    for j in range(1, n):
        if x[j] > top:
            top = x[j]
            first = j
    for j in range(n):
        x[j] = x[j] - top
    cr_exp_block(x, x, n)
    for j in range(n):
        if j != first:
            tail = tail + x[j]
    den = <real>(1.0 + tail)
    for j in range(n):
        x[j] = zero(x[j] / den)


cdef inline void _probabilities(Job* job, const real* q, const real* k, Py_ssize_t i, real* p) noexcept nogil:
    cdef Py_ssize_t j, e, D = job.H * job.Dh
    cdef real acc
    for j in range(i + 1):
        acc = 0
        for e in range(job.Dh):
            acc = mul_add(q[i * D + e], k[j * D + e], acc)
        p[j] = acc * job.scale
    _softmax(p, i + 1)


cdef void _forward_heads(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef Py_ssize_t T = job.T, Dh = job.Dh, D = job.H * job.Dh
    cdef Py_ssize_t head, start, i, j, e
    cdef real* p = <real*>scratch
    cdef real* out
    for head in range(lo, hi):
        start = head // job.H * T * D + head % job.H * Dh
        for i in range(T):
            _probabilities(job, job.q + start, job.k + start, i, p)
            out = job.out + start + i * D
            for e in range(Dh):
                out[e] = 0
            for j in range(i + 1):
                for e in range(Dh):
                    out[e] = mul_add(p[j], job.v[start + j * D + e], out[e])


cdef void _backward_heads(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef Py_ssize_t T = job.T, Dh = job.Dh, D = job.H * job.Dh
    cdef Py_ssize_t head, start, i, j, e
    cdef real* p = <real*>scratch
    cdef real* d_p = p + T
    cdef real acc, pullback, d_r
    cdef double total
    for head in range(lo, hi):
        start = head // job.H * T * D + head % job.H * Dh
        for i in range(T):
            for e in range(Dh):
                job.d_q[start + i * D + e] = 0
                job.d_k[start + i * D + e] = 0
                job.d_v[start + i * D + e] = 0
        for i in range(T):
            _probabilities(job, job.q + start, job.k + start, i, p)
            total = 0
            for j in range(i + 1):
                acc = 0
                for e in range(Dh):
                    acc = mul_add(job.d_out[start + i * D + e], job.v[start + j * D + e], acc)
                d_p[j] = acc
                total = total + <double>acc * <double>p[j]
                for e in range(Dh):
                    job.d_v[start + j * D + e] = mul_add(
                        p[j], job.d_out[start + i * D + e], job.d_v[start + j * D + e]
                    )
            pullback = <real>total
            for j in range(i + 1):
                d_r = zero(p[j] * (d_p[j] - pullback)) * job.scale
                for e in range(Dh):
                    job.d_q[start + i * D + e] = mul_add(
                        d_r, job.k[start + j * D + e], job.d_q[start + i * D + e]
                    )
                    job.d_k[start + j * D + e] = mul_add(
                        job.q[start + i * D + e], d_r, job.d_k[start + j * D + e]
                    )


def attention(
    cnp.ndarray q, cnp.ndarray k, cnp.ndarray v, cnp.ndarray out,  # IN, IN, IN, OUT
    Py_ssize_t B, Py_ssize_t T, Py_ssize_t H, Py_ssize_t Dh, int n_threads,
):
    """All arrays (B, T, H * Dh)."""
    cdef Job job
    cdef int status
    job.q = <const real*>cnp.PyArray_DATA(q)
    job.k = <const real*>cnp.PyArray_DATA(k)
    job.v = <const real*>cnp.PyArray_DATA(v)
    job.out = <real*>cnp.PyArray_DATA(out)
    job.T, job.H, job.Dh = T, H, Dh
    job.scale = _score_scale(Dh)
    with nogil:
        status = parallel_for(_forward_heads, &job, B * H, 1, T * sizeof(real), n_threads)
    if status:
        raise MemoryError("attention: no memory for the threads' scratch buffers")


def attention_backward(
    cnp.ndarray d_out, cnp.ndarray q, cnp.ndarray k, cnp.ndarray v,  # IN
    cnp.ndarray d_q, cnp.ndarray d_k, cnp.ndarray d_v,  # OUT
    Py_ssize_t B, Py_ssize_t T, Py_ssize_t H, Py_ssize_t Dh, int n_threads,
):
    """All arrays (B, T, H * Dh)."""
    cdef Job job
    cdef int status
    job.d_out = <const real*>cnp.PyArray_DATA(d_out)
    job.q = <const real*>cnp.PyArray_DATA(q)
    job.k = <const real*>cnp.PyArray_DATA(k)
    job.v = <const real*>cnp.PyArray_DATA(v)
    job.d_q = <real*>cnp.PyArray_DATA(d_q)
    job.d_k = <real*>cnp.PyArray_DATA(d_k)
    job.d_v = <real*>cnp.PyArray_DATA(d_v)
    job.T, job.H, job.Dh = T, H, Dh
    job.scale = _score_scale(Dh)
    with nogil:
        status = parallel_for(_backward_heads, &job, B * H, 1, 2 * T * sizeof(real), n_threads)
    if status:
        raise MemoryError("attention_backward: no memory for the threads' scratch buffers")
