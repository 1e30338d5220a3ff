"""What the processor can do at most: multiply-adds that never leave registers, reading memory.

``multiply_adds``  acc[i][v] = acc[i][v] + x * row[v], one tile of the matrix product, again and again
``read_all``       every byte of an array is loaded once

These are yardsticks for `llmcy bench`; nothing that is trained or stored comes from here.  The sums
of `read_all` are spread over several accumulators, which no other kernel may do.
"""

cimport numpy as cnp

from llmcy._kernels.pool cimport parallel_for
from llmcy._kernels.types cimport (
    TILE_ROWS, TILE_VECTORS, VEC_LANES, real, vec, vec_load, vec_mul_add, vec_store, vec_zero,
)

cnp.import_array()

cdef extern from *:
    """
    /* The compiler must believe that a register has changed: products are then computed anew. */
    #if defined(__x86_64__)
    #define LLMCY_OPAQUE(v) __asm__ volatile("" : "+x"(v))
    #elif defined(__aarch64__)
    #define LLMCY_OPAQUE(v) __asm__ volatile("" : "+w"(v))
    #else
    #define LLMCY_OPAQUE(v) __asm__ volatile("" : "+m"(v))
    #endif
    """
    void opaque "LLMCY_OPAQUE"(vec v) nogil

cdef enum:
    READERS = 8     # accumulators of read_all

cdef struct Job:
    Py_ssize_t repeats
    real x
    const real* row     # (TILE_VECTORS * VEC_LANES,)
    const real* values  # (n,) of read_all
    Py_ssize_t n
    Py_ssize_t parts
    real* out           # (parts, TILE_VECTORS * VEC_LANES)


cdef void _multiply_adds(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef Py_ssize_t repeats = job.repeats, part, step
    cdef real x = job.x
    cdef vec row[TILE_VECTORS]
    cdef vec acc[TILE_ROWS * TILE_VECTORS]
    cdef vec total
    cdef int i, v
    for part in range(lo, hi):
        for v in range(TILE_VECTORS):
            row[v] = vec_load(job.row + v * VEC_LANES)
        for i in range(TILE_ROWS * TILE_VECTORS):
            acc[i] = vec_zero()
        for step in range(repeats):
            for i in range(TILE_ROWS):
                for v in range(TILE_VECTORS):
                    opaque(row[v])
                    acc[i * TILE_VECTORS + v] = vec_mul_add(x, row[v], acc[i * TILE_VECTORS + v])
        for v in range(TILE_VECTORS):
            total = vec_zero()
            for i in range(TILE_ROWS):
                total = total + acc[i * TILE_VECTORS + v]
            vec_store(job.out + (part * TILE_VECTORS + v) * VEC_LANES, total)


cdef void _read_all(void* ctx, Py_ssize_t lo, Py_ssize_t hi, char* scratch) noexcept nogil:
    cdef Job* job = <Job*>ctx
    cdef const real* values
    cdef vec acc[READERS]
    cdef Py_ssize_t part, start, stop, j, step = READERS * VEC_LANES
    cdef int i
    for part in range(lo, hi):
        start = job.n // job.parts * part
        stop = start + job.n // job.parts
        values = job.values
        for i in range(READERS):
            acc[i] = vec_zero()
        for j from start <= j <= stop - step by step:
            for i in range(READERS):
                acc[i] = acc[i] + vec_load(values + j + i * VEC_LANES)
        for i in range(1, READERS):
            acc[0] = acc[0] + acc[i]
        vec_store(job.out + part * TILE_VECTORS * VEC_LANES, acc[0])


def tile_width():
    """Reals in a row of the register tile."""
    return TILE_VECTORS * VEC_LANES


def multiply_adds(
    cnp.ndarray row,            # IN  (tile_width(),)
    cnp.ndarray out,            # OUT (n_threads, tile_width())
    double x,
    Py_ssize_t repeats,
    int n_threads,
):
    """Each thread does `repeats` passes over its tile; returns the operations of all threads."""
    cdef Job job
    job.row = <const real*>cnp.PyArray_DATA(row)
    job.out = <real*>cnp.PyArray_DATA(out)
    job.x = <real>x
    job.repeats = repeats
    with nogil:
        parallel_for(_multiply_adds, &job, n_threads, 1, 0, n_threads)
    return 2.0 * TILE_ROWS * TILE_VECTORS * VEC_LANES * repeats * n_threads


def read_all(
    cnp.ndarray values,         # IN  (n,)
    cnp.ndarray out,            # OUT (n_threads, tile_width())
    int n_threads,
):
    """Each thread reads its part of the values."""
    cdef Job job
    job.values = <const real*>cnp.PyArray_DATA(values)
    job.n = cnp.PyArray_SIZE(values)
    job.parts = n_threads
    job.out = <real*>cnp.PyArray_DATA(out)
    with nogil:
        parallel_for(_read_all, &job, n_threads, 1, 0, n_threads)
