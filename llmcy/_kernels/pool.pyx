"""The pool of threads every kernel runs on; see ``pool.h``."""

cdef extern from "pool.h" nogil:
    int llmcy_parallel_for(
        chunk_fn fn, void* ctx, Py_ssize_t n, Py_ssize_t grain, size_t scratch_bytes, int n_threads
    )
    bint llmcy_set_smallest_chunks(bint on)


cdef int parallel_for(
    chunk_fn fn, void* ctx, Py_ssize_t n, Py_ssize_t grain, size_t scratch_bytes, int n_threads
) noexcept nogil:
    return llmcy_parallel_for(fn, ctx, n, grain, scratch_bytes, n_threads)


def set_smallest_chunks(bint on) -> bool:
    """Share out even the smallest work (for tests); the former setting is returned."""
    return llmcy_set_smallest_chunks(on)
