# Micro-kernels: a small rectangle of C stays in registers while k runs.
#
# Lanes lie across columns of C, never along k: every element of C is one chain in ascending k
# (numerics contract, sections 5 and 14).  Element (i, k) of A is a[i * a_row + k * a_col], read one
# at a time; a row k of B is contiguous, b[k * b_row + j]; C is row-major, c_row elements a row.
# The loops over rows and vectors (llmcy_tile.h) have constant bounds once a tile is inlined into its
# caller; the compiler then unrolls them and keeps `acc` in registers.

from llmcy._kernels.types cimport TILE_ROWS, TILE_VECTORS, VEC_LANES, real, vec

cdef extern from *:
    """
    #define LLMCY_INLINED __attribute__((always_inline)) void
    _Static_assert(LLMCY_TILE_ROWS <= 8, "the choices by number of rows below end at 8");
    _Static_assert(LLMCY_WIDE_ROWS <= 6, "the choices by number of rows in strip.pxd end at 5");
    #define LLMCY_MOST_ROWS \
        (LLMCY_TILE_ROWS > 2 * LLMCY_WIDE_ROWS ? LLMCY_TILE_ROWS : 2 * LLMCY_WIDE_ROWS)
    #define LLMCY_MOST_SUMS (LLMCY_TILE_VECTORS * LLMCY_MOST_ROWS)
    #define LLMCY_HEAD_ROWS (LLMCY_TILE_ROWS == 8 ? 8 : 4)
    """
    enum:
        HEAD_ROWS "LLMCY_HEAD_ROWS"   # rows of attention's tiles: a divisor of PANEL
        MOST_SUMS "LLMCY_MOST_SUMS"   # vectors of sums in the largest tile
    ctypedef void inlined "LLMCY_INLINED"
    void prefetch "__builtin_prefetch"(const void* address) nogil

cdef extern from "llmcy_tile.h" nogil:
    # `lanes` is the number of columns in the last vector: VEC_LANES, or with `part` fewer.
    vec load_part "llmcy_vec_load_part"(const real* address, int lanes)  # +0 in the other lanes
    void zero_tile "llmcy_tile_zero"(int size, vec* acc)
    void add_tile "llmcy_tile_add"(int size, vec* acc, const vec* more)
    void load_tile "llmcy_tile_load"(
        int rows, int vectors, bint part, int lanes, const real* c, Py_ssize_t c_row, vec* acc)
    void store_tile "llmcy_tile_store"(  # C = acc, or with `add` C = C + acc
        int rows, int vectors, bint part, int lanes, const vec* acc, real* c, Py_ssize_t c_row,
        bint add)
    void prefetch_tile "llmcy_tile_prefetch"(int rows, int vectors, const real* c, Py_ssize_t c_row)
    void steps_of_tile "llmcy_tile_steps"(  # `depth` steps of k for all rows
        int rows, int vectors, Py_ssize_t depth, const real* a, Py_ssize_t a_row, Py_ssize_t a_col,
        const real* b, Py_ssize_t b_row, vec* acc)
    void step_tile "llmcy_tile_step"(  # one k for the rows from `first` on
        int first, int rows, int vectors, const real* a, Py_ssize_t a_row, const real* b, vec* acc)

cdef enum:
    PANEL = TILE_VECTORS * VEC_LANES  # columns of a full tile
    SHORT_ROWS = TILE_ROWS // 2       # rows of a tile that needs two accumulators an element


# ---- the three kinds of tile ------------------------------------------------------------------

cdef inline inlined tile(
    const int rows, const int vectors, const bint part, int lanes, Py_ssize_t depth,
    const real* a, Py_ssize_t a_row, Py_ssize_t a_col, const real* b, Py_ssize_t b_row,
    const real* start, Py_ssize_t start_row, real* c, Py_ssize_t c_row, bint add,
) noexcept nogil:
    """`depth` steps of k, from +0 or from the partial sums at `start`."""
    cdef vec acc[MOST_SUMS]
    if start == NULL:
        zero_tile(rows * vectors, acc)
    else:
        prefetch_tile(rows, vectors, c, c_row)
        prefetch_tile(rows, vectors, start + rows * start_row, start_row)  # the next one down
        load_tile(rows, vectors, part, lanes, start, start_row, acc)
    steps_of_tile(rows, vectors, depth, a, a_row, a_col, b, b_row, acc)
    store_tile(rows, vectors, part, lanes, acc, c, c_row, add)


cdef inline inlined tile_two_level(
    const int rows, const int vectors, const bint part, int lanes, Py_ssize_t groups,
    Py_ssize_t depth, const real* a, Py_ssize_t a_row, Py_ssize_t a_col,
    const real* b, Py_ssize_t b_row, real* c, Py_ssize_t c_row, bint add,
) noexcept nogil:
    """One chain of `depth` steps for each of `groups`, added up in order (with `add` to C)."""
    cdef vec total[SHORT_ROWS * TILE_VECTORS]
    cdef vec acc[SHORT_ROWS * TILE_VECTORS]
    cdef Py_ssize_t group
    if add:
        load_tile(rows, vectors, part, lanes, c, c_row, total)
    else:
        zero_tile(rows * vectors, total)
    for group in range(groups):
        zero_tile(rows * vectors, acc)
        steps_of_tile(rows, vectors, depth, a, a_row, a_col, b, b_row, acc)
        a += depth * a_col
        b += depth * b_row
        add_tile(rows * vectors, total, acc)
    store_tile(rows, vectors, part, lanes, total, c, c_row, False)


cdef inline inlined tile_causal(
    const int rows, const int vectors, const bint part, int lanes, Py_ssize_t depth,
    const real* a, Py_ssize_t a_row, Py_ssize_t a_col, const real* b, Py_ssize_t b_row,
    real* c, Py_ssize_t c_row,
) noexcept nogil:
    """Row i takes depth + i steps of k: nothing behind its mask gets into it."""
    cdef vec acc[TILE_ROWS * TILE_VECTORS]
    cdef int step
    zero_tile(rows * vectors, acc)
    steps_of_tile(rows, vectors, depth, a, a_row, a_col, b, b_row, acc)
    a += depth * a_col
    b += depth * b_row
    for step in range(1, rows):
        step_tile(step, rows, vectors, a, a_row, b, acc)
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


cdef inline inlined two_level_of_rows(
    int rows, const int vectors, const bint part, int lanes, Py_ssize_t groups, Py_ssize_t depth,
    const real* a, Py_ssize_t a_row, Py_ssize_t a_col, const real* b, Py_ssize_t b_row,
    real* c, Py_ssize_t c_row, bint add,
) noexcept nogil:
    if rows == SHORT_ROWS:
        tile_two_level(
            SHORT_ROWS, vectors, part, lanes, groups, depth, a, a_row, a_col, b, b_row, c, c_row,
            add,
        )
    elif rows == 1:
        tile_two_level(
            1, vectors, part, lanes, groups, depth, a, a_row, a_col, b, b_row, c, c_row, add,
        )
    elif SHORT_ROWS > 2 and rows == 2:
        tile_two_level(
            2, vectors, part, lanes, groups, depth, a, a_row, a_col, b, b_row, c, c_row, add,
        )
    elif SHORT_ROWS > 3 and rows == 3:
        tile_two_level(
            3, vectors, part, lanes, groups, depth, a, a_row, a_col, b, b_row, c, c_row, add,
        )


cdef inline void any_two_level_tile(
    int rows, int columns, Py_ssize_t groups, Py_ssize_t depth,
    const real* a, Py_ssize_t a_row, Py_ssize_t a_col, const real* b, Py_ssize_t b_row,
    real* c, Py_ssize_t c_row, bint add,
) noexcept nogil:
    cdef int i, j, height
    for i from 0 <= i < rows by SHORT_ROWS:
        height = min(rows - i, SHORT_ROWS)
        if columns == PANEL:
            two_level_of_rows(
                height, TILE_VECTORS, False, 0, groups, depth, a, a_row, a_col, b, b_row, c, c_row,
                add,
            )
        else:
            for j from 0 <= j < columns by VEC_LANES:
                if columns - j >= VEC_LANES:
                    two_level_of_rows(
                        height, 1, False, 0, groups, depth, a, a_row, a_col, b + j, b_row, c + j,
                        c_row, add,
                    )
                else:
                    two_level_of_rows(
                        height, 1, True, columns - j, groups, depth, a, a_row, a_col, b + j, b_row,
                        c + j, c_row, add,
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
