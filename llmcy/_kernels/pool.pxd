# The pool of threads, shared by all kernels of all builds (pool.h says how it works).

ctypedef void (*chunk_fn)(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil

cdef int parallel_for(
    chunk_fn fn, void* ctx, Py_ssize_t n, Py_ssize_t grain, size_t scratch_bytes, int n_threads
) noexcept nogil
