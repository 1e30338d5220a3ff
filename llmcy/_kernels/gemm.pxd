# A blocked matrix product whose every output element is one chain in ascending k.
#
# Three storeys: `tile` keeps a small rectangle of C in registers and runs along k; `gemm` walks
# over C in tiles, with operands packed into panels; callers (matmul.pyx, attention.pyx) cut C into
# independent parts, one thread each.  Lanes and tiles lie across outputs, never along k, and a k cut
# into blocks is one chain still, because the partial sums are reloaded as accumulators (numerics
# contract, section 14).
#
# Strides: element (i, k) of A is a[i * a_row + k * a_col]; (k, j) of B is b[k * b_row + j * b_col];
# C is row-major with c_row elements between rows.

from libc.string cimport memcpy

from llmcy._kernels.types cimport (
    TILE_ROWS, TILE_VECTORS, VEC_LANES, mul_add, real, vec, vec_load, vec_mul_add, vec_store,
    vec_zero,
)

cdef extern from *:
    """
    /* the loops of a tile have constant bounds only once it is inlined into its callers */
    #define LLMCY_INLINED __attribute__((always_inline)) void
    """
    ctypedef void inlined "LLMCY_INLINED"

cdef enum:
    PANEL = TILE_VECTORS * VEC_LANES  # columns of a packed panel of B
    BLOCK_K = 256                     # a panel of B of this depth stays in the first-level cache,
    BLOCK_M = 96                      # a block of A of this height in the second level
    BLOCK_N = 1024
    PACK_B_ROWS = 48                  # fewer rows of A than this do not pay for packing B


# ---- one tile --------------------------------------------------------------------------------
cdef inline inlined tile(
    const int rows, const int vectors, const bint part, int lanes, Py_ssize_t depth,
    const real* a, Py_ssize_t a_row, Py_ssize_t a_col, const real* b, Py_ssize_t b_row,
    real* c, Py_ssize_t c_row, bint carry, bint add,
) noexcept nogil:
    """C (rows, vectors) from `depth` steps of k.

    The chains start at +0, or at C with `carry`; the result replaces C, or with `add` is added to
    it once it is finished.  With `part` only `lanes` columns of the last vector are C's.
    """
    cdef vec acc[TILE_ROWS][TILE_VECTORS]
    cdef vec row[TILE_VECTORS]
    cdef real edge[VEC_LANES]
    cdef Py_ssize_t k
    cdef int i, v
    cdef real x
    for i in range(rows):
        for v in range(vectors):
            acc[i][v] = vec_zero()
    if carry:
        for i in range(rows):
            for v in range(vectors - part):
                acc[i][v] = vec_load(c + i * c_row + v * VEC_LANES)
            if part:
                vec_store(edge, vec_zero())
                for v in range(lanes):
                    edge[v] = c[i * c_row + (vectors - 1) * VEC_LANES + v]
                acc[i][vectors - 1] = vec_load(edge)
    for k in range(depth):
        for v in range(vectors):
            row[v] = vec_load(b + v * VEC_LANES)
        for i in range(rows):
            x = a[i * a_row]
            for v in range(vectors):
                acc[i][v] = vec_mul_add(x, row[v], acc[i][v])
        a += a_col
        b += b_row
    for i in range(rows):
        if add:
            for v in range(vectors - part):
                acc[i][v] = vec_load(c + i * c_row + v * VEC_LANES) + acc[i][v]
        for v in range(vectors - part):
            vec_store(c + i * c_row + v * VEC_LANES, acc[i][v])
        if part:
            vec_store(edge, acc[i][vectors - 1])
            for v in range(lanes):
                if add:
                    edge[v] = c[i * c_row + (vectors - 1) * VEC_LANES + v] + edge[v]
                c[i * c_row + (vectors - 1) * VEC_LANES + v] = edge[v]


cdef inline void tile_packed(
    Py_ssize_t depth, const real* a, const real* b, real* c, Py_ssize_t c_row, bint carry, bint add,
) noexcept nogil:
    """A whole tile from packed panels: every stride but C's is a constant."""
    tile(TILE_ROWS, TILE_VECTORS, False, 0, depth, a, 1, TILE_ROWS, b, PANEL, c, c_row, carry, add)


cdef inline inlined tile_of_rows(
    int rows, const int vectors, const bint part, int lanes, Py_ssize_t depth,
    const real* a, Py_ssize_t a_row, Py_ssize_t a_col, const real* b, Py_ssize_t b_row,
    real* c, Py_ssize_t c_row, bint carry, bint add,
) noexcept nogil:
    """`tile` for a number of rows known only at run time, 1 to TILE_ROWS."""
    if rows == TILE_ROWS:
        tile(TILE_ROWS, vectors, part, lanes, depth, a, a_row, a_col, b, b_row, c, c_row, carry, add)
    elif rows == 1:
        tile(1, vectors, part, lanes, depth, a, a_row, a_col, b, b_row, c, c_row, carry, add)
    elif rows == 2:
        tile(2, vectors, part, lanes, depth, a, a_row, a_col, b, b_row, c, c_row, carry, add)
    elif rows == 3:
        tile(3, vectors, part, lanes, depth, a, a_row, a_col, b, b_row, c, c_row, carry, add)
    elif TILE_ROWS > 4 and rows == 4:
        tile(4, vectors, part, lanes, depth, a, a_row, a_col, b, b_row, c, c_row, carry, add)
    elif TILE_ROWS > 4 and rows == 5:
        tile(5, vectors, part, lanes, depth, a, a_row, a_col, b, b_row, c, c_row, carry, add)
    elif TILE_ROWS > 6 and rows == 6:
        tile(6, vectors, part, lanes, depth, a, a_row, a_col, b, b_row, c, c_row, carry, add)
    elif TILE_ROWS > 6 and rows == 7:
        tile(7, vectors, part, lanes, depth, a, a_row, a_col, b, b_row, c, c_row, carry, add)


cdef inline void tile_strided(
    int rows, int columns, Py_ssize_t depth,
    const real* a, Py_ssize_t a_row, Py_ssize_t a_col, const real* b, Py_ssize_t b_row,
    real* c, Py_ssize_t c_row, bint carry, bint add,
) noexcept nogil:
    """A tile of any size up to (TILE_ROWS, PANEL).

    Rows of b are contiguous; where `columns` is less than PANEL they must be readable, whatever
    they hold, up to the next whole vector.
    """
    cdef int j
    if columns == PANEL:
        tile_of_rows(
            rows, TILE_VECTORS, False, 0, depth, a, a_row, a_col, b, b_row, c, c_row, carry, add
        )
        return
    for j from 0 <= j < columns by VEC_LANES:
        if columns - j >= VEC_LANES:
            tile_of_rows(
                rows, 1, False, 0, depth, a, a_row, a_col, b + j, b_row, c + j, c_row, carry, add
            )
        else:
            tile_of_rows(
                rows, 1, True, columns - j, depth, a, a_row, a_col, b + j, b_row, c + j, c_row,
                carry, add,
            )


# ---- panels ----------------------------------------------------------------------------------
cdef inline void pack_b(
    Py_ssize_t depth, Py_ssize_t columns, const real* b, Py_ssize_t b_row, Py_ssize_t b_col,
    real* panel,
) noexcept nogil:
    """panel (depth, PANEL) = b (depth, columns), columns <= PANEL; the rest is filled with zeros."""
    cdef Py_ssize_t k, j, kk, jj
    cdef int v
    if b_col == 1 and columns == PANEL:
        for k in range(depth):
            for v in range(TILE_VECTORS):
                vec_store(panel + k * PANEL + v * VEC_LANES, vec_load(b + k * b_row + v * VEC_LANES))
        return
    if columns < PANEL:
        for k in range(depth):
            for j in range(columns, PANEL):
                panel[k * PANEL + j] = 0
    if b_col == 1:
        for k in range(depth):
            for j in range(columns):
                panel[k * PANEL + j] = b[k * b_row + j]
        return
    # squares of 8 x 8, so that both sides use whole cache lines
    for j from 0 <= j < columns by 8:
        for k from 0 <= k < depth by 8:
            if columns - j >= 8 and depth - k >= 8:
                for jj in range(8):
                    for kk in range(8):
                        panel[(k + kk) * PANEL + j + jj] = b[(j + jj) * b_col + (k + kk) * b_row]
            else:
                for jj in range(j, min(j + 8, columns)):
                    for kk in range(k, min(k + 8, depth)):
                        panel[kk * PANEL + jj] = b[jj * b_col + kk * b_row]


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


cdef inline Py_ssize_t panels(Py_ssize_t columns) noexcept nogil:
    return (columns + PANEL - 1) // PANEL


cdef inline size_t gemm_scratch(Py_ssize_t m, Py_ssize_t n, Py_ssize_t k) noexcept nogil:
    """Bytes of scratch that `gemm` needs for any product up to this size."""
    cdef size_t depth = min(k, BLOCK_K)
    cdef size_t height = min(m + TILE_ROWS, BLOCK_M + TILE_ROWS)
    return (height + panels(min(n, BLOCK_N)) * PANEL) * depth * sizeof(real)


# ---- the product -----------------------------------------------------------------------------
cdef inline void gemm(
    Py_ssize_t m, Py_ssize_t n, Py_ssize_t k,
    const real* a, Py_ssize_t a_row, Py_ssize_t a_col,
    const real* b, Py_ssize_t b_row, Py_ssize_t b_col,
    real* c, Py_ssize_t c_row, bint carry, bint add, char* scratch,
) noexcept nogil:
    """C (m, n) = A (m, k) x B (k, n), on one thread.

    `carry` continues the chains that are in C.  `add` adds the finished product to C; k must then
    fit one block (k <= BLOCK_K).
    """
    cdef real* packed_b = <real*>scratch
    cdef real* packed_a
    cdef const real* block
    cdef const real* panel
    cdef Py_ssize_t jc, pc, ic, j, i, width, depth, height, panel_row, block_rows
    cdef int columns, rows
    cdef bint pack_all_b = b_col != 1 or m >= PACK_B_ROWS
    cdef bint pack_all_a = m >= 2 * TILE_ROWS and n >= 4 * PANEL and (
        a_row == 1 or a_row * <Py_ssize_t>sizeof(real) >= 2048
    )
    if k == 0:
        if not carry and not add:
            for i in range(m):
                for j in range(n):
                    c[i * c_row + j] = 0
        return
    # blocks of equal height, each a whole number of tiles
    block_rows = (m + TILE_ROWS - 1) // TILE_ROWS
    i = (block_rows * TILE_ROWS + BLOCK_M - 1) // BLOCK_M
    block_rows = (block_rows + i - 1) // i * TILE_ROWS if i else TILE_ROWS
    packed_a = packed_b + panels(min(n, <Py_ssize_t>BLOCK_N)) * PANEL * min(k, <Py_ssize_t>BLOCK_K)
    for jc from 0 <= jc < n by BLOCK_N:
        width = min(n - jc, <Py_ssize_t>BLOCK_N)
        for pc from 0 <= pc < k by BLOCK_K:
            depth = min(k - pc, <Py_ssize_t>BLOCK_K)
            for j from 0 <= j < width by PANEL:
                columns = min(width - j, <Py_ssize_t>PANEL)
                if pack_all_b or columns < PANEL:
                    pack_b(
                        depth, columns, b + pc * b_row + (jc + j) * b_col, b_row, b_col,
                        packed_b + j * depth,
                    )
            for ic from 0 <= ic < m by block_rows:
                height = min(m - ic, block_rows)
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
                        if pack_all_a and rows == TILE_ROWS:
                            if panel_row == PANEL and columns == PANEL:
                                tile_packed(
                                    depth, packed_a + i * depth, panel,
                                    c + (ic + i) * c_row + jc + j, c_row, carry or pc > 0, add,
                                )
                            else:
                                tile_strided(
                                    rows, columns, depth, packed_a + i * depth, 1, TILE_ROWS,
                                    panel, panel_row,
                                    c + (ic + i) * c_row + jc + j, c_row, carry or pc > 0, add,
                                )
                        else:
                            tile_strided(
                                rows, columns, depth, block + i * a_row, a_row, a_col,
                                panel, panel_row,
                                c + (ic + i) * c_row + jc + j, c_row, carry or pc > 0, add,
                            )
