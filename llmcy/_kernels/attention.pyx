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

(numerics contract, sections 6 and 8).  A key/value head may serve a group of neighbouring query
heads; its gradient is the sum of what each of them computes, in ascending order (part two,
section 6).  In binary32 the products are fused into their chains, and the softmax tail and W are
binary64 chains rounded once (float32, rules 1 and 2).
"""

cimport numpy as cnp

from llmcy._kernels.cr_math cimport cr_exp_block
from llmcy._kernels.gemm cimport pack_b, pack_b_panel, whole_panels
from llmcy._kernels.inverse_root cimport score_scale
from llmcy._kernels.pool cimport parallel_for
from llmcy._kernels.tile cimport HEAD_ROWS, PANEL, any_causal_tile, any_tile
from llmcy._kernels.types cimport TILE_ROWS, real, zero

cnp.import_array()

cdef enum:
    GRAIN_WORK = 32768  # products below which waking a second thread costs more than it gains


cdef struct Job:
    const real* d_out
    const real* q
    const real* k
    const real* v
    real* out
    real* d_q
    real* d_k
    real* d_v
    Py_ssize_t T, H, K, Dh  # K heads of keys and values


# A head is worked through in blocks of PANEL queries.  Scores, probabilities and their gradients of
# a block are kept with the queries along the lanes, x[j * PANEL + l] for key j and query first + l:
# every sum over keys is then a plain loop over j for all queries of the block at once.  A block
# sees the keys 0 .. last query; entries behind the mask (j > first + l) are +0.

cdef inline void _products(
    const real* rows, Py_ssize_t n, Py_ssize_t Dh, Py_ssize_t D, const real* panel, real* x
) noexcept nogil:
    """x[j, l] = fold over e of rows[j, e] * panel[e, l] for the first n rows."""
    cdef Py_ssize_t j
    for j from 0 <= j < n by TILE_ROWS:
        any_tile(
            min(n - j, <Py_ssize_t>TILE_ROWS), PANEL, Dh, rows + j * D, D, 1, panel, PANEL,
            NULL, 0, x + j * PANEL, PANEL, False,
        )


cdef inline void _mask(real* x, Py_ssize_t first, Py_ssize_t n, real value) noexcept nogil:
    """x[j, l] = value for the keys j < n behind the mask of query first + l."""
    cdef Py_ssize_t j, l
    for j in range(first + 1, n):
        for l in range(j - first):
            x[j * PANEL + l] = value


cdef inline void _softmax(real* x, Py_ssize_t first, Py_ssize_t n, real scale) noexcept nogil:
    """Turn the products of n keys into the probabilities of the block's queries."""
    cdef real top[PANEL]
    cdef real argmax[PANEL]  # key of the first maximum
    cdef double tail[PANEL]  # binary64 for both scalar types
    cdef Py_ssize_t j, l, start
    for l in range(PANEL):
        top[l] = x[l] * scale
        argmax[l] = 0
        tail[l] = 0
    for j in range(n):
        for l in range(PANEL):
            x[j * PANEL + l] = x[j * PANEL + l] * scale
        start = max(j - first, <Py_ssize_t>0)
        for l in range(start, PANEL):
            if x[j * PANEL + l] > top[l]:
                top[l] = x[j * PANEL + l]
                argmax[l] = j
    for j in range(n):
        for l in range(PANEL):
            x[j * PANEL + l] = x[j * PANEL + l] - top[l]
    _mask(x, first, n, -1)  # anything whose exp is cheap
    cr_exp_block(x, x, n * PANEL)
    _mask(x, first, n, 0)
    for l in range(PANEL):  # its exp(0) = 1 is left out of the tail: adding +0 changes no sum
        x[<Py_ssize_t>argmax[l] * PANEL + l] = 0
    for j in range(n):
        for l in range(PANEL):
            tail[l] = tail[l] + x[j * PANEL + l]
    for l in range(PANEL):
        x[<Py_ssize_t>argmax[l] * PANEL + l] = 1
        top[l] = <real>(1.0 + tail[l])
    for j in range(n):
        for l in range(PANEL):
            x[j * PANEL + l] = x[j * PANEL + l] / top[l]  # not negative: zero() has nothing to do


cdef inline void _softmax_backward(
    const real* p, real* d_p, Py_ssize_t first, Py_ssize_t n, real scale
) noexcept nogil:
    """Turn the gradients d_p of the probabilities into those of the products, d_r."""
    cdef double total[PANEL]
    cdef real pull[PANEL]
    cdef Py_ssize_t j, l
    _mask(d_p, first, n, 0)
    for l in range(PANEL):
        total[l] = 0
    for j in range(n):
        for l in range(PANEL):
            total[l] = total[l] + <double>d_p[j * PANEL + l] * <double>p[j * PANEL + l]
    for l in range(PANEL):
        pull[l] = <real>total[l]
    for j in range(n):
        for l in range(PANEL):
            d_p[j * PANEL + l] = zero(p[j * PANEL + l] * (d_p[j * PANEL + l] - pull[l])) * scale


cdef inline void _sum_over_keys(
    const real* weights, const real* packed, Py_ssize_t T, Py_ssize_t Dh, Py_ssize_t D,
    Py_ssize_t first, Py_ssize_t count, real* out,
) noexcept nogil:
    """out[i, e] = fold over j <= i of weights[j, i] * rows[j, e] for the queries of a block.

    `packed` holds the rows in panels of columns, each (T, PANEL).
    """
    cdef Py_ssize_t e, l
    for e from 0 <= e < Dh by PANEL:
        for l from 0 <= l < count by HEAD_ROWS:
            any_causal_tile(
                min(count - l, <Py_ssize_t>HEAD_ROWS), min(Dh - e, <Py_ssize_t>PANEL),
                first + l + 1, weights + l, 1, PANEL, packed + e * T, PANEL,
                out + (first + l) * D + e, D,
            )


cdef inline void _sum_over_queries(
    const real* weights, const real* packed, Py_ssize_t Dh, Py_ssize_t D,
    Py_ssize_t first, Py_ssize_t count, real* out,
) noexcept nogil:
    """Continue out[j, e] = fold over i >= j of weights[j, i] * rows[i, e] with a block's queries.

    `packed` holds the block's rows in panels of columns, each (count, PANEL).  A key's chain begins
    in the block that holds its own query; terms before that query are exact zeros, added to +0.
    """
    cdef Py_ssize_t e, j, skip
    cdef const real* start
    for e from 0 <= e < Dh by PANEL:
        for j from 0 <= j < first + count by HEAD_ROWS:
            skip = max(j - first, <Py_ssize_t>0)
            start = out + j * D + e if j < first else NULL
            any_tile(
                min(first + count - j, <Py_ssize_t>HEAD_ROWS), min(Dh - e, <Py_ssize_t>PANEL),
                count - skip, weights + j * PANEL + skip, PANEL, 1,
                packed + e * count + skip * PANEL, PANEL, start, D, out + j * D + e, D, False,
            )


cdef inline void _add_rows(
    Py_ssize_t T, Py_ssize_t Dh, const real* rows, real* out, Py_ssize_t stride
) noexcept nogil:
    """out[t, e] = out[t, e] + rows[t, e]: the next query head's gradient of a shared head."""
    cdef Py_ssize_t t, e
    for t in range(T):
        for e in range(Dh):
            out[t * stride + e] = out[t * stride + e] + rows[t * Dh + e]


cdef void _forward_heads(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef Py_ssize_t T = job.T, Dh = job.Dh, D = job.H * job.Dh, E = job.K * job.Dh
    cdef Py_ssize_t group = job.H // job.K
    cdef Py_ssize_t head, at, kv, first, count
    cdef real scale = score_scale(Dh)
    cdef real* p = <real*>scratch                   # (T, PANEL)
    cdef real* queries = p + T * PANEL              # (Dh, PANEL)
    cdef real* values = queries + Dh * PANEL        # panels of (T, PANEL)
    for head in range(lo, hi):
        at = head // job.H * T * D + head % job.H * Dh
        kv = head // job.H * T * E + head % job.H // group * Dh
        pack_b(T, Dh, job.v + kv, E, 1, values)
        for first from 0 <= first < T by PANEL:
            count = min(T - first, <Py_ssize_t>PANEL)
            pack_b_panel(Dh, count, job.q + at + first * D, 1, D, queries)
            _products(job.k + kv, first + count, Dh, E, queries, p)
            _softmax(p, first, first + count, scale)
            _sum_over_keys(p, values, T, Dh, D, first, count, job.out + at)


cdef void _backward_heads(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    """Heads lo .. hi - 1 of keys and values, each with all of its query heads."""
    cdef Job* job = <Job*>ctx
    cdef Py_ssize_t T = job.T, Dh = job.Dh, D = job.H * job.Dh, E = job.K * job.Dh
    cdef Py_ssize_t group = job.H // job.K
    cdef real scale = score_scale(Dh)
    cdef Py_ssize_t shared, member, at, kv, first, count, stride
    cdef real* p = <real*>scratch                   # (T, PANEL)
    cdef real* d_r = p + T * PANEL                  # (T, PANEL)
    cdef real* across = d_r + T * PANEL             # (Dh, PANEL), queries along the lanes
    cdef real* along = across + Dh * PANEL          # panels of (PANEL, PANEL)
    cdef real* keys = along + PANEL * whole_panels(Dh)  # panels of (T, PANEL)
    cdef real* finished = keys + T * whole_panels(Dh)   # two of (T, Dh), when heads are shared
    cdef real* d_k
    cdef real* d_v
    for shared in range(lo, hi):
        kv = shared // job.K * T * E + shared % job.K * Dh
        pack_b(T, Dh, job.k + kv, E, 1, keys)
        for member in range(group):
            at = shared // job.K * T * D + (shared % job.K * group + member) * Dh
            if member == 0:
                d_k, d_v, stride = job.d_k + kv, job.d_v + kv, E
            else:
                d_k, d_v, stride = finished, finished + T * Dh, Dh
            for first from 0 <= first < T by PANEL:
                count = min(T - first, <Py_ssize_t>PANEL)
                pack_b_panel(Dh, count, job.q + at + first * D, 1, D, across)
                _products(job.k + kv, first + count, Dh, E, across, p)
                _softmax(p, first, first + count, scale)
                pack_b(count, Dh, job.d_out + at + first * D, D, 1, along)
                _sum_over_queries(p, along, Dh, stride, first, count, d_v)
                pack_b_panel(Dh, count, job.d_out + at + first * D, 1, D, across)
                _products(job.v + kv, first + count, Dh, E, across, d_r)
                _softmax_backward(p, d_r, first, first + count, scale)
                _sum_over_keys(d_r, keys, T, Dh, D, first, count, job.d_q + at)
                pack_b(count, Dh, job.q + at + first * D, D, 1, along)
                _sum_over_queries(d_r, along, Dh, stride, first, count, d_k)
            if member:
                _add_rows(T, Dh, d_k, job.d_k + kv, E)
                _add_rows(T, Dh, d_v, job.d_v + kv, E)


def attention(
    cnp.ndarray q, cnp.ndarray k, cnp.ndarray v, cnp.ndarray out,  # IN, IN, IN, OUT
    Py_ssize_t B, Py_ssize_t T, Py_ssize_t H, Py_ssize_t K, Py_ssize_t Dh, int n_threads,
):
    """q and what belongs to it (B, T, H * Dh), k and v (B, T, K * Dh); K divides H."""
    cdef Job job
    cdef int status
    job.q = <const real*>cnp.PyArray_DATA(q)
    job.k = <const real*>cnp.PyArray_DATA(k)
    job.v = <const real*>cnp.PyArray_DATA(v)
    job.out = <real*>cnp.PyArray_DATA(out)
    job.T, job.H, job.K, job.Dh = T, H, K, Dh
    with nogil:
        status = parallel_for(
            _forward_heads, &job, B * H, GRAIN_WORK // (T * T * Dh + 1),
            (T * PANEL + Dh * PANEL + T * whole_panels(Dh)) * sizeof(real), n_threads,
        )
    if status:
        raise MemoryError("attention: no memory for the threads' scratch buffers")


def attention_backward(
    cnp.ndarray d_out, cnp.ndarray q, cnp.ndarray k, cnp.ndarray v,  # IN
    cnp.ndarray d_q, cnp.ndarray d_k, cnp.ndarray d_v,  # OUT
    Py_ssize_t B, Py_ssize_t T, Py_ssize_t H, Py_ssize_t K, Py_ssize_t Dh, int n_threads,
):
    """q and what belongs to it (B, T, H * Dh), k and v (B, T, K * Dh); K divides H."""
    cdef Job job
    cdef int status
    job.d_out = <const real*>cnp.PyArray_DATA(d_out)
    job.q = <const real*>cnp.PyArray_DATA(q)
    job.k = <const real*>cnp.PyArray_DATA(k)
    job.v = <const real*>cnp.PyArray_DATA(v)
    job.d_q = <real*>cnp.PyArray_DATA(d_q)
    job.d_k = <real*>cnp.PyArray_DATA(d_k)
    job.d_v = <real*>cnp.PyArray_DATA(d_v)
    job.T, job.H, job.K, job.Dh = T, H, K, Dh
    with nogil:
        status = parallel_for(
            _backward_heads, &job, B * K, GRAIN_WORK // (T * T * Dh * (H // K) + 1),
            (
                2 * T * PANEL + Dh * PANEL + (PANEL + T) * whole_panels(Dh)
                + (2 * T * Dh if H != K else 0)
            ) * sizeof(real),
            n_threads,
        )
    if status:
        raise MemoryError("attention_backward: no memory for the threads' scratch buffers")
