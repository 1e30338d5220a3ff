# Matrices in panels: packed once, then read from end to end for every token.
#
# Decoding multiplies one to four rows with every matrix of a model, so its speed is that of reading
# them.  A matrix (k, n) is cut into panels of PANEL columns, one after the other, each with its k rows
# side by side; the last one is narrower, in steps of a LINE, and filled up with +0.  A panel's sums
# stay in registers while it is read as one stream: each is a chain in ascending k from +0 (numerics
# contract, section 5), the bits of ``matmul``.

from libc.string cimport memcpy

from llmcy._kernels.types cimport real

cdef extern from "llmcy_panel.h" nogil:
    enum:
        LINE "LLMCY_LINE"
        PANEL "LLMCY_PANEL"
    # out (rows, width) = a (rows, k) x panel (k, width), 1 <= rows <= 4
    void panel_product "llmcy_panel_product"(
        int rows, const real* a, Py_ssize_t a_row, Py_ssize_t k, const real* b, Py_ssize_t width,
        real* out, Py_ssize_t out_row
    )

cdef enum:
    PACKED_AT_ONCE = 16     # rows whose lines stay in the nearest cache while columns become rows


cdef inline Py_ssize_t whole_lines(Py_ssize_t columns) noexcept nogil:
    """The width of that many columns in panels."""
    return (columns + LINE - 1) // LINE * LINE


cdef inline Py_ssize_t panels_of(Py_ssize_t columns) noexcept nogil:
    return (columns + PANEL - 1) // PANEL


cdef inline Py_ssize_t width_of(Py_ssize_t panel, Py_ssize_t columns) noexcept nogil:
    """Columns of a panel, with those that fill it up."""
    return min(whole_lines(columns) - panel * PANEL, <Py_ssize_t>PANEL)


cdef inline void pack_panel(
    const real* b, Py_ssize_t k_step, Py_ssize_t column_step, Py_ssize_t k,
    Py_ssize_t first, Py_ssize_t last, real* out, Py_ssize_t width,
) noexcept nogil:
    """Columns first .. last-1 of b, whose element (k, j) is b[k * k_step + j * column_step].

    They become the first ones of `out` (k, width); the others are left as they are.
    """
    cdef Py_ssize_t start, stop, i, j
    b += first * column_step
    for start from 0 <= start < k by PACKED_AT_ONCE:
        stop = min(start + PACKED_AT_ONCE, k)
        if column_step == 1:
            for i in range(start, stop):
                memcpy(out + i * width, b + i * k_step, (last - first) * sizeof(real))
        else:
            for j in range(last - first):
                for i in range(start, stop):
                    out[i * width + j] = b[i * k_step + j * column_step]
