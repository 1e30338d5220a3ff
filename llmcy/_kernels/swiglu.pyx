"""SiLU and the gated product SwiGLU, forward and backward.

    sigmoid     sg = 1 / (1 + exp(-x)) for x >= 0;  e / (1 + e) with e = exp(x) for x < 0
    silu        s = x * sg
    backward    d_x = 0 + d * (sg * (1 + x * (1 - sg)))
    swiglu      out = (g * sg(g)) * u
    backward    d_up = 0 + d * s;  d_gate = 0 + (0 + d * u) * (sg * (1 + g * (1 - sg)))

(numerics contract, sections 6 and 8).  Both branches of the sigmoid need exp(-|x|) alone.  Every
element stands for itself; blocks of elements only let the exponentials be computed side by side.
"""

cimport numpy as cnp

from llmcy._kernels.order cimport GRAIN
from llmcy._kernels.pool cimport parallel_for
from llmcy._kernels.sigmoid cimport sigmoids
from llmcy._kernels.types cimport real

cnp.import_array()

cdef enum:
    BLOCK = 256

cdef struct Job:
    const real* d
    const real* gate    # x of silu
    const real* up
    real* out           # d_gate in the backward pass
    real* d_up
    real* sigmoid       # kept by the forward pass and read by the backward pass, or NULL


cdef void _silu(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef real sg[BLOCK]
    cdef const real* x
    cdef real* out
    cdef Py_ssize_t start, n, i
    for start from lo <= start < hi by BLOCK:
        n = min(hi - start, BLOCK)
        x = job.gate + start
        out = job.out + start
        sigmoids(x, sg, n)
        for i in range(n):
            out[i] = x[i] * sg[i]


cdef void _silu_backward(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef real sg[BLOCK]
    cdef const real* x
    cdef const real* d
    cdef real* out
    cdef Py_ssize_t start, n, i
    for start from lo <= start < hi by BLOCK:
        n = min(hi - start, BLOCK)
        x = job.gate + start
        d = job.d + start
        out = job.out + start
        sigmoids(x, sg, n)
        for i in range(n):
            out[i] = <real>0 + d[i] * (sg[i] * (<real>1 + x[i] * (<real>1 - sg[i])))


cdef void _swiglu(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef real block[BLOCK]
    cdef real* sg
    cdef const real* gate
    cdef const real* up
    cdef real* out
    cdef Py_ssize_t start, n, i
    for start from lo <= start < hi by BLOCK:
        n = min(hi - start, BLOCK)
        gate = job.gate + start
        up = job.up + start
        out = job.out + start
        sg = job.sigmoid + start if job.sigmoid != NULL else block
        sigmoids(gate, sg, n)
        for i in range(n):
            out[i] = (gate[i] * sg[i]) * up[i]


cdef void _swiglu_backward(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef real block[BLOCK]
    cdef const real* sg
    cdef const real* gate
    cdef const real* up
    cdef const real* d
    cdef real* d_gate
    cdef real* d_up
    cdef real g, u, s, dx
    cdef Py_ssize_t start, n, i
    for start from lo <= start < hi by BLOCK:
        n = min(hi - start, BLOCK)
        gate = job.gate + start
        up = job.up + start
        d = job.d + start
        d_gate = job.out + start
        d_up = job.d_up + start
        if job.sigmoid != NULL:
            sg = job.sigmoid + start
        else:
            sigmoids(gate, block, n)
            sg = block
        for i in range(n):  # all is read before anything is written: results may replace arguments
            g, u, s, dx = gate[i], up[i], sg[i], d[i]
            d_up[i] = <real>0 + dx * (g * s)
            d_gate[i] = <real>0 + (<real>0 + dx * u) * (s * (<real>1 + g * (<real>1 - s)))


def silu(cnp.ndarray x, cnp.ndarray out, int n_threads):  # IN, OUT
    cdef Job job
    cdef Py_ssize_t n = cnp.PyArray_SIZE(x)
    job.gate = <const real*>cnp.PyArray_DATA(x)
    job.out = <real*>cnp.PyArray_DATA(out)
    with nogil:
        parallel_for(_silu, &job, n, GRAIN // 8, 0, n_threads)


def silu_backward(cnp.ndarray d_out, cnp.ndarray x, cnp.ndarray d_x, int n_threads):  # IN, IN, OUT
    cdef Job job
    cdef Py_ssize_t n = cnp.PyArray_SIZE(x)
    job.d = <const real*>cnp.PyArray_DATA(d_out)
    job.gate = <const real*>cnp.PyArray_DATA(x)
    job.out = <real*>cnp.PyArray_DATA(d_x)
    with nogil:
        parallel_for(_silu_backward, &job, n, GRAIN // 8, 0, n_threads)


def swiglu(
    cnp.ndarray gate, cnp.ndarray up,           # IN
    cnp.ndarray out, object sigmoid,            # OUT; sigmoid may be None
    int n_threads,
):
    cdef Job job
    cdef Py_ssize_t n = cnp.PyArray_SIZE(gate)
    job.gate = <const real*>cnp.PyArray_DATA(gate)
    job.up = <const real*>cnp.PyArray_DATA(up)
    job.out = <real*>cnp.PyArray_DATA(out)
    job.sigmoid = <real*>cnp.PyArray_DATA(<cnp.ndarray>sigmoid) if sigmoid is not None else NULL
    with nogil:
        parallel_for(_swiglu, &job, n, GRAIN // 8, 0, n_threads)


def swiglu_backward(
    cnp.ndarray d_out, cnp.ndarray gate, cnp.ndarray up, object sigmoid,    # IN; sigmoid or None
    cnp.ndarray d_gate, cnp.ndarray d_up,                                   # OUT
    int n_threads,
):
    cdef Job job
    cdef Py_ssize_t n = cnp.PyArray_SIZE(gate)
    job.d = <const real*>cnp.PyArray_DATA(d_out)
    job.gate = <const real*>cnp.PyArray_DATA(gate)
    job.up = <const real*>cnp.PyArray_DATA(up)
    job.out = <real*>cnp.PyArray_DATA(d_gate)
    job.d_up = <real*>cnp.PyArray_DATA(d_up)
    job.sigmoid = <real*>cnp.PyArray_DATA(<cnp.ndarray>sigmoid) if sigmoid is not None else NULL
    with nogil:
        parallel_for(_swiglu_backward, &job, n, GRAIN // 8, 0, n_threads)
