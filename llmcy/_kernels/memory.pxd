# New arrays for other compiled modules; see memory.pyx.

cimport numpy as cnp

cdef cnp.ndarray new_array(int ndim, cnp.npy_intp* dims, int type_number, size_t item_size)
