# Sums along rows, in the contract's order: the only reductions of the row kernels.
#
# A row sum is one chain, acc = +0; acc = acc + x[0]; acc = acc + x[1]; ... in binary64 for both
# scalar types (numerics contract, section 1; contract for float32, rule 2).  A chain cannot be
# split, but the chains of different rows can run side by side, ROWS of them (llmcy_order.h).  What
# is added is prepared beforehand, a tile of ROWS x TILE binary64 numbers at a time.

from libc.string cimport memset

from llmcy._kernels.types cimport IS_F32, real

cdef extern from "llmcy_order.h" nogil:
    enum:
        ROWS "LLMCY_ROWS"       # chains side by side
    # sums[r] = ((sums[r] + x[r, 0]) + x[r, 1]) + ... for ROWS rows
    void continue_chains "llmcy_continue_chains"(
        const double* x, Py_ssize_t stride, Py_ssize_t n, double* sums
    )

cdef enum:
    TILE = 64           # a tile is 4 KiB: it stays in the first-level cache
    GRAIN = 16384       # elements below which waking a second thread costs more than it gains


cdef inline Py_ssize_t row_grain(Py_ssize_t width) noexcept nogil:
    """How many rows of `width` elements make a chunk worth a thread."""
    return GRAIN // width + 1 if width > 0 else GRAIN


cdef inline void sum_rows(
    const real* x, Py_ssize_t rows, Py_ssize_t width, double* sums
) noexcept nogil:
    """sums[r] = fold_j x[r, j] for rows <= ROWS contiguous rows; sums has ROWS elements."""
    cdef double tile[ROWS * TILE]
    cdef Py_ssize_t r, j, start, n
    for r in range(ROWS):
        sums[r] = 0.0
    if not IS_F32 and rows == ROWS:
        continue_chains(<const double*>x, width, width, sums)
        return
    if rows < ROWS:
        memset(tile, 0, sizeof(tile))
    for start from 0 <= start < width by TILE:
        n = min(width - start, TILE)
        for r in range(rows):
            for j in range(n):
                tile[r * TILE + j] = <double>x[r * width + start + j]
        continue_chains(tile, TILE, n, sums)


cdef inline void dot_rows(
    const real* x, const real* y, Py_ssize_t rows, Py_ssize_t width, double* sums
) noexcept nogil:
    """sums[r] = fold_j (x[r, j] * y[r, j]), as sum_rows; binary32 products are exact in binary64."""
    cdef double tile[ROWS * TILE]
    cdef Py_ssize_t r, j, start, n
    for r in range(ROWS):
        sums[r] = 0.0
    if rows < ROWS:
        memset(tile, 0, sizeof(tile))
    for start from 0 <= start < width by TILE:
        n = min(width - start, TILE)
        for r in range(rows):
            for j in range(n):
                tile[r * TILE + j] = (
                    <double>x[r * width + start + j] * <double>y[r * width + start + j]
                )
        continue_chains(tile, TILE, n, sums)
