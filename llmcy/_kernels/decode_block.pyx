"""One block of a decoder for one token each of one to four sequences, in a single call.

    h = norm(x, g1);  q, k, v = h Wq, h Wk, h Wv;  q and k rotated;  a = attention over the cache
    y = x + a Wo;  h = norm(y, g2);  x = y + (silu(h Wgate) * (h Wup)) Wdown

Every value is computed as by the kernel of its own name, from the same pieces and in the same order,
so the bits are theirs (numerics contract, section 6).  Between two products that stream matrices
through the caches there is little left of an interpreter in them; hence one call.
"""

cimport numpy as cnp

from llmcy._kernels.few_rows cimport few_rows_product
from llmcy._kernels.inverse_root cimport inverse_root
from llmcy._kernels.order cimport ROWS, dot_rows
from llmcy._kernels.pool cimport parallel_for
from llmcy._kernels.sigmoid cimport sigmoids
from llmcy._kernels.step_heads cimport Step, attend_heads
from llmcy._kernels.types cimport i64, real

cnp.import_array()

cdef enum:
    PIECE = 256

# Everything is (n, ...), rows one after the other.
cdef struct Block:
    Py_ssize_t n, D, Q, K, F, Dh    # Q = H * Dh query features, K = Hk * Dh
    const real* gain
    double eps
    const real* cos                 # (n, Dh): for feature i of a head, the factor of x[i]
    const real* sin                 # (n, Dh): the factor of the pair's other feature, with its sign
    real* x
    real* h
    real* q
    real* k
    real* v
    real* mixed
    real* o
    real* gate
    real* up
    int bad


cdef inline int _not_finite(const real* x, Py_ssize_t n) noexcept nogil:
    cdef int bad = 0
    cdef Py_ssize_t i
    for i in range(n):
        bad |= (x[i] - x[i]) != 0
    return bad


cdef void _normalise(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Block* b = <Block*>ctx
    cdef double sums[ROWS]
    cdef const real* x
    cdef real* h
    cdef real inv
    cdef Py_ssize_t r, d
    dot_rows(b.x, b.x, b.n, b.D, sums)
    for r in range(b.n):
        inv = inverse_root(sums[r] / <double>b.D + b.eps)
        x = b.x + r * b.D
        h = b.h + r * b.D
        for d in range(b.D):
            h[d] = (x[d] * inv) * b.gain[d]


cdef inline void _turn(real* x, const real* cos, const real* sin, Py_ssize_t heads, Py_ssize_t Dh) noexcept nogil:
    cdef Py_ssize_t head, j
    cdef real a, c
    for head in range(heads):
        for j in range(Dh // 2):
            a = x[2 * j]
            c = x[2 * j + 1]
            x[2 * j] = <real>0 + (a * cos[2 * j] + c * sin[2 * j])
            x[2 * j + 1] = <real>0 + (c * cos[2 * j + 1] + a * sin[2 * j + 1])
        x += Dh


cdef void _rotate(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Block* b = <Block*>ctx
    cdef Py_ssize_t r
    for r in range(b.n):
        _turn(b.q + r * b.Q, b.cos + r * b.Dh, b.sin + r * b.Dh, b.Q // b.Dh, b.Dh)
        _turn(b.k + r * b.K, b.cos + r * b.Dh, b.sin + r * b.Dh, b.K // b.Dh, b.Dh)
    b.bad |= _not_finite(b.q, b.n * b.Q) | _not_finite(b.k, b.n * b.K) | _not_finite(b.v, b.n * b.K)


cdef void _add(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Block* b = <Block*>ctx
    cdef Py_ssize_t i
    for i in range(b.n * b.D):
        b.x[i] = b.x[i] + b.o[i]
    b.bad |= _not_finite(b.x, b.n * b.D)


cdef void _swiglu(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Block* b = <Block*>ctx
    cdef real sg[PIECE]
    cdef Py_ssize_t start, count, i
    for start from 0 <= start < b.n * b.F by PIECE:
        count = min(b.n * b.F - start, <Py_ssize_t>PIECE)
        sigmoids(b.gate + start, sg, count)
        for i in range(count):
            b.gate[start + i] = (b.gate[start + i] * sg[i]) * b.up[start + i]


def decode_block(
    cnp.ndarray x,  # IN and OUT (n, D)
    tuple weights,  # IN g1, Wq, Wk, Wv, Wo, g2, Wgate, Wup, Wdown
    double eps_attention, double eps_ffn,
    cnp.ndarray cos, cnp.ndarray sin,  # IN (n, Dh)
    cnp.ndarray keys, cnp.ndarray values, cnp.ndarray rows, cnp.ndarray lengths,  # IN, the cache
    cnp.ndarray new_key, cnp.ndarray new_value,  # OUT (n, Hk * Dh)
    cnp.ndarray scratch,  # (n * (2 D + 2 H Dh + 2 F),)
    Py_ssize_t n, Py_ssize_t D, Py_ssize_t F, Py_ssize_t C, Py_ssize_t H, Py_ssize_t Hk,
    Py_ssize_t Dh, Py_ssize_t longest, int n_threads,
):
    """1 <= n <= 4.  Whether every value that later ones depend on is finite."""
    cdef Block b
    cdef Step step
    cdef const real* w[9]
    cdef int i, status = 0
    for i in range(9):
        w[i] = <const real*>cnp.PyArray_DATA(<cnp.ndarray>weights[i])
    b.n, b.D, b.Q, b.K, b.F, b.Dh = n, D, H * Dh, Hk * Dh, F, Dh
    b.cos = <const real*>cnp.PyArray_DATA(cos)
    b.sin = <const real*>cnp.PyArray_DATA(sin)
    b.x = <real*>cnp.PyArray_DATA(x)
    b.k = <real*>cnp.PyArray_DATA(new_key)
    b.v = <real*>cnp.PyArray_DATA(new_value)
    b.h = <real*>cnp.PyArray_DATA(scratch)
    b.o = b.h + n * D
    b.q = b.o + n * D
    b.mixed = b.q + n * b.Q
    b.gate = b.mixed + n * b.Q
    b.up = b.gate + n * F
    b.bad = 0
    step.q, step.new_key, step.new_value, step.out = b.q, b.k, b.v, b.mixed
    step.keys = <const real*>cnp.PyArray_DATA(keys)
    step.values = <const real*>cnp.PyArray_DATA(values)
    step.rows = <const i64*>cnp.PyArray_DATA(rows)
    step.lengths = <const i64*>cnp.PyArray_DATA(lengths)
    step.weights = NULL
    step.longest, step.C, step.H, step.Hk, step.Dh = longest, C, H, Hk, Dh
    with nogil:
        b.gain, b.eps = w[0], eps_attention
        parallel_for(_normalise, &b, 1, 1, 0, 1)
        few_rows_product(b.h, w[1], b.q, n, b.Q, D, False, n_threads)
        few_rows_product(b.h, w[2], b.k, n, b.K, D, False, n_threads)
        few_rows_product(b.h, w[3], b.v, n, b.K, D, False, n_threads)
        parallel_for(_rotate, &b, 1, 1, 0, 1)
        status = attend_heads(&step, n, n_threads)
        if status == 0:
            few_rows_product(b.mixed, w[4], b.o, n, D, b.Q, False, n_threads)
            parallel_for(_add, &b, 1, 1, 0, 1)
            b.gain, b.eps = w[5], eps_ffn
            parallel_for(_normalise, &b, 1, 1, 0, 1)
            few_rows_product(b.h, w[6], b.gate, n, F, D, False, n_threads)
            few_rows_product(b.h, w[7], b.up, n, F, D, False, n_threads)
            parallel_for(_swiglu, &b, 1, 1, 0, 1)
            few_rows_product(b.gate, w[8], b.o, n, D, F, False, n_threads)
            parallel_for(_add, &b, 1, 1, 0, 1)
    if status:
        raise MemoryError("decode_block: no memory for the threads' scratch buffers")
    return b.bad == 0
