"""What kernels rely on, asked of an array in one call; ``llmcy/_check.py`` explains a refusal."""

cimport numpy as cnp

cnp.import_array()

cdef enum:
    READABLE = cnp.NPY_ARRAY_C_CONTIGUOUS | cnp.NPY_ARRAY_ALIGNED


cdef inline bint _readable(cnp.ndarray x):
    return (cnp.PyArray_FLAGS(x) & READABLE) == READABLE and cnp.PyArray_ISNOTSWAPPED(x)


def is_float(object x) -> bool:
    """A contiguous, aligned float32 or float64 array in native byte order."""
    if not cnp.PyArray_Check(x):
        return False
    cdef int number = cnp.PyArray_TYPE(<cnp.ndarray>x)
    return (number == cnp.NPY_FLOAT64 or number == cnp.NPY_FLOAT32) and _readable(<cnp.ndarray>x)


def is_of(object x, cnp.dtype dtype) -> bool:
    """A contiguous, aligned array of this plain dtype in native byte order."""
    return (
        cnp.PyArray_Check(x)
        and cnp.PyArray_EquivTypenums(cnp.PyArray_TYPE(<cnp.ndarray>x), dtype.type_num)
        and _readable(<cnp.ndarray>x)
    )


def has_shape(cnp.ndarray x, tuple shape) -> bool:
    cdef int axis, ndim = cnp.PyArray_NDIM(x)
    if ndim != len(shape):
        return False
    for axis in range(ndim):
        if cnp.PyArray_DIM(x, axis) != <cnp.npy_intp>shape[axis]:
            return False
    return True


def first_overlap(cnp.ndarray x, object reads, bint in_place) -> int:
    """Index of the first of ``reads``, pairs of a name and a contiguous array, that has bytes in
    common with x, or -1.  With ``in_place`` an array of exactly the same bytes does not count."""
    cdef const char* start = cnp.PyArray_BYTES(x)
    cdef const char* end = start + cnp.PyArray_NBYTES(x)
    cdef const char* other_start
    cdef const char* other_end
    cdef cnp.ndarray other
    cdef int index = 0
    for _, other in reads:
        other_start = cnp.PyArray_BYTES(other)
        other_end = other_start + cnp.PyArray_NBYTES(other)
        if start < other_end and other_start < end and start != end and other_start != other_end:
            if not (in_place and start == other_start and end == other_end):
                return index
        index += 1
    return -1


def first_not_of(tuple xs, cnp.dtype dtype) -> int:
    """Index of the first that ``is_of`` refuses, or -1."""
    cdef Py_ssize_t i
    for i in range(len(xs)):
        if not is_of(xs[i], dtype):
            return i
    return -1


def first_unlike(tuple xs, tuple models) -> int:
    """Index of the first of xs that is not an array of the dtype and shape of its model, or -1."""
    cdef Py_ssize_t i
    cdef int axis
    cdef cnp.ndarray x, model
    if len(xs) != len(models):
        return min(len(xs), len(models))
    for i in range(len(xs)):
        if not cnp.PyArray_Check(xs[i]):
            return i
        x = xs[i]
        model = models[i]
        if (
            cnp.PyArray_TYPE(x) != cnp.PyArray_TYPE(model)
            or not _readable(x)
            or cnp.PyArray_NDIM(x) != cnp.PyArray_NDIM(model)
        ):
            return i
        for axis in range(cnp.PyArray_NDIM(x)):
            if cnp.PyArray_DIM(x, axis) != cnp.PyArray_DIM(model, axis):
                return i
    return -1


def any_overlap(tuple xs, tuple ys) -> bool:
    """Has some array of xs bytes in common with one of ys?  All are contiguous."""
    cdef Py_ssize_t i, j
    cdef const char* x
    cdef const char* y
    cdef Py_ssize_t x_bytes
    for i in range(len(xs)):
        x = cnp.PyArray_BYTES(<cnp.ndarray>xs[i])
        x_bytes = cnp.PyArray_NBYTES(<cnp.ndarray>xs[i])
        for j in range(len(ys)):
            y = cnp.PyArray_BYTES(<cnp.ndarray>ys[j])
            if x < y + cnp.PyArray_NBYTES(<cnp.ndarray>ys[j]) and y < x + x_bytes:
                return True
    return False
