# The part that softmax and the loss share: exponentials of a row below its maximum, and their tail.
#
#     M = max_j x[j],  e[j] = exp(x[j] - M),
#     tail = fold_j e[j], leaving out the first entry whose x[j] - M is zero
#
# (numerics contract, section 6).  Leaving an entry out and adding +0 for it are the same: the sum
# is never -0.  Elements are of the build's scalar type, the tail is a binary64 chain.

from llmcy._kernels.cr_math cimport cr_exp_block_below
from llmcy._kernels.order cimport ROWS, sum_rows, sum_triangle
from llmcy._kernels.types cimport is_finite_real, real

cdef extern from "llmcy_maximum.h" nogil:
    real row_max "llmcy_row_max"(const real* x, Py_ssize_t n)
    Py_ssize_t first_equal "llmcy_first_equal"(const real* x, real value, Py_ssize_t n)


cdef inline Py_ssize_t exponentials(
    const real* x, real* e, Py_ssize_t n, real* top
) noexcept nogil:
    """Fill e; give M and the index of the entry that the tail leaves out, or -1 for none.

    An infinite maximum is not left out: infinity minus itself is no zero, and the row is NaN.
    """
    cdef real M = row_max(x, n)
    cr_exp_block_below(x, M, e, n)
    top[0] = M
    return first_equal(x, M, n) if is_finite_real(M) else -1


cdef inline void exponential_rows(
    const real* x, Py_ssize_t rows, Py_ssize_t n, real* e, real* tops, double* tails
) noexcept nogil:
    """Exponentials, maxima and tails of 1 <= rows <= ROWS contiguous rows of n >= 1 values."""
    _rows(x, rows, n, n, False, e, tops, tails)


cdef inline void exponential_triangle(
    const real* x, Py_ssize_t rows, Py_ssize_t stride, Py_ssize_t first,
    real* e, real* tops, double* tails
) noexcept nogil:
    """As exponential_rows for rows `stride` apart, of which row r has first + r >= 1 values."""
    _rows(x, rows, stride, first, True, e, tops, tails)


cdef inline void _rows(
    const real* x, Py_ssize_t rows, Py_ssize_t stride, Py_ssize_t n, bint longer,
    real* e, real* tops, double* tails
) noexcept nogil:
    cdef Py_ssize_t left_out[ROWS]
    cdef Py_ssize_t r, at
    for r in range(rows):
        at = r * stride
        left_out[r] = exponentials(x + at, e + at, n + r if longer else n, &tops[r])
        if left_out[r] >= 0:
            e[at + left_out[r]] = 0
    if longer:
        sum_triangle(e, rows, stride, n, tails)
    else:
        sum_rows(e, rows, n, tails)
    for r in range(rows):
        if left_out[r] >= 0:
            e[r * stride + left_out[r]] = 1
