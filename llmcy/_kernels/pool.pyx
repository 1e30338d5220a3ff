"""The pool of threads every kernel runs on; see ``pool.h``."""

cdef extern from "pool.h" nogil:
    int llmcy_parallel_for(
        chunk_fn fn, void* ctx, Py_ssize_t n, Py_ssize_t grain, size_t scratch_bytes, int n_threads
    )


cdef int parallel_for(
    chunk_fn fn, void* ctx, Py_ssize_t n, Py_ssize_t grain, size_t scratch_bytes, int n_threads
) noexcept nogil:
    return llmcy_parallel_for(fn, ctx, n, grain, scratch_bytes, n_threads)
