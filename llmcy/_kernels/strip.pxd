# Strips: whole tiles of C, one under the other, along one panel of B (or two).
#
# Each is a function apart.  Inlined into a walk over C, with its many cases, the same tiles lose 5 to
# 10 %: GCC then runs out of registers, and copies or stores sums at the end of every turn.

from llmcy._kernels.tile cimport PANEL, inlined, tile
from llmcy._kernels.types cimport TILE_ROWS, TILE_VECTORS, WIDE_ROWS, real

cdef extern from *:
    """
    #define LLMCY_NOT_INLINED __attribute__((noinline)) void
    #if defined(__GNUC__) && !defined(__clang__)
    #pragma GCC diagnostic ignored "-Wattributes" /* Cython calls all functions of a .pxd inline */
    #endif
    """
    ctypedef void not_inlined "LLMCY_NOT_INLINED"

cdef extern from *:
    """
    #define LLMCY_FAR_PREFETCH(address) __builtin_prefetch(address, 0, 2) /* second-level cache */
    """
    void far_prefetch "LLMCY_FAR_PREFETCH"(const void* address) nogil

cdef enum:
    LINE_BYTES = 64
    LINES_A_TILE = 16       # few enough to be asked for without waiting

# Memory that a later product will read: while this one computes, its way to the cache costs nothing.
cdef struct Ahead:
    const char* at
    const char* end


cdef inline void ask_ahead(Ahead* ahead) noexcept nogil:
    """Ask for some more lines; each time between two tiles."""
    cdef int line
    if ahead.at < ahead.end:
        for line in range(LINES_A_TILE):
            far_prefetch(ahead.at + line * LINE_BYTES)
        ahead.at += LINES_A_TILE * LINE_BYTES


cdef inline inlined _strip(
    const int rows, const int vectors, Py_ssize_t tiles, Py_ssize_t depth,
    const real* a, Py_ssize_t a_next, Py_ssize_t a_row, Py_ssize_t a_col,
    const real* b, Py_ssize_t b_row, real* c, Py_ssize_t c_row, Ahead* ahead,
) noexcept nogil:
    cdef Py_ssize_t i
    for i in range(tiles):
        if ahead != NULL:
            ask_ahead(ahead)
        tile(rows, vectors, False, 0, depth, a, a_row, a_col, b, b_row, NULL, 0, c, c_row, False)
        a += a_next
        c += rows * c_row


cdef inline not_inlined strip_of_tiles(
    Py_ssize_t tiles, Py_ssize_t depth,
    const real* a, Py_ssize_t a_next, Py_ssize_t a_row, Py_ssize_t a_col,
    const real* b, Py_ssize_t b_row, real* c, Py_ssize_t c_row,
) noexcept nogil:
    """C = A x B, tiles a_next apart in A.

    One stride of A is 1: told so, GCC makes no second copy of each loop for it.
    """
    if a_row == 1:
        _strip(TILE_ROWS, TILE_VECTORS, tiles, depth, a, a_next, 1, a_col, b, b_row, c, c_row, NULL)
    else:
        _strip(TILE_ROWS, TILE_VECTORS, tiles, depth, a, a_next, a_row, 1, b, b_row, c, c_row, NULL)


cdef inline not_inlined strip_asking_ahead(
    Py_ssize_t tiles, Py_ssize_t depth, const real* a, Py_ssize_t a_next, Py_ssize_t a_row,
    const real* b, Py_ssize_t b_row, real* c, Py_ssize_t c_row, Ahead* ahead,
) noexcept nogil:
    """The same of rows of A, asking for other memory between the tiles."""
    _strip(TILE_ROWS, TILE_VECTORS, tiles, depth, a, a_next, a_row, 1, b, b_row, c, c_row, ahead)


cdef inline not_inlined strip_of_packed_tiles(
    Py_ssize_t tiles, Py_ssize_t depth, Py_ssize_t length, const real* a, const real* b,
    const real* start, Py_ssize_t start_row, real* c, Py_ssize_t c_row, bint add,
) noexcept nogil:
    """The same of packed panels, whose product is part of a longer one.

    A chain that begins with the partial sums at `start` takes all steps.  Without `start` it begins at
    +0 and takes `length` of the `depth` steps; one after the other joins C, the first only with `add`.
    """
    cdef Py_ssize_t i, k
    cdef bint add_now
    if start != NULL:
        for i in range(tiles):
            tile(
                TILE_ROWS, TILE_VECTORS, False, 0, depth, a, 1, TILE_ROWS, b, PANEL,
                start, start_row, c, c_row, add,
            )
            a += depth * TILE_ROWS
            c += TILE_ROWS * c_row
            start += TILE_ROWS * start_row
        return
    for i in range(tiles):
        add_now = add
        for k from 0 <= k < depth by length:
            tile(
                TILE_ROWS, TILE_VECTORS, False, 0, length, a, 1, TILE_ROWS, b + k * PANEL, PANEL,
                NULL, 0, c, c_row, add_now,
            )
            a += length * TILE_ROWS
            add_now = True
        c += TILE_ROWS * c_row


cdef inline not_inlined _wide_rest(
    int rows, Py_ssize_t depth, const real* a, Py_ssize_t a_row, Py_ssize_t a_col,
    const real* b, Py_ssize_t b_row, real* c, Py_ssize_t c_row,
) noexcept nogil:
    """Fewer than WIDE_ROWS rows."""
    cdef int vectors = 2 * TILE_VECTORS
    if rows == 1:
        tile(1, vectors, False, 0, depth, a, a_row, a_col, b, b_row, NULL, 0, c, c_row, False)
    elif rows == 2:
        tile(2, vectors, False, 0, depth, a, a_row, a_col, b, b_row, NULL, 0, c, c_row, False)
    elif rows == 3:
        tile(3, vectors, False, 0, depth, a, a_row, a_col, b, b_row, NULL, 0, c, c_row, False)
    elif rows == 4:
        tile(4, vectors, False, 0, depth, a, a_row, a_col, b, b_row, NULL, 0, c, c_row, False)
    elif rows == 5:
        tile(5, vectors, False, 0, depth, a, a_row, a_col, b, b_row, NULL, 0, c, c_row, False)


cdef inline inlined _wide_strips(
    Py_ssize_t count, Py_ssize_t rows, Py_ssize_t depth,
    const real* a, Py_ssize_t a_next, Py_ssize_t a_row, Py_ssize_t a_col,
    const real* b, Py_ssize_t b_next, Py_ssize_t b_row, real* c, Py_ssize_t c_next, Py_ssize_t c_row,
) noexcept nogil:
    cdef Py_ssize_t i, tiles = rows // max(WIDE_ROWS, 1), whole = tiles * WIDE_ROWS
    for i in range(count):
        _strip(
            WIDE_ROWS, 2 * TILE_VECTORS, tiles, depth, a, WIDE_ROWS * a_row, a_row, a_col, b, b_row,
            c, c_row, NULL,
        )
        if whole < rows:
            _wide_rest(
                rows - whole, depth, a + whole * a_row, a_row, a_col, b, b_row, c + whole * c_row,
                c_row,
            )
        a += a_next
        b += b_next
        c += c_next


cdef inline not_inlined wide_strips(
    Py_ssize_t count, Py_ssize_t rows, Py_ssize_t depth,
    const real* a, Py_ssize_t a_next, Py_ssize_t a_row, Py_ssize_t a_col,
    const real* b, Py_ssize_t b_next, Py_ssize_t b_row, real* c, Py_ssize_t c_next, Py_ssize_t c_row,
) noexcept nogil:
    """`count` products C = A x B one after the other, each two panels of B wide.

    A is passed over half as often as by other strips.
    """
    if a_row == 1:
        _wide_strips(
            count, rows, depth, a, a_next, 1, a_col, b, b_next, b_row, c, c_next, c_row
        )
    else:
        _wide_strips(
            count, rows, depth, a, a_next, a_row, 1, b, b_next, b_row, c, c_next, c_row
        )
