"""One new token a sequence attends to a cache of rotated keys and plain values.

For sequence s with n cached positions, head h, its shared key/value head g = h // (H / Hk), the
new rotated query q and the new rotated key and value in place n:

    score[j] = (fold over e of q[e] * key[j, e]) * (1 / sqrt(w))      j = 0 .. n
    p        = softmax(score)
    out[e]   = fold over j of p[j] * value[j, e]

the last row of causal attention, in its order (numerics contract, sections 6 and 14; part two,
section 4), so it has the bits of the same row computed with all others.

Keys lie in blocks of KEY_BLOCK positions, features first: keys[s, g, j // KEY_BLOCK, e,
j % KEY_BLOCK].  Lanes then run across positions while e ascends, and a block is read from one end
to the other.  Values are values[s, g, j, e].
"""

cimport numpy as cnp

from llmcy._kernels.order cimport ROWS
from llmcy._kernels.pool cimport parallel_for
from llmcy._kernels.softmax_rows cimport exponential_rows
from llmcy._kernels.types cimport (
    IS_F32, VEC_LANES, i64, mul_add, real, sqrt, sqrtf, vec, vec_load, vec_mul_add, vec_store,
    vec_zero,
)

cnp.import_array()

cdef enum:
    KEY_BLOCK_SIZE = 32
    BLOCK_VECTORS = 16          # vectors of a block when lanes are fewest
    MOST_VECTORS = 4            # of the value mix held in registers at once
    GRAIN_WORK = 32768          # products below which a second thread costs more than it gains

KEY_BLOCK = KEY_BLOCK_SIZE

cdef struct Job:
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
            vec_store(out + e + v * VEC_LANES, acc[v])
        e += MOST_VECTORS * VEC_LANES
    while e + VEC_LANES <= Dh:
        acc[0] = vec_zero()
        for j in range(n):
            acc[0] = vec_mul_add(p[j], vec_load(values + j * Dh + e), acc[0])
        vec_store(out + e, vec_mul_add(p[n], vec_load(new_value + e), acc[0]))
        e += VEC_LANES
    while e < Dh:
        total = 0
        for j in range(n):
            total = mul_add(p[j], values[j * Dh + e], total)
        out[e] = mul_add(p[n], new_value[e], total)
        e += 1


cdef void _heads(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    """Heads lo .. hi-1, counted through the sequences; up to ROWS of one sequence side by side."""
    cdef Job* job = <Job*>ctx
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


def attention_step(
    cnp.ndarray q, cnp.ndarray new_key, cnp.ndarray new_value,  # IN (n, H * Dh), (n, Hk * Dh) twice
    cnp.ndarray keys, cnp.ndarray values,  # IN (B, Hk, blocks, Dh, KEY_BLOCK), (B, Hk, C, Dh)
    cnp.ndarray rows, cnp.ndarray lengths,  # IN (n,)
    cnp.ndarray out, object weights,  # OUT (n, H * Dh); (n, H, longest + 1) or None
    Py_ssize_t n, Py_ssize_t C, Py_ssize_t H, Py_ssize_t Hk, Py_ssize_t Dh, Py_ssize_t longest,
    int n_threads,
):
    cdef Job job
    cdef int status
    job.q = <const real*>cnp.PyArray_DATA(q)
    job.new_key = <const real*>cnp.PyArray_DATA(new_key)
    job.new_value = <const real*>cnp.PyArray_DATA(new_value)
    job.keys = <const real*>cnp.PyArray_DATA(keys)
    job.values = <const real*>cnp.PyArray_DATA(values)
    job.rows = <const i64*>cnp.PyArray_DATA(rows)
    job.lengths = <const i64*>cnp.PyArray_DATA(lengths)
    job.out = <real*>cnp.PyArray_DATA(out)
    job.weights = NULL if weights is None else <real*>cnp.PyArray_DATA(<cnp.ndarray>weights)
    job.C, job.H, job.Hk, job.Dh, job.longest = C, H, Hk, Dh, longest
    job.room = (longest // KEY_BLOCK_SIZE + 1) * KEY_BLOCK_SIZE + 1
    if IS_F32:
        job.scale = <real>(<float>1.0 / sqrtf(<float>Dh))
    else:
        job.scale = <real>(1.0 / sqrt(<double>Dh))
    with nogil:
        status = parallel_for(
            _heads, &job, n * H, GRAIN_WORK // (2 * (longest + 1) * Dh) + 1,
            (job.room + 2 * ROWS * (longest + 1)) * sizeof(real), n_threads,
        )
    if status:
        raise MemoryError("attention_step: no memory for the threads' scratch buffers")


def cache_append(
    cnp.ndarray new_key, cnp.ndarray new_value,  # IN (n, Hk * Dh)
    cnp.ndarray keys, cnp.ndarray values,  # IN and OUT
    cnp.ndarray rows, cnp.ndarray positions,  # IN (n,)
    Py_ssize_t n, Py_ssize_t C, Py_ssize_t Hk, Py_ssize_t Dh,
):
    """Put token i's key and value into place positions[i] of sequence rows[i]."""
    cdef const real* key = <const real*>cnp.PyArray_DATA(new_key)
    cdef const real* value = <const real*>cnp.PyArray_DATA(new_value)
    cdef real* all_keys = <real*>cnp.PyArray_DATA(keys)
    cdef real* all_values = <real*>cnp.PyArray_DATA(values)
    cdef const i64* row = <const i64*>cnp.PyArray_DATA(rows)
    cdef const i64* position = <const i64*>cnp.PyArray_DATA(positions)
    cdef Py_ssize_t blocks = (C + KEY_BLOCK_SIZE - 1) // KEY_BLOCK_SIZE
    cdef Py_ssize_t i, g, e, at, block
    with nogil:
        for i in range(n):
            for g in range(Hk):
                at = row[i] * Hk + g
                block = (at * blocks + position[i] // KEY_BLOCK_SIZE) * Dh
                for e in range(Dh):
                    all_keys[(block + e) * KEY_BLOCK_SIZE + position[i] % KEY_BLOCK_SIZE] = (
                        key[(i * Hk + g) * Dh + e]
                    )
                    all_values[(at * C + position[i]) * Dh + e] = value[(i * Hk + g) * Dh + e]
