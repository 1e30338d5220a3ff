# Heads of one new token a sequence over cached keys and values: what attention_step and decode_step
# share.  The formulas and the layout of the cache are in attention_step.pyx.

from llmcy._kernels.inverse_root cimport score_scale
from llmcy._kernels.order cimport ROWS
from llmcy._kernels.pool cimport parallel_for
from llmcy._kernels.softmax_rows cimport exponential_rows
from llmcy._kernels.tile cimport inlined
from llmcy._kernels.types cimport (
    VEC_LANES, i64, mul_add, real, vec, vec_load, vec_mul_add, vec_store, vec_zero,
)


cdef extern from *:
    void prefetch_to_write "__builtin_prefetch"(const void* address, int write) nogil

cdef enum:
    KEY_BLOCK_SIZE = 32
    BLOCK_VECTORS = 16          # vectors of a block when lanes are fewest
    VECTORS = KEY_BLOCK_SIZE // VEC_LANES
    MOST_VECTORS = 4            # of the value mix held in registers at once
    GRAIN_WORK = 3072           # products below which a second thread costs more than it gains

cdef struct Step:
    const real* q               # (n, H * Dh), rows q_row apart
    const real* new_key         # (n, Hk * Dh), rows kv_row apart
    const real* new_value
    Py_ssize_t q_row, kv_row
    const real* keys
    const real* values
    const i64* rows
    const i64* lengths
    real* out
    real* weights               # (n, H, longest + 1), or NULL
    Py_ssize_t longest
    Py_ssize_t C, H, Hk, Dh
    Py_ssize_t room             # scores a head has room for


cdef inline inlined _block_scores(
    const int blocks, const real* q, const real* keys, Py_ssize_t Dh, real* score
) noexcept nogil:
    """Scores of `blocks` blocks of keys."""
    cdef vec acc[BLOCK_VECTORS]
    cdef Py_ssize_t e
    cdef int b, v
    for v in range(blocks * VECTORS):
        acc[v] = vec_zero()
    for e in range(Dh):
        for b in range(blocks):
            for v in range(VECTORS):
                acc[b * VECTORS + v] = vec_mul_add(
                    q[e], vec_load(keys + (b * Dh + e) * KEY_BLOCK_SIZE + v * VEC_LANES),
                    acc[b * VECTORS + v],
                )
    for v in range(blocks * VECTORS):
        vec_store(score + v * VEC_LANES, acc[v])


cdef inline void _scores(
    const real* q, const real* keys, const real* new_key, Py_ssize_t n, Py_ssize_t Dh, real scale,
    real* score,
) noexcept nogil:
    """Scores of n cached keys and the new one; `score` has room for whole blocks."""
    cdef Py_ssize_t start = 0, e, j
    cdef real last = 0
    if VECTORS < 4:  # a single block would leave units idle between the steps of its chains
        while start + KEY_BLOCK_SIZE < n:
            _block_scores(2 if VECTORS < 4 else 1, q, keys + start * Dh, Dh, score + start)
            start += 2 * KEY_BLOCK_SIZE
    while start < n:
        _block_scores(1, q, keys + start * Dh, Dh, score + start)
        start += KEY_BLOCK_SIZE
    for e in range(Dh):
        last = mul_add(q[e], new_key[e], last)
    score[n] = last
    for j in range(n + 1):
        score[j] = score[j] * scale


cdef inline void _mix(
    const real* p, const real* values, const real* new_value, Py_ssize_t n, Py_ssize_t Dh, real* out
) noexcept nogil:
    cdef vec acc[MOST_VECTORS]
    cdef Py_ssize_t e = 0, j
    cdef int v
    cdef real total
    while e + MOST_VECTORS * VEC_LANES <= Dh:
        for v in range(MOST_VECTORS):
            acc[v] = vec_zero()
        for j in range(n):
            for v in range(MOST_VECTORS):
                acc[v] = vec_mul_add(p[j], vec_load(values + j * Dh + e + v * VEC_LANES), acc[v])
        for v in range(MOST_VECTORS):
            acc[v] = vec_mul_add(p[n], vec_load(new_value + e + v * VEC_LANES), acc[v])
            vec_store(out + e + v * VEC_LANES, acc[v] + vec_zero())  # a fused sum may end at -0
        e += MOST_VECTORS * VEC_LANES
    while e + VEC_LANES <= Dh:
        acc[0] = vec_zero()
        for j in range(n):
            acc[0] = vec_mul_add(p[j], vec_load(values + j * Dh + e), acc[0])
        vec_store(out + e, vec_mul_add(p[n], vec_load(new_value + e), acc[0]) + vec_zero())
        e += VEC_LANES
    while e < Dh:
        total = 0
        for j in range(n):
            total = mul_add(p[j], values[j * Dh + e], total)
        out[e] = <real>0 + mul_add(p[n], new_value[e], total)
        e += 1


cdef inline void step_heads(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    """Heads lo .. hi-1, counted through the sequences; up to ROWS of one sequence side by side."""
    cdef Step* job = <Step*>ctx
    cdef Py_ssize_t H = job.H, Hk = job.Hk, Dh = job.Dh, group = job.H // job.Hk
    cdef Py_ssize_t blocks = (job.C + KEY_BLOCK_SIZE - 1) // KEY_BLOCK_SIZE
    cdef Py_ssize_t at = lo, s, h, r, j, n, width, count, lane
    cdef real* score = <real*>scratch
    cdef real* x = score + job.room             # scores of up to ROWS heads
    cdef real* p = x + ROWS * (job.longest + 1)
    cdef real tops[ROWS]
    cdef double tails[ROWS]
    cdef real denominator, scale = score_scale(Dh)
    while at < hi:
        s = at // H
        n = job.lengths[s]
        width = n + 1
        count = min(min(hi, (s + 1) * H) - at, ROWS)
        for r in range(count):
            h = at % H + r
            lane = job.rows[s] * Hk + h // group
            _scores(
                job.q + s * job.q_row + h * Dh, job.keys + lane * blocks * KEY_BLOCK_SIZE * Dh,
                job.new_key + s * job.kv_row + (h // group) * Dh, n, Dh, scale, score,
            )
            for j in range(width):
                x[r * width + j] = score[j]
        exponential_rows(x, count, width, p, tops, tails)
        for r in range(count):
            h = at % H + r
            lane = job.rows[s] * Hk + h // group
            denominator = <real>(1.0 + tails[r])
            for j in range(width):
                p[r * width + j] = p[r * width + j] / denominator
            if job.weights != NULL:
                for j in range(width):
                    job.weights[(s * H + h) * (job.longest + 1) + j] = p[r * width + j]
            _mix(
                p + r * width, job.values + lane * job.C * Dh,
                job.new_value + s * job.kv_row + (h // group) * Dh, n, Dh, job.out + (s * H + h) * Dh,
            )
        at += count


cdef inline int attend_heads(Step* job, Py_ssize_t n, int n_threads) noexcept nogil:
    """All heads of n tokens; 0, or -1 when there is no memory for scratch."""
    job.room = (job.longest // KEY_BLOCK_SIZE + 1) * KEY_BLOCK_SIZE + 1
    return parallel_for(
        step_heads, job, n * job.H, GRAIN_WORK // (2 * (job.longest + 1) * job.Dh) + 1,
        (job.room + 2 * ROWS * (job.longest + 1)) * sizeof(real), n_threads,
    )


cdef inline void append_token(
    const real* key, const real* value, real* keys, real* values, Py_ssize_t row,
    Py_ssize_t position, Py_ssize_t C, Py_ssize_t Hk, Py_ssize_t Dh,
) noexcept nogil:
    """Put one token's key and value (Hk * Dh,) into its place in sequence `row`."""
    cdef Py_ssize_t blocks = (C + KEY_BLOCK_SIZE - 1) // KEY_BLOCK_SIZE
    cdef Py_ssize_t g, e
    cdef real* one
    for g in range(Hk):
        one = keys + ((row * Hk + g) * blocks + position // KEY_BLOCK_SIZE) * Dh * KEY_BLOCK_SIZE
        one += position % KEY_BLOCK_SIZE
        # every feature has a cache line of its own, which the weights have driven out: ask for many
        for e in range(Dh):
            prefetch_to_write(one + e * KEY_BLOCK_SIZE, 1)
        for e in range(Dh):
            one[e * KEY_BLOCK_SIZE] = key[g * Dh + e]
        one = values + ((row * Hk + g) * C + position) * Dh
        for e in range(Dh):
            one[e] = value[g * Dh + e]
