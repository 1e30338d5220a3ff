# Heads of one new token a sequence over cached keys and values: what attention_step and decode_block
# share.  The formulas and the layout of the cache are in attention_step.pyx.

from llmcy._kernels.order cimport ROWS
from llmcy._kernels.pool cimport parallel_for
from llmcy._kernels.softmax_rows cimport exponential_rows
from llmcy._kernels.types cimport (
    IS_F32, VEC_LANES, i64, mul_add, real, sqrt, sqrtf, vec, vec_load, vec_mul_add, vec_store,
    vec_zero,
)


cdef enum:
    KEY_BLOCK_SIZE = 32
    BLOCK_VECTORS = 16          # vectors of a block when lanes are fewest
    MOST_VECTORS = 4            # of the value mix held in registers at once
    GRAIN_WORK = 32768          # products below which a second thread costs more than it gains

cdef struct Step:
    const real* q
    const real* new_key
    const real* new_value
    const real* keys
    const real* values
    const i64* rows
    const i64* lengths
    real* out
    real* weights               # (n, H, longest + 1), or NULL
    Py_ssize_t longest
    Py_ssize_t C, H, Hk, Dh
    Py_ssize_t room             # scores a head has room for
    real scale


cdef inline void _scores(
    const real* q, const real* keys, const real* new_key, Py_ssize_t n, Py_ssize_t Dh, real scale,
    real* score,
) noexcept nogil:
    """Scores of n cached keys and the new one; `score` has room for whole blocks."""
    cdef vec acc[BLOCK_VECTORS]
    cdef Py_ssize_t start, e, j
    cdef int v
    cdef const real* block
    cdef real last = 0
    for start from 0 <= start < n by KEY_BLOCK_SIZE:
        block = keys + start * Dh
        for v in range(KEY_BLOCK_SIZE // VEC_LANES):
            acc[v] = vec_zero()
        for e in range(Dh):
            for v in range(KEY_BLOCK_SIZE // VEC_LANES):
                acc[v] = vec_mul_add(q[e], vec_load(block + e * KEY_BLOCK_SIZE + v * VEC_LANES), acc[v])
        for v in range(KEY_BLOCK_SIZE // VEC_LANES):
            vec_store(score + start + v * VEC_LANES, acc[v])
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
    cdef real denominator
    while at < hi:
        s = at // H
        n = job.lengths[s]
        width = n + 1
        count = min(min(hi, (s + 1) * H) - at, ROWS)
        for r in range(count):
            h = at % H + r
            lane = job.rows[s] * Hk + h // group
            _scores(
                job.q + (s * H + h) * Dh, job.keys + lane * blocks * KEY_BLOCK_SIZE * Dh,
                job.new_key + (s * Hk + h // group) * Dh, n, Dh, job.scale, score,
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
                job.new_value + (s * Hk + h // group) * Dh, n, Dh, job.out + (s * H + h) * Dh,
            )
        at += count


cdef inline real step_scale(Py_ssize_t Dh) noexcept nogil:
    """The rounded reciprocal of a rounded root."""
    if IS_F32:
        return <real>(<float>1.0 / sqrtf(<float>Dh))
    return <real>(1.0 / sqrt(<double>Dh))


cdef inline int attend_heads(Step* job, Py_ssize_t n, int n_threads) noexcept nogil:
    """All heads of n tokens; 0, or -1 when there is no memory for scratch."""
    job.room = (job.longest // KEY_BLOCK_SIZE + 1) * KEY_BLOCK_SIZE + 1
    job.scale = step_scale(job.Dh)
    return parallel_for(
        step_heads, job, n * job.H, GRAIN_WORK // (2 * (job.longest + 1) * job.Dh) + 1,
        (job.room + 2 * ROWS * (job.longest + 1)) * sizeof(real), n_threads,
    )
