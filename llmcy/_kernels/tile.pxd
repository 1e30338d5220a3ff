# Micro-kernels: a small rectangle of C stays in registers while k runs.
#
# Lanes lie across columns of C, never along k: every element of C is one chain in ascending k
# (numerics contract, sections 5 and 14).  Element (i, k) of A is a[i * a_row + k * a_col], read one
# at a time; a row k of B is contiguous, b[k * b_row + j]; C is row-major, c_row elements a row.
# The loops over rows and vectors have constant bounds once a tile is inlined into its caller; the
# compiler then unrolls them and keeps `acc` in registers.

from llmcy._kernels.types cimport (
    IS_F32, TILE_ROWS, TILE_VECTORS, VEC_LANES, real, vec, vec_load, vec_mul_add, vec_store, vec_zero,
)

cdef extern from *:
    """
    #define LLMCY_INLINED __attribute__((always_inline)) void
    _Static_assert(LLMCY_TILE_ROWS <= 8, "the choices by number of rows below end at 8");
    #define LLMCY_HEAD_ROWS (LLMCY_TILE_ROWS == 8 ? 8 : 4)
    """
    enum:
        HEAD_ROWS "LLMCY_HEAD_ROWS"   # rows of attention's tiles: a divisor of PANEL
    ctypedef void inlined "LLMCY_INLINED"
    void prefetch "__builtin_prefetch"(const void* address) nogil

cdef enum:
    PANEL = TILE_VECTORS * VEC_LANES  # columns of a full tile
    SHORT_ROWS = TILE_ROWS // 2       # rows of a tile that needs two accumulators an element


# ---- a rectangle of C in and out of registers -------------------------------------------------
# `lanes` is the number of columns in the last vector: VEC_LANES, or with `part` fewer.

cdef inline inlined load_tile(
    const int rows, const int vectors, const bint part, int lanes,
    const real* c, Py_ssize_t c_row, vec* acc,
) noexcept nogil:
    cdef real edge[VEC_LANES]
    cdef int i, v, lane
    for i in range(rows):
        for v in range(vectors - part):
            acc[i * vectors + v] = vec_load(c + i * c_row + v * VEC_LANES)
        if part:
            vec_store(edge, vec_zero())
            for lane in range(lanes):
                edge[lane] = c[i * c_row + (vectors - 1) * VEC_LANES + lane]
            acc[i * vectors + vectors - 1] = vec_load(edge)


cdef inline inlined store_tile(
    const int rows, const int vectors, const bint part, int lanes,
    vec* acc, real* c, Py_ssize_t c_row, bint add,
) noexcept nogil:
    """C = acc, or with `add` C = C + acc.

    A fused chain whose products were all too small for binary32 can be -0: +0 is stored.
    """
    cdef real edge[VEC_LANES]
    cdef real* last
    cdef vec sums
    cdef int i, v, lane
    for i in range(rows):
        if add:
            for v in range(vectors - part):
                sums = vec_load(c + i * c_row + v * VEC_LANES)
                acc[i * vectors + v] = sums + acc[i * vectors + v]
        if IS_F32:
            for v in range(vectors):
                acc[i * vectors + v] = acc[i * vectors + v] + vec_zero()
        for v in range(vectors - part):
            vec_store(c + i * c_row + v * VEC_LANES, acc[i * vectors + v])
        if part:
            vec_store(edge, acc[i * vectors + vectors - 1])
            last = c + i * c_row + (vectors - 1) * VEC_LANES
            for lane in range(lanes):
                last[lane] = last[lane] + edge[lane] if add else edge[lane]


cdef inline inlined prefetch_tile(
    const int rows, const int vectors, const real* c, Py_ssize_t c_row
) noexcept nogil:
    """Ask for the cache lines of a rectangle; an address outside the array does no harm."""
    cdef int i, v
    for i in range(rows):
        for v in range(vectors):
            prefetch(c + i * c_row + v * VEC_LANES)


cdef inline inlined multiply_step(
    const int rows, const int vectors, const real* a, Py_ssize_t a_row, const real* b, vec* acc
) noexcept nogil:
    """One k for the whole rectangle."""
    cdef vec row[TILE_VECTORS]
    cdef real x
    cdef int i, v
    for v in range(vectors):
        row[v] = vec_load(b + v * VEC_LANES)
    for i in range(rows):
        x = a[i * a_row]
        for v in range(vectors):
            acc[i * vectors + v] = vec_mul_add(x, row[v], acc[i * vectors + v])


# ---- the three kinds of tile ------------------------------------------------------------------

cdef inline inlined tile(
    const int rows, const int vectors, const bint part, int lanes, Py_ssize_t depth,
    const real* a, Py_ssize_t a_row, Py_ssize_t a_col, const real* b, Py_ssize_t b_row,
    const real* start, Py_ssize_t start_row, real* c, Py_ssize_t c_row, bint add,
) noexcept nogil:
    """`depth` steps of k, from +0 or from the partial sums at `start`."""
    cdef vec acc[TILE_ROWS * TILE_VECTORS]
    cdef Py_ssize_t k
    cdef int i
    prefetch_tile(rows, vectors, c, c_row)
    if start == NULL:
        for i in range(rows * vectors):
            acc[i] = vec_zero()
    else:
        prefetch_tile(rows, vectors, start + rows * start_row, start_row)  # the next one down
        load_tile(rows, vectors, part, lanes, start, start_row, acc)
    for k in range(depth):
        multiply_step(rows, vectors, a, a_row, b, acc)
        a += a_col
        b += b_row
    store_tile(rows, vectors, part, lanes, acc, c, c_row, add)


cdef inline inlined tile_two_level(
    const int rows, const int vectors, const bint part, int lanes, Py_ssize_t groups,
    Py_ssize_t depth, const real* a, Py_ssize_t a_row, Py_ssize_t a_col,
    const real* b, Py_ssize_t b_row, real* c, Py_ssize_t c_row,
) noexcept nogil:
    """C = C + one chain of `depth` steps for each of `groups`, in order; C stays in registers."""
    cdef vec total[SHORT_ROWS * TILE_VECTORS]
    cdef vec acc[SHORT_ROWS * TILE_VECTORS]
    cdef Py_ssize_t group, k
    cdef int i
    load_tile(rows, vectors, part, lanes, c, c_row, total)
    for group in range(groups):
        for i in range(rows * vectors):
            acc[i] = vec_zero()
        for k in range(depth):
            multiply_step(rows, vectors, a, a_row, b, acc)
            a += a_col
            b += b_row
        for i in range(rows * vectors):
            total[i] = total[i] + acc[i]
    store_tile(rows, vectors, part, lanes, total, c, c_row, False)


cdef inline inlined tile_causal(
    const int rows, const int vectors, const bint part, int lanes, Py_ssize_t depth,
    const real* a, Py_ssize_t a_row, Py_ssize_t a_col, const real* b, Py_ssize_t b_row,
    real* c, Py_ssize_t c_row,
) noexcept nogil:
    """Row i takes depth + i steps of k: nothing behind its mask gets into it."""
    cdef vec acc[TILE_ROWS * TILE_VECTORS]
    cdef vec row[TILE_VECTORS]
    cdef Py_ssize_t k
    cdef int i, v, step
    cdef real x
    for i in range(rows * vectors):
        acc[i] = vec_zero()
    for k in range(depth):
        multiply_step(rows, vectors, a, a_row, b, acc)
        a += a_col
        b += b_row
    for step in range(1, rows):
        for v in range(vectors):
            row[v] = vec_load(b + v * VEC_LANES)
        for i in range(1, rows):
            if i >= step:
                x = a[i * a_row]
                for v in range(vectors):
                    acc[i * vectors + v] = vec_mul_add(x, row[v], acc[i * vectors + v])
        a += a_col
        b += b_row
    store_tile(rows, vectors, part, lanes, acc, c, c_row, False)


# ---- any number of rows and columns up to a full tile -----------------------------------------
# A choice by `if` rather than a table of functions: the compiler drops what the tile size of its
# instruction set rules out.  Where `columns` is less than PANEL, rows of b must be readable,
# whatever they hold, up to the next whole vector.

cdef inline inlined tile_of_rows(
    int rows, const int vectors, const bint part, int lanes, Py_ssize_t depth,
    const real* a, Py_ssize_t a_row, Py_ssize_t a_col, const real* b, Py_ssize_t b_row,
    const real* start, Py_ssize_t start_row, real* c, Py_ssize_t c_row, bint add,
) noexcept nogil:
    if rows == TILE_ROWS:
        tile(
            TILE_ROWS, vectors, part, lanes, depth, a, a_row, a_col, b, b_row, start, start_row, c,
            c_row, add,
        )
    elif rows == 1:
        tile(
            1, vectors, part, lanes, depth, a, a_row, a_col, b, b_row, start, start_row, c, c_row,
            add,
        )
    elif rows == 2:
        tile(
            2, vectors, part, lanes, depth, a, a_row, a_col, b, b_row, start, start_row, c, c_row,
            add,
        )
    elif rows == 3:
        tile(
            3, vectors, part, lanes, depth, a, a_row, a_col, b, b_row, start, start_row, c, c_row,
            add,
        )
    elif TILE_ROWS > 4 and rows == 4:
        tile(
            4, vectors, part, lanes, depth, a, a_row, a_col, b, b_row, start, start_row, c, c_row,
            add,
        )
    elif TILE_ROWS > 4 and rows == 5:
        tile(
            5, vectors, part, lanes, depth, a, a_row, a_col, b, b_row, start, start_row, c, c_row,
            add,
        )
    elif TILE_ROWS > 6 and rows == 6:
        tile(
            6, vectors, part, lanes, depth, a, a_row, a_col, b, b_row, start, start_row, c, c_row,
            add,
        )
    elif TILE_ROWS > 6 and rows == 7:
        tile(
            7, vectors, part, lanes, depth, a, a_row, a_col, b, b_row, start, start_row, c, c_row,
            add,
        )


cdef inline void any_tile(
    int rows, int columns, Py_ssize_t depth,
    const real* a, Py_ssize_t a_row, Py_ssize_t a_col, const real* b, Py_ssize_t b_row,
    const real* start, Py_ssize_t start_row, real* c, Py_ssize_t c_row, bint add,
) noexcept nogil:
    cdef int j
    if columns == PANEL:
        tile_of_rows(
            rows, TILE_VECTORS, False, 0, depth, a, a_row, a_col, b, b_row, start, start_row, c,
            c_row, add,
        )
        return
    for j from 0 <= j < columns by VEC_LANES:
        if columns - j >= VEC_LANES:
            tile_of_rows(
                rows, 1, False, 0, depth, a, a_row, a_col, b + j, b_row, start, start_row, c + j,
                c_row, add,
            )
        else:
            tile_of_rows(
                rows, 1, True, columns - j, depth, a, a_row, a_col, b + j, b_row, start, start_row,
                c + j, c_row, add,
            )
        if start != NULL:
            start += VEC_LANES


cdef inline void packed_tile(
    Py_ssize_t depth, const real* a, const real* b,
    const real* start, Py_ssize_t start_row, real* c, Py_ssize_t c_row, bint add,
) noexcept nogil:
    """A full tile from packed panels: every stride but C's is a constant."""
    tile(
        TILE_ROWS, TILE_VECTORS, False, 0, depth, a, 1, TILE_ROWS, b, PANEL, start, start_row, c,
        c_row, add,
    )


cdef inline inlined two_level_of_rows(
    int rows, const int vectors, const bint part, int lanes, Py_ssize_t groups, Py_ssize_t depth,
    const real* a, Py_ssize_t a_row, Py_ssize_t a_col, const real* b, Py_ssize_t b_row,
    real* c, Py_ssize_t c_row,
) noexcept nogil:
    if rows == SHORT_ROWS:
        tile_two_level(
            SHORT_ROWS, vectors, part, lanes, groups, depth, a, a_row, a_col, b, b_row, c, c_row,
        )
    elif rows == 1:
        tile_two_level(1, vectors, part, lanes, groups, depth, a, a_row, a_col, b, b_row, c, c_row)
    elif SHORT_ROWS > 2 and rows == 2:
        tile_two_level(2, vectors, part, lanes, groups, depth, a, a_row, a_col, b, b_row, c, c_row)
    elif SHORT_ROWS > 3 and rows == 3:
        tile_two_level(3, vectors, part, lanes, groups, depth, a, a_row, a_col, b, b_row, c, c_row)


cdef inline void any_two_level_tile(
    int rows, int columns, Py_ssize_t groups, Py_ssize_t depth,
    const real* a, Py_ssize_t a_row, Py_ssize_t a_col, const real* b, Py_ssize_t b_row,
    real* c, Py_ssize_t c_row,
) noexcept nogil:
    cdef int i, j, height
    for i from 0 <= i < rows by SHORT_ROWS:
        height = min(rows - i, SHORT_ROWS)
        if columns == PANEL:
            two_level_of_rows(
                height, TILE_VECTORS, False, 0, groups, depth, a, a_row, a_col, b, b_row, c, c_row,
            )
        else:
            for j from 0 <= j < columns by VEC_LANES:
                if columns - j >= VEC_LANES:
                    two_level_of_rows(
                        height, 1, False, 0, groups, depth, a, a_row, a_col, b + j, b_row, c + j,
                        c_row,
                    )
                else:
                    two_level_of_rows(
                        height, 1, True, columns - j, groups, depth, a, a_row, a_col, b + j, b_row,
                        c + j, c_row,
                    )
        a += SHORT_ROWS * a_row
        c += SHORT_ROWS * c_row


cdef inline inlined causal_of_rows(
    int rows, const int vectors, const bint part, int lanes, Py_ssize_t depth,
    const real* a, Py_ssize_t a_row, Py_ssize_t a_col, const real* b, Py_ssize_t b_row,
    real* c, Py_ssize_t c_row,
) noexcept nogil:
    if rows == HEAD_ROWS:
        tile_causal(HEAD_ROWS, vectors, part, lanes, depth, a, a_row, a_col, b, b_row, c, c_row)
    elif rows == 1:
        tile_causal(1, vectors, part, lanes, depth, a, a_row, a_col, b, b_row, c, c_row)
    elif rows == 2:
        tile_causal(2, vectors, part, lanes, depth, a, a_row, a_col, b, b_row, c, c_row)
    elif rows == 3:
        tile_causal(3, vectors, part, lanes, depth, a, a_row, a_col, b, b_row, c, c_row)
    elif HEAD_ROWS > 4 and rows == 4:
        tile_causal(4, vectors, part, lanes, depth, a, a_row, a_col, b, b_row, c, c_row)
    elif HEAD_ROWS > 4 and rows == 5:
        tile_causal(5, vectors, part, lanes, depth, a, a_row, a_col, b, b_row, c, c_row)
    elif HEAD_ROWS > 4 and rows == 6:
        tile_causal(6, vectors, part, lanes, depth, a, a_row, a_col, b, b_row, c, c_row)
    elif HEAD_ROWS > 4 and rows == 7:
        tile_causal(7, vectors, part, lanes, depth, a, a_row, a_col, b, b_row, c, c_row)


cdef inline void any_causal_tile(
    int rows, int columns, Py_ssize_t depth,
    const real* a, Py_ssize_t a_row, Py_ssize_t a_col, const real* b, Py_ssize_t b_row,
    real* c, Py_ssize_t c_row,
) noexcept nogil:
    cdef int j
    if columns == PANEL:
        causal_of_rows(rows, TILE_VECTORS, False, 0, depth, a, a_row, a_col, b, b_row, c, c_row)
        return
    for j from 0 <= j < columns by VEC_LANES:
        if columns - j >= VEC_LANES:
            causal_of_rows(rows, 1, False, 0, depth, a, a_row, a_col, b + j, b_row, c + j, c_row)
        else:
            causal_of_rows(
                rows, 1, True, columns - j, depth, a, a_row, a_col, b + j, b_row, c + j, c_row,
            )
