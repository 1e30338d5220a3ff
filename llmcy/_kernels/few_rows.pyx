"""Products of one to four rows with a large matrix, which is read once from end to end.

    out[i, j] = fold over k of a[i, k] * b[k, j]   (or b[j, k])      in ascending k, from +0

few_rows.pxd says how.
"""

cimport numpy as cnp

from llmcy._kernels.few_rows cimport few_rows_product
from llmcy._kernels.types cimport real

cnp.import_array()


def few_rows_matmul(
    cnp.ndarray a, cnp.ndarray b, cnp.ndarray out,  # IN (m, k), IN, OUT (m, n)
    Py_ssize_t m, Py_ssize_t n, Py_ssize_t k, bint transpose_b, int n_threads,
):
    """1 <= m <= 4, k >= 1; b is (n, k) with transpose_b."""
    cdef const real* a_data = <const real*>cnp.PyArray_DATA(a)
    cdef const real* b_data = <const real*>cnp.PyArray_DATA(b)
    cdef real* out_data = <real*>cnp.PyArray_DATA(out)
    with nogil:
        few_rows_product(a_data, b_data, out_data, m, n, k, transpose_b, n_threads)
