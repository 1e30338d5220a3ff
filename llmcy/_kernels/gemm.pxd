# The blocked matrix product of one thread: panels of A and B, tiles of C (tile.pxd).
#
# Element (i, k) of A is a[i * a_row + k * a_col]; (k, j) of B is b[k * b_row + j * b_col]; C is
# row-major with c_row elements between rows.  A sum over k that is cut into blocks is one chain
# still, because the partial sums are reloaded as accumulators (numerics contract, section 14).

from llmcy._kernels.strip cimport (
    Ahead, strip_asking_ahead, strip_of_packed_tiles, strip_of_tiles, wide_strips,
)
from llmcy._kernels.tile cimport PANEL, any_tile, any_two_level_tile, inlined, load_part, prefetch
from llmcy._kernels.types cimport (
    TILE_ROWS, TILE_VECTORS, VEC_LANES, WIDE_ROWS, real, vec, vec_load, vec_store, vec_zero,
)

cdef extern from "llmcy_transpose.h" nogil:
    # out[c * out_step + r] = x[r * stride + c] for VEC_LANES rows r and columns c
    void square_to "llmcy_square_to"(
        const real* x, Py_ssize_t stride, const real* ahead, real* out, Py_ssize_t out_step)
    # out[c * TILE_ROWS + r] = x[r * stride + c] for VEC_LANES columns; TILE_ROWS a power of two
    void tile_rows_to "llmcy_tile_rows_to"(
        const real* x, Py_ssize_t stride, const real* ahead, real* out)

cdef extern from *:
    """
    /* longer in binary32, where a tile takes half the time */
    #define LLMCY_SHORT_CHAIN (LLMCY_IS_F32 ? 24 : 8)
    """
    enum:
        SHORT_CHAIN "LLMCY_SHORT_CHAIN"  # rows of fewer positions keep C in registers over all rows

cdef enum:
    # A panel of B, BLOCK_K deep, stays in the first-level cache while it meets BLOCK_M rows of A,
    # which stay in the second level.
    BLOCK_K = 512
    ONE_BLOCK_K = 768         # a product this deep is not cut in two, if C is only stored
    BLOCK_M = 96
    BLOCK_N = 1024
    SMALL_OPERAND = 10000     # elements; so few stay in cache and are read where they lie
    STREAM_ROWS = 2           # so few rows of A meet a wide B in shallow blocks
    STREAM_K = 16
    PACK_PANELS = 8           # panels packed side by side
    ROWS_AHEAD = 16           # of B, asked for while it is copied: weights come from a far cache ...
    SQUARES_AHEAD = 4         # ... and the same while it is transposed
    PACK_B_FROM_ROWS = 48     # fewer rows of A than this do not pay for packing B

# How the chains of C begin and end.
cdef enum Ending:
    REPLACE                   # C = product
    ROWS                      # C = product of row 0, then + product of row 1, ...
    MORE_ROWS                 # the same from the sums that are in C

# One product on one thread.
cdef struct Gemm:
    Py_ssize_t m, n, k
    const real* a
    Py_ssize_t a_row, a_col
    const real* b
    Py_ssize_t b_row, b_col
    real* c
    Py_ssize_t c_row
    Ending ending
    Py_ssize_t row_length     # positions of a row; k without rows
    bint two_level            # ... which is short, so that tiles hold C over several rows
    bint simple               # every chain begins at +0 and ends in C in one go
    bint pack_a, pack_b       # whether whole panels are copied, not only the last one of B
    real* packed_a            # panels of (depth, TILE_ROWS)
    real* packed_b            # panels of (depth, PANEL)
    real* partial             # unfinished chains of a long row, apart from the sums they join
    Py_ssize_t partial_row
    Ahead* ahead              # asked for by strips of a simple product


cdef inline Py_ssize_t whole_panels(Py_ssize_t columns) noexcept nogil:
    """columns, rounded up to a multiple of PANEL."""
    return (columns + PANEL - 1) // PANEL * PANEL


cdef inline inlined _copy_b(
    const int panels, Py_ssize_t depth, const real* b, Py_ssize_t b_row, real* packed
) noexcept nogil:
    """Whole panels side by side, so that a row is read in long pieces."""
    cdef Py_ssize_t k
    cdef int p, v
    for k in range(depth):
        for p in range(panels):
            for v in range(TILE_VECTORS):
                prefetch(b + (k + ROWS_AHEAD) * b_row + p * PANEL + v * VEC_LANES)
                vec_store(
                    packed + (p * depth + k) * PANEL + v * VEC_LANES,
                    vec_load(b + k * b_row + p * PANEL + v * VEC_LANES),
                )


cdef inline void _copy_narrow_b(
    Py_ssize_t depth, int columns, const real* b, Py_ssize_t b_row, real* panel
) noexcept nogil:
    cdef Py_ssize_t k
    cdef int v, whole = columns // VEC_LANES, lanes = columns % VEC_LANES
    for k in range(depth):
        for v in range(whole):
            vec_store(panel + v * VEC_LANES, vec_load(b + v * VEC_LANES))
        if lanes > 0:
            vec_store(panel + whole * VEC_LANES, load_part(b + whole * VEC_LANES, lanes))
        for v in range(whole + (lanes > 0), TILE_VECTORS):
            vec_store(panel + v * VEC_LANES, vec_zero())
        b += b_row
        panel += PANEL


cdef inline void _transpose_b(
    Py_ssize_t depth, Py_ssize_t columns, const real* b, Py_ssize_t b_col, real* panel
) noexcept nogil:
    """In squares, so that both sides use whole cache lines."""
    cdef Py_ssize_t k, j, kk, jj
    cdef real* square
    cdef const real* line
    if columns < PANEL:
        for k in range(depth):
            for j in range(columns, PANEL):
                panel[k * PANEL + j] = 0
    for j from 0 <= j < columns by VEC_LANES:
        for k from 0 <= k < depth by VEC_LANES:
            square = panel + k * PANEL + j
            line = b + j * b_col + k
            if columns - j >= VEC_LANES and depth - k >= VEC_LANES:
                square_to(line, b_col, line + SQUARES_AHEAD * VEC_LANES, square, PANEL)
            else:
                for kk in range(min(depth - k, <Py_ssize_t>VEC_LANES)):
                    for jj in range(min(columns - j, <Py_ssize_t>VEC_LANES)):
                        square[kk * PANEL + jj] = line[jj * b_col + kk]


cdef inline void pack_b_panel(
    Py_ssize_t depth, Py_ssize_t columns, const real* b, Py_ssize_t b_row, Py_ssize_t b_col,
    real* panel,
) noexcept nogil:
    """panel (depth, PANEL) = b (depth, columns), columns <= PANEL; the rest is filled with zeros.

    One of the two strides of b is 1.
    """
    if b_col != 1:
        _transpose_b(depth, columns, b, b_col, panel)
    elif columns == PANEL:
        _copy_b(1, depth, b, b_row, panel)
    else:
        _copy_narrow_b(depth, columns, b, b_row, panel)


cdef inline void pack_b(
    Py_ssize_t depth, Py_ssize_t columns, const real* b, Py_ssize_t b_row, Py_ssize_t b_col,
    real* packed,
) noexcept nogil:
    """Panel after panel of b (depth, columns), each (depth, PANEL)."""
    cdef Py_ssize_t j = 0
    if b_col == 1:
        while j + PACK_PANELS * PANEL <= columns:
            _copy_b(PACK_PANELS, depth, b + j, b_row, packed + j * depth)
            j += PACK_PANELS * PANEL
    while j < columns:
        pack_b_panel(
            depth, min(columns - j, <Py_ssize_t>PANEL), b + j * b_col, b_row, b_col,
            packed + j * depth,
        )
        j += PANEL


cdef inline inlined _copy_a(
    const int panels, Py_ssize_t depth, const real* a, Py_ssize_t a_col, real* packed
) noexcept nogil:
    """Whole panels side by side, so that a row is read in long pieces."""
    cdef Py_ssize_t k
    cdef int p, i
    for k in range(depth):
        for p in range(panels):
            for i in range(TILE_ROWS):
                packed[(p * depth + k) * TILE_ROWS + i] = a[k * a_col + p * TILE_ROWS + i]


cdef inline void pack_a(
    Py_ssize_t depth, Py_ssize_t rows, const real* a, Py_ssize_t a_row, Py_ssize_t a_col,
    real* packed,
) noexcept nogil:
    """Panel after panel (depth, TILE_ROWS), the transposes of whole tiles of `rows` rows of a."""
    cdef Py_ssize_t i = 0, k
    cdef int r
    cdef real* panel
    if a_row == 1:
        while i + PACK_PANELS * TILE_ROWS <= rows:
            _copy_a(PACK_PANELS, depth, a + i, a_col, packed + i * depth)
            i += PACK_PANELS * TILE_ROWS
        while i + TILE_ROWS <= rows:
            _copy_a(1, depth, a + i, a_col, packed + i * depth)
            i += TILE_ROWS
        return
    while i + TILE_ROWS <= rows:
        panel = packed + i * depth
        k = 0
        if TILE_ROWS & (TILE_ROWS - 1) == 0:
            while k + VEC_LANES <= depth:
                tile_rows_to(
                    a + i * a_row + k, a_row, a + i * a_row + k + SQUARES_AHEAD * VEC_LANES,
                    panel + k * TILE_ROWS,
                )
                k += VEC_LANES
        while k < depth:
            for r in range(TILE_ROWS):
                panel[k * TILE_ROWS + r] = a[(i + r) * a_row + k]
            k += 1
        i += TILE_ROWS


cdef inline size_t gemm_scratch(
    Py_ssize_t m, Py_ssize_t n, Py_ssize_t k, Ending ending, Py_ssize_t row_length
) noexcept nogil:
    """Bytes of scratch that `gemm` needs for a product up to this size."""
    cdef size_t depth = min(k, <Py_ssize_t>(ONE_BLOCK_K if ending == REPLACE else BLOCK_K))
    cdef size_t height = min(m, <Py_ssize_t>BLOCK_M) + TILE_ROWS
    cdef size_t width = whole_panels(min(n, <Py_ssize_t>BLOCK_N))
    cdef size_t partial = m * width if ending != REPLACE and row_length > BLOCK_K else 0
    return ((height + width) * depth + partial) * sizeof(real)


# ---- the product -----------------------------------------------------------------------------
cdef inline void tiles_of_product(
    Gemm* g, Py_ssize_t i, Py_ssize_t j, Py_ssize_t first_k, Py_ssize_t depth,
    Py_ssize_t height, int columns, const real* a, Py_ssize_t a_next, Py_ssize_t a_row,
    Py_ssize_t a_col, const real* b, Py_ssize_t b_row, Py_ssize_t partial_j, bint packed,
) noexcept nogil:
    """The steps first_k .. first_k + depth - 1 of C's rows from i on, in one panel from column j on.

    The rows are whole tiles, a_next apart in A, or fewer than a tile has.
    """
    cdef real* c = g.c + i * g.c_row + j
    cdef real* goal = c
    cdef const real* start = NULL
    cdef Py_ssize_t start_row = g.c_row, goal_row = g.c_row, length = min(depth, g.row_length)
    cdef Py_ssize_t k, tile, tiles = height // TILE_ROWS
    cdef int rows = min(height, <Py_ssize_t>TILE_ROWS)
    cdef bint add = g.ending == MORE_ROWS or (g.ending == ROWS and first_k >= g.row_length)
    if g.simple and tiles > 0 and columns == PANEL:
        if a_col == 1 and g.ahead != NULL and g.ahead.at < g.ahead.end:
            strip_asking_ahead(tiles, depth, a, a_next, a_row, b, b_row, c, g.c_row, g.ahead)
        else:
            strip_of_tiles(tiles, depth, a, a_next, a_row, a_col, b, b_row, c, g.c_row)
        return
    if g.partial != NULL:     # of one long row
        if first_k > 0:
            start, start_row = g.partial + i * g.partial_row + partial_j, g.partial_row
        if first_k + depth < g.k:
            goal, goal_row, add = g.partial + i * g.partial_row + partial_j, g.partial_row, False
    elif g.ending == REPLACE and first_k > 0:
        start = c
    if packed and columns == PANEL and not g.two_level:
        strip_of_packed_tiles(
            tiles, depth, length, a, b, start, start_row, goal, goal_row, add
        )
        return
    for tile in range(max(tiles, <Py_ssize_t>1)):
        if g.two_level:
            any_two_level_tile(
                rows, columns, depth // length, length, a, a_row, a_col, b, b_row, c, g.c_row, add
            )
            c += rows * g.c_row
        else:
            for k from 0 <= k < depth by length:  # row after row
                any_tile(
                    rows, columns, length, a + k * a_col, a_row, a_col, b + k * b_row, b_row,
                    start, start_row, goal, goal_row, add or k > 0,
                )
            goal += rows * goal_row
            if start != NULL:
                start += rows * start_row
        a += a_next


cdef inline void block_of_product(
    Gemm* g, Py_ssize_t first_i, Py_ssize_t height, Py_ssize_t first_j, Py_ssize_t width,
    Py_ssize_t first_k, Py_ssize_t depth,
) noexcept nogil:
    """A block of C: down each panel of B, which so stays in the nearest cache."""
    cdef const real* a = g.a + first_i * g.a_row + first_k * g.a_col
    cdef const real* b = g.b + first_k * g.b_row + first_j * g.b_col
    cdef const real* panel
    cdef Py_ssize_t j, panel_row, whole = height // TILE_ROWS * TILE_ROWS
    cdef int columns
    if g.pack_a:
        pack_a(depth, height, a, g.a_row, g.a_col, g.packed_a)
    for j from 0 <= j < width by PANEL:
        columns = min(width - j, <Py_ssize_t>PANEL)
        if g.pack_b or columns % VEC_LANES > 0:
            panel, panel_row = g.packed_b + j * depth, PANEL
        else:
            panel, panel_row = b + j, g.b_row
        if whole > 0 and g.pack_a:
            tiles_of_product(
                g, first_i, first_j + j, first_k, depth, whole, columns, g.packed_a,
                TILE_ROWS * depth, 1, TILE_ROWS, panel, panel_row, j, g.pack_b,
            )
        elif whole > 0:
            tiles_of_product(
                g, first_i, first_j + j, first_k, depth, whole, columns, a, TILE_ROWS * g.a_row,
                g.a_row, g.a_col, panel, panel_row, j, False,
            )
        if whole < height:
            tiles_of_product(
                g, first_i + whole, first_j + j, first_k, depth, height - whole, columns,
                a + whole * g.a_row, 0, g.a_row, g.a_col, panel, panel_row, j, False,
            )


cdef inline Py_ssize_t even_blocks(Py_ssize_t n, Py_ssize_t most, Py_ssize_t unit) noexcept nogil:
    """A multiple of `unit` that cuts n into as few blocks as `most` does, of about equal size."""
    cdef Py_ssize_t blocks, units = (n + unit - 1) // unit
    if units * unit <= most:  # without a division
        return units * unit
    blocks = (units * unit + most - 1) // most
    return (units + blocks - 1) // blocks * unit


cdef inline bint is_small(Py_ssize_t m, Py_ssize_t n, Py_ssize_t k) noexcept nogil:
    return k * max(m, n) <= SMALL_OPERAND


cdef inline bint suits_wide_tiles(
    Py_ssize_t m, Py_ssize_t n, Py_ssize_t k, Py_ssize_t b_col
) noexcept nogil:
    return is_small(m, n, k) and b_col == 1 and k <= BLOCK_K


cdef inline void gemm(
    Py_ssize_t m, Py_ssize_t n, Py_ssize_t k,
    const real* a, Py_ssize_t a_row, Py_ssize_t a_col,
    const real* b, Py_ssize_t b_row, Py_ssize_t b_col,
    real* c, Py_ssize_t c_row, Ending ending, Py_ssize_t row_length, char* scratch, Ahead* ahead,
) noexcept nogil:
    """C (m, n) = A (m, k) x B (k, n).

    With ROWS and MORE_ROWS, k is any number of rows of `row_length` positions, or one longer than
    BLOCK_K.  One of the strides of A, and one of B, is 1.  `ahead`, unless it is NULL, is asked for
    meanwhile.
    """
    cdef Gemm g
    cdef Py_ssize_t i, j, first_k, depth, width, max_depth, max_height
    cdef bint small = is_small(m, n, k)
    if m == 0 or n == 0:
        return
    if k == 0:
        if ending != MORE_ROWS:
            for i in range(m):
                for j in range(n):
                    c[i * c_row + j] = 0
        return
    if WIDE_ROWS > 0 and ending == REPLACE and suits_wide_tiles(m, n, k, b_col):
        while n >= 2 * PANEL:
            wide_strips(1, m, k, a, 0, a_row, a_col, b, 0, b_row, c, 0, c_row)
            n, b, c = n - 2 * PANEL, b + 2 * PANEL, c + 2 * PANEL
        if n == 0:
            return
    g.m, g.n, g.k = m, n, k
    g.a, g.a_row, g.a_col = a, a_row, a_col
    g.b, g.b_row, g.b_col = b, b_row, b_col
    g.c, g.c_row = c, c_row
    g.ahead = ahead
    g.ending, g.row_length = ending, row_length if ending != REPLACE else k
    g.two_level = g.row_length < SHORT_CHAIN and ending != REPLACE
    g.simple = ending == REPLACE and k <= ONE_BLOCK_K
    # rows of A are read where they lie: their lines are used one after the other, and soon
    g.pack_a = m >= 2 * TILE_ROWS and n >= 4 * PANEL and not small and not (g.simple and a_col == 1)
    g.pack_b = b_col != 1 or (m >= PACK_B_FROM_ROWS and not small)

    max_height = even_blocks(m, BLOCK_M, TILE_ROWS)
    if ending != REPLACE and row_length <= BLOCK_K:
        max_depth = even_blocks(k, BLOCK_K // row_length * row_length, row_length)  # whole rows
    elif m <= STREAM_ROWS and n >= BLOCK_N and b_col == 1 and ending == REPLACE:
        max_depth = even_blocks(k, STREAM_K, 1)  # long pieces of B's rows, each used once or twice
    else:
        max_depth = k if g.simple else even_blocks(k, BLOCK_K, 1)
    g.partial_row = whole_panels(min(n, <Py_ssize_t>BLOCK_N))
    g.packed_b = <real*>scratch
    g.packed_a = g.packed_b + g.partial_row * max_depth
    g.partial = NULL
    if ending != REPLACE and row_length > BLOCK_K:
        g.partial = g.packed_a + max_height * max_depth

    for j from 0 <= j < n by BLOCK_N:
        width = min(n - j, <Py_ssize_t>BLOCK_N)
        for first_k from 0 <= first_k < k by max_depth:
            depth = min(k - first_k, max_depth)
            if g.pack_b:
                i = 0
            else:  # at most the last panel, where its last vector is not whole
                i = width - width % PANEL if width % VEC_LANES > 0 else width
            pack_b(
                depth, width - i, b + first_k * b_row + (j + i) * b_col, b_row, b_col,
                g.packed_b + i * depth,
            )
            for i from 0 <= i < m by max_height:
                block_of_product(&g, i, min(m - i, max_height), j, width, first_k, depth)
