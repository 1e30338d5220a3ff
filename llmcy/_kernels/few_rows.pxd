# Products of one to four rows with a large matrix, which is read once from end to end.
#
#     out[i, j] = fold over k of a[i, k] * b[k, j]          in ascending k, from +0
#     out[i, j] = fold over k of a[i, k] * b[j, k]          b transposed: a head over a vocabulary
#
# (numerics contract, section 5): the bits of ``matmul``, at the speed of reading b (decoding many tokens
# of a model has panels.pxd).  A few rows of b are therefore read side by side in long
# pieces, and the same pieces of the next few rows are asked for meanwhile; the sums wait in `out`,
# which stays in cache.  A fused sum may end at -0 by underflow: adding +0 stores +0.  A transposed b
# is read along its rows, in squares whose columns are the lanes of a vector.

from llmcy._kernels.pool cimport parallel_for
from llmcy._kernels.tile cimport inlined, prefetch
from llmcy._kernels.types cimport VEC_LANES, mul_add, real, vec, vec_load, vec_mul_add, vec_store, vec_zero

cdef extern from "llmcy_transpose.h" nogil:
    # columns[c] = x[0, c], x[1, c], ... for VEC_LANES rows and columns
    void transpose "llmcy_transpose"(const real* x, Py_ssize_t stride, vec* columns)

cdef enum:
    FEW_ROWS = 4            # rows of a at most
    MOST_LANES = 16
    SQUARES = 2             # squares one below the other: independent chains
    DEPTH = 8               # rows of b read side by side
    AHEAD = 8               # rows between reading and asking
    VECTORS = 4             # vectors of a piece
    STRIP = 64              # columns of the smallest share of a thread
    GRAIN_WORK = 65536

cdef struct FewRows:
    const real* a
    const real* b
    real* out
    Py_ssize_t m, n, k


cdef inline inlined _piece(
    const int rows, const int vectors, const int depth, const bint first,
    const real* a, Py_ssize_t k, const real* b, Py_ssize_t n, real* out,
) noexcept nogil:
    """Continue (or begin) the sums of `vectors` vectors of columns with `depth` rows of b."""
    cdef vec acc[16]
    cdef vec line
    cdef int i, v, step
    for i in range(rows):
        for v in range(vectors):
            acc[i * vectors + v] = vec_zero() if first else vec_load(out + i * n + v * VEC_LANES)
    for step in range(depth):
        prefetch(b + (step + AHEAD) * n)
        if vectors * VEC_LANES * sizeof(real) > 64:
            prefetch(b + (step + AHEAD) * n + 64 // sizeof(real))
        if vectors * VEC_LANES * sizeof(real) > 128:
            prefetch(b + (step + AHEAD) * n + 128 // sizeof(real))
            prefetch(b + (step + AHEAD) * n + 192 // sizeof(real))
        for v in range(vectors):
            line = vec_load(b + step * n + v * VEC_LANES)
            for i in range(rows):
                acc[i * vectors + v] = vec_mul_add(a[i * k + step], line, acc[i * vectors + v])
    for i in range(rows):
        for v in range(vectors):
            vec_store(out + i * n + v * VEC_LANES, acc[i * vectors + v] + vec_zero())


cdef inline inlined _block(
    const int rows, const int depth, const bint first, const real* a, Py_ssize_t k,
    const real* b, Py_ssize_t n, Py_ssize_t lo, Py_ssize_t hi, real* out,
) noexcept nogil:
    """`depth` rows of b for the columns lo .. hi-1."""
    cdef Py_ssize_t j = lo, i
    cdef int step
    cdef real total
    while j + VECTORS * VEC_LANES <= hi:
        _piece(rows, VECTORS, depth, first, a, k, b + j, n, out + j)
        j += VECTORS * VEC_LANES
    while j + VEC_LANES <= hi:
        _piece(rows, 1, depth, first, a, k, b + j, n, out + j)
        j += VEC_LANES
    while j < hi:
        for i in range(rows):
            total = 0 if first else out[i * n + j]
            for step in range(depth):
                total = mul_add(a[i * k + step], b[step * n + j], total)
            out[i * n + j] = <real>0 + total
        j += 1


cdef inline inlined _columns(
    const int rows, FewRows* job, Py_ssize_t lo, Py_ssize_t hi
) noexcept nogil:
    cdef Py_ssize_t pc = 0, n = job.n, k = job.k
    if k >= DEPTH:
        _block(rows, DEPTH, True, job.a, k, job.b, n, lo, hi, job.out)
        pc = DEPTH
    else:
        _block(rows, 1, True, job.a, k, job.b, n, lo, hi, job.out)
        pc = 1
    while pc + DEPTH <= k:
        _block(rows, DEPTH, False, job.a + pc, k, job.b + pc * n, n, lo, hi, job.out)
        pc += DEPTH
    while pc < k:
        _block(rows, 1, False, job.a + pc, k, job.b + pc * n, n, lo, hi, job.out)
        pc += 1


cdef inline void few_rows_strips(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef FewRows* job = <FewRows*>ctx
    cdef Py_ssize_t first = lo * STRIP, last = min(hi * STRIP, job.n)
    if job.m == 1:
        _columns(1, job, first, last)
    elif job.m == 2:
        _columns(2, job, first, last)
    elif job.m == 3:
        _columns(3, job, first, last)
    else:
        _columns(4, job, first, last)


cdef inline inlined _square_rows(
    const int rows, const real* a, const real* b, Py_ssize_t k, Py_ssize_t n, real* out,
) noexcept nogil:
    """out[:, j] for the SQUARES * VEC_LANES rows j of b from `b` on."""
    cdef vec acc[4 * SQUARES]
    cdef vec column[MOST_LANES]
    cdef real edge[MOST_LANES]
    cdef Py_ssize_t kc = 0, r
    cdef int i, square, step
    for i in range(rows * SQUARES):
        acc[i] = vec_zero()
    while kc + VEC_LANES <= k:
        for square in range(SQUARES):
            for r in range(VEC_LANES):
                prefetch(b + ((SQUARES + square) * VEC_LANES + r) * k + kc)
            transpose(b + square * VEC_LANES * k + kc, k, column)
            for step in range(VEC_LANES):
                for i in range(rows):
                    acc[i * SQUARES + square] = vec_mul_add(
                        a[i * k + kc + step], column[step], acc[i * SQUARES + square]
                    )
        kc += VEC_LANES
    while kc < k:
        for square in range(SQUARES):
            for r in range(VEC_LANES):
                edge[r] = b[(square * VEC_LANES + r) * k + kc]
            for i in range(rows):
                acc[i * SQUARES + square] = vec_mul_add(
                    a[i * k + kc], vec_load(edge), acc[i * SQUARES + square]
                )
        kc += 1
    for i in range(rows):
        for square in range(SQUARES):
            vec_store(out + i * n + square * VEC_LANES, acc[i * SQUARES + square] + vec_zero())


cdef inline void few_rows_squares(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef FewRows* job = <FewRows*>ctx
    cdef Py_ssize_t j = lo * STRIP, last = min(hi * STRIP, job.n), k = job.k, n = job.n, i, kk
    cdef real total
    while j + SQUARES * VEC_LANES <= last:
        if job.m == 1:
            _square_rows(1, job.a, job.b + j * k, k, n, job.out + j)
        elif job.m == 2:
            _square_rows(2, job.a, job.b + j * k, k, n, job.out + j)
        elif job.m == 3:
            _square_rows(3, job.a, job.b + j * k, k, n, job.out + j)
        else:
            _square_rows(4, job.a, job.b + j * k, k, n, job.out + j)
        j += SQUARES * VEC_LANES
    while j < last:
        for i in range(job.m):
            total = 0
            for kk in range(k):
                total = mul_add(job.a[i * k + kk], job.b[j * k + kk], total)
            job.out[i * n + j] = <real>0 + total
        j += 1


cdef inline void few_rows_product(
    const real* a, const real* b, real* out, Py_ssize_t m, Py_ssize_t n, Py_ssize_t k,
    bint transpose_b, int n_threads,
) noexcept nogil:
    """out (m, n) = a (m, k) x b, 1 <= m <= 4 and k >= 1; b is (k, n), or (n, k) with transpose_b."""
    cdef FewRows job
    cdef Py_ssize_t strips = (n + STRIP - 1) // STRIP
    job.a, job.b, job.out = a, b, out
    job.m, job.n, job.k = m, n, k
    parallel_for(
        few_rows_squares if transpose_b else few_rows_strips, &job, strips,
        GRAIN_WORK * strips // (n * k + 1), 0, n_threads,
    )
