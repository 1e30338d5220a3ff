# The blocked matrix product of one thread: panels of A and B, tiles of C (tile.pxd).
#
# Element (i, k) of A is a[i * a_row + k * a_col]; (k, j) of B is b[k * b_row + j * b_col]; C is
# row-major with c_row elements between rows.  A sum over k that is cut into blocks is one chain
# still, because the partial sums are reloaded as accumulators (numerics contract, section 14).

from llmcy._kernels.tile cimport PANEL, any_tile, any_two_level_tile, packed_tile
from llmcy._kernels.types cimport TILE_ROWS, TILE_VECTORS, VEC_LANES, real, vec_load, vec_store

cdef extern from *:
    """
    /* binary64 has the longer chains for which two accumulators an element still pay */
    #define LLMCY_SHORT_CHAIN (LLMCY_IS_F32 ? 32 : 96)
    """
    enum:
        SHORT_CHAIN "LLMCY_SHORT_CHAIN"  # rows of fewer positions keep C in registers over all rows

cdef enum:
    # A panel of B, BLOCK_K deep, stays in the first-level cache while it meets BLOCK_M rows of A,
    # which stay in the second level.
    BLOCK_K = 512
    BLOCK_M = 96
    BLOCK_N = 1024
    SMALL_OPERAND = 10000     # elements; so few stay in cache and are read where they lie
    STREAM_ROWS = 2           # so few rows of A meet a wide B in shallow blocks
    STREAM_K = 16
    PACK_PANELS = 4           # panels of B packed side by side
    PACK_B_FROM_ROWS = 48     # fewer rows of A than this do not pay for packing B

# How the chains of C begin and end.
cdef enum Ending:
    REPLACE                   # C = product
    CARRY                     # the chains in C go on
    ADD_ROWS                  # C = C + product of row 0, then + product of row 1, ...


cdef inline Py_ssize_t whole_panels(Py_ssize_t columns) noexcept nogil:
    """columns, rounded up to a multiple of PANEL."""
    return (columns + PANEL - 1) // PANEL * PANEL


cdef inline void pack_b_panel(
    Py_ssize_t depth, Py_ssize_t columns, const real* b, Py_ssize_t b_row, Py_ssize_t b_col,
    real* panel,
) noexcept nogil:
    """panel (depth, PANEL) = b (depth, columns), columns <= PANEL; the rest is filled with zeros.

    One of the two strides of b is 1.
    """
    cdef Py_ssize_t k, j, kk, jj
    cdef real* square
    cdef const real* line
    if columns < PANEL:
        for k in range(depth):
            for j in range(columns, PANEL):
                panel[k * PANEL + j] = 0
    if b_col == 1:
        for k in range(depth):
            for j in range(columns):
                panel[k * PANEL + j] = b[k * b_row + j]
        return
    # b_row is 1: squares of 8 x 8, so that both sides use whole cache lines
    for j from 0 <= j < columns by 8:
        for k from 0 <= k < depth by 8:
            square = panel + k * PANEL + j
            line = b + j * b_col + k
            if columns - j >= 8 and depth - k >= 8:
                for jj in range(8):
                    for kk in range(8):
                        square[kk * PANEL + jj] = line[jj * b_col + kk]
            else:
                for kk in range(min(depth - k, <Py_ssize_t>8)):
                    for jj in range(min(columns - j, <Py_ssize_t>8)):
                        square[kk * PANEL + jj] = line[jj * b_col + kk]


cdef inline void pack_b(
    Py_ssize_t depth, Py_ssize_t columns, const real* b, Py_ssize_t b_row, Py_ssize_t b_col,
    real* packed,
) noexcept nogil:
    """Panel after panel of b (depth, columns), each (depth, PANEL)."""
    cdef Py_ssize_t j = 0, k
    cdef int p, v
    if b_col == 1:  # some panels side by side, so that a row is read in long pieces
        while j + PACK_PANELS * PANEL <= columns:
            for k in range(depth):
                for p in range(PACK_PANELS):
                    for v in range(TILE_VECTORS):
                        vec_store(
                            packed + (j + p * PANEL) * depth + k * PANEL + v * VEC_LANES,
                            vec_load(b + k * b_row + j + p * PANEL + v * VEC_LANES),
                        )
            j += PACK_PANELS * PANEL
    while j < columns:
        pack_b_panel(
            depth, min(columns - j, <Py_ssize_t>PANEL), b + j * b_col, b_row, b_col,
            packed + j * depth,
        )
        j += PANEL


cdef inline void pack_a(
    Py_ssize_t depth, const real* a, Py_ssize_t a_row, Py_ssize_t a_col, real* panel
) noexcept nogil:
    """panel (depth, TILE_ROWS) = the transpose of TILE_ROWS rows of a."""
    cdef Py_ssize_t k
    cdef int i
    if a_row == 1:
        for k in range(depth):
            for i in range(TILE_ROWS):
                panel[k * TILE_ROWS + i] = a[k * a_col + i]
    else:
        for k in range(depth):
            for i in range(TILE_ROWS):
                panel[k * TILE_ROWS + i] = a[i * a_row + k * a_col]


cdef inline size_t gemm_scratch(Py_ssize_t m, Py_ssize_t n, Py_ssize_t k, bint add_rows) noexcept nogil:
    """Bytes of scratch that `gemm` needs for any product up to this size."""
    cdef size_t depth = min(k, <Py_ssize_t>BLOCK_K)
    cdef size_t height = min(m, <Py_ssize_t>BLOCK_M) + TILE_ROWS
    cdef size_t width = whole_panels(min(n, <Py_ssize_t>BLOCK_N))
    cdef size_t partial = m * width if add_rows and k > BLOCK_K else 0
    return ((height + width) * depth + partial) * sizeof(real)


cdef inline void gemm(
    Py_ssize_t m, Py_ssize_t n, Py_ssize_t k,
    const real* a, Py_ssize_t a_row, Py_ssize_t a_col,
    const real* b, Py_ssize_t b_row, Py_ssize_t b_col,
    real* c, Py_ssize_t c_row, Ending ending, Py_ssize_t row_length, char* scratch,
) noexcept nogil:
    """C (m, n) = A (m, k) x B (k, n).

    With ADD_ROWS the k steps are rows of `row_length` positions; either that is k, or
    it is less than SHORT_CHAIN (and k a multiple of it).
    """
    cdef Py_ssize_t jc, pc, ic, j, i, width, depth, height, panel_row, start_row
    cdef Py_ssize_t max_depth, max_height, tiles, blocks, tile_row, tile_col, goal_row
    cdef Py_ssize_t partial_row = whole_panels(min(n, <Py_ssize_t>BLOCK_N))
    cdef real* packed_b = <real*>scratch
    cdef real* packed_a
    cdef real* partial
    cdef const real* block
    cdef const real* panel
    cdef const real* rows_of_a
    cdef const real* start
    cdef real* corner
    cdef real* goal
    cdef int columns, rows
    cdef bint small = a_col == 1 and k * max(m, n) <= SMALL_OPERAND
    cdef bint pack_all_b = b_col != 1 or (m >= PACK_B_FROM_ROWS and not small)
    cdef bint pack_all_a = m >= 2 * TILE_ROWS and n >= 4 * PANEL and not small
    cdef bint short_rows = ending == ADD_ROWS and row_length < SHORT_CHAIN
    cdef bint last, add
    if m == 0 or n == 0:
        return
    if k == 0:
        if ending == REPLACE:
            for i in range(m):
                for j in range(n):
                    c[i * c_row + j] = 0
        return
    # blocks of about equal height, each a whole number of tiles
    tiles = (m + TILE_ROWS - 1) // TILE_ROWS
    blocks = (tiles * TILE_ROWS + BLOCK_M - 1) // BLOCK_M
    max_height = (tiles + blocks - 1) // blocks * TILE_ROWS
    if short_rows:
        max_depth = min(BLOCK_K // row_length * row_length, k)
    else:
        max_depth = BLOCK_K
        if m <= STREAM_ROWS and n >= BLOCK_N and b_col == 1 and ending != ADD_ROWS:
            max_depth = STREAM_K  # B is used once or twice only: read its long rows in long pieces
        blocks = (k + max_depth - 1) // max_depth
        max_depth = (k + blocks - 1) // blocks
    packed_a = packed_b + partial_row * max_depth
    partial = packed_a + max_height * max_depth
    for jc from 0 <= jc < n by BLOCK_N:
        width = min(n - jc, <Py_ssize_t>BLOCK_N)
        for pc from 0 <= pc < k by max_depth:
            depth = min(k - pc, max_depth)
            last = pc + depth == k
            if pack_all_b:
                pack_b(depth, width, b + pc * b_row + jc * b_col, b_row, b_col, packed_b)
            elif width % PANEL:
                j = width - width % PANEL
                pack_b(depth, width - j, b + pc * b_row + jc + j, b_row, 1, packed_b + j * depth)
            for ic from 0 <= ic < m by max_height:
                height = min(m - ic, max_height)
                block = a + ic * a_row + pc * a_col
                if pack_all_a:
                    for i from 0 <= i <= height - TILE_ROWS by TILE_ROWS:
                        pack_a(depth, block + i * a_row, a_row, a_col, packed_a + i * depth)
                for j from 0 <= j < width by PANEL:
                    columns = min(width - j, <Py_ssize_t>PANEL)
                    if pack_all_b or columns < PANEL:
                        panel = packed_b + j * depth
                        panel_row = PANEL
                    else:
                        panel = b + pc * b_row + jc + j
                        panel_row = b_row
                    for i from 0 <= i < height by TILE_ROWS:
                        rows = min(height - i, <Py_ssize_t>TILE_ROWS)
                        corner = c + (ic + i) * c_row + jc + j
                        if pack_all_a and rows == TILE_ROWS:
                            rows_of_a, tile_row, tile_col = packed_a + i * depth, 1, TILE_ROWS
                        else:
                            rows_of_a, tile_row, tile_col = block + i * a_row, a_row, a_col
                        if short_rows:
                            any_two_level_tile(
                                rows, columns, depth // row_length, row_length,
                                rows_of_a, tile_row, tile_col, panel, panel_row, corner, c_row,
                            )
                            continue
                        start = corner if ending == CARRY or (ending == REPLACE and pc > 0) else NULL
                        start_row = c_row
                        goal, goal_row, add = corner, c_row, False
                        if ending == ADD_ROWS:
                            # an unfinished chain waits apart from the sum it will be added to
                            if pc > 0:
                                start, start_row = partial + (ic + i) * partial_row + j, partial_row
                            if last:
                                add = True
                            else:
                                goal, goal_row = partial + (ic + i) * partial_row + j, partial_row
                        if pack_all_a and rows == TILE_ROWS and columns == PANEL and panel_row == PANEL:
                            packed_tile(depth, rows_of_a, panel, start, start_row, goal, goal_row, add)
                        else:
                            any_tile(
                                rows, columns, depth, rows_of_a, tile_row, tile_col,
                                panel, panel_row, start, start_row, goal, goal_row, add,
                            )
