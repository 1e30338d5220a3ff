# Sums along rows, in the contract's order: the only reductions of the row kernels.
#
# A row sum is one chain, acc = +0; acc = acc + x[0]; acc = acc + x[1]; ... in binary64 for both
# scalar types (numerics contract, section 1; contract for float32, rule 2).  A chain cannot be
# split, but the chains of different rows can run side by side: ROWS of them in registers hide
# the latency of the additions.

from llmcy._kernels.types cimport real

cdef enum:
    ROWS = 8            # chains side by side
    GRAIN = 16384       # elements below which waking a second thread costs more than it gains


cdef inline Py_ssize_t row_grain(Py_ssize_t width) noexcept nogil:
    """How many rows of `width` elements make a chunk worth a thread."""
    return GRAIN // width + 1 if width > 0 else GRAIN


cdef inline void sum_rows(
    const real* x, Py_ssize_t rows, Py_ssize_t width, double* sums
) noexcept nogil:
    """sums[r] = fold_j x[r, j] for rows <= ROWS contiguous rows."""
    cdef double acc[ROWS]
    cdef Py_ssize_t r, j
    if rows == ROWS:
        for r in range(ROWS):
            acc[r] = 0.0
        for j in range(width):
            for r in range(ROWS):
                acc[r] = acc[r] + <double>x[r * width + j]
        for r in range(ROWS):
            sums[r] = acc[r]
    else:
        for r in range(rows):
            acc[0] = 0.0
            for j in range(width):
                acc[0] = acc[0] + <double>x[r * width + j]
            sums[r] = acc[0]


cdef inline void dot_rows(
    const real* x, const real* y, Py_ssize_t rows, Py_ssize_t width, double* sums
) noexcept nogil:
    """sums[r] = fold_j (x[r, j] * y[r, j]); a binary32 product is exact in binary64."""
    cdef double acc[ROWS]
    cdef Py_ssize_t r, j
    if rows == ROWS:
        for r in range(ROWS):
            acc[r] = 0.0
        for j in range(width):
            for r in range(ROWS):
                acc[r] = acc[r] + <double>x[r * width + j] * <double>y[r * width + j]
        for r in range(ROWS):
            sums[r] = acc[r]
    else:
        for r in range(rows):
            acc[0] = 0.0
            for j in range(width):
                acc[0] = acc[0] + <double>x[r * width + j] * <double>y[r * width + j]
            sums[r] = acc[0]
