# Sums along rows, in the contract's order: the only reductions of the row kernels.
#
# A row sum is one chain, acc = +0; acc = acc + x[0]; acc = acc + x[1]; ... in binary64 for both
# scalar types (numerics contract, section 1; contract for float32, rule 2).  A chain cannot be
# split, but the chains of different rows can run side by side, ROWS of them (llmcy_order.h).

from llmcy._kernels.types cimport real

cdef extern from "llmcy_order.h" nogil:
    enum:
        ROWS "LLMCY_ROWS"       # chains side by side
    void _sum_rows "llmcy_sum_rows"(
        const real* x, const real* y, Py_ssize_t rows, Py_ssize_t stride, Py_ssize_t n,
        bint longer, double* sums
    )

cdef enum:
    GRAIN = 16384       # elements below which waking a second thread costs more than it gains


cdef inline Py_ssize_t row_grain(Py_ssize_t width) noexcept nogil:
    """How many rows of `width` elements make a chunk worth a thread."""
    return GRAIN // width + 1 if width > 0 else GRAIN


cdef inline void sum_rows(
    const real* x, Py_ssize_t rows, Py_ssize_t width, double* sums
) noexcept nogil:
    """sums[r] = fold_j x[r, j] for 1 <= rows <= ROWS contiguous rows; sums has ROWS elements."""
    _sum_rows(x, NULL, rows, width, width, False, sums)


cdef inline void dot_rows(
    const real* x, const real* y, Py_ssize_t rows, Py_ssize_t width, double* sums
) noexcept nogil:
    """sums[r] = fold_j (x[r, j] * y[r, j]), as sum_rows; binary32 products are exact in binary64."""
    _sum_rows(x, y, rows, width, width, False, sums)


cdef inline void sum_triangle(
    const real* x, Py_ssize_t rows, Py_ssize_t stride, Py_ssize_t first, double* sums
) noexcept nogil:
    """As sum_rows for rows `stride` elements apart, of which row r has first + r elements."""
    _sum_rows(x, NULL, rows, stride, first, True, sums)


cdef inline void dot_triangle(
    const real* x, const real* y, Py_ssize_t rows, Py_ssize_t stride, Py_ssize_t first, double* sums
) noexcept nogil:
    """As dot_rows for such rows."""
    _sum_rows(x, y, rows, stride, first, True, sums)
