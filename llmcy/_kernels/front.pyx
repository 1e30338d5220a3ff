"""Short ways into the kernels, for calls that need no explanation.

A public function in Python checks its arguments one after the other and can say of each what is
wrong with it.  For a small product that takes longer than the product.  A function here looks at all
of them in one compiled call: if everything is as it should be it computes and returns the result,
else it has done nothing, and the long way is taken, which accepts more and explains the rest.  Both
end in the same kernel.  What a user calls is compiled, too, and has the name and text of the long way.

The kernel is called by its address, which a module of an instruction set offers as `entry`.
"""

from functools import update_wrapper

cimport numpy as cnp
from cpython.long cimport PyLong_AsLongAndOverflow, PyLong_CheckExact
from cpython.pycapsule cimport PyCapsule_GetPointer

from llmcy._kernels.memory cimport new_array

cnp.import_array()

cdef enum:
    READABLE = cnp.NPY_ARRAY_C_CONTIGUOUS | cnp.NPY_ARRAY_ALIGNED
    MOST_AXES = 32
    MOST_THREADS = 256
    SHORT_WORK = 65536  # multiply-adds for which handing over the interpreter's lock is not worth it

ctypedef int (*product_fn)(
    const void* a, const void* b, void* out, Py_ssize_t batch, Py_ssize_t m, Py_ssize_t n,
    Py_ssize_t k, bint transpose_a, bint transpose_b, bint shared_b, int n_threads,
) noexcept nogil

cdef list sets = [None, None]   # the kernel sets in use: binary64, binary32
cdef product_fn products[2]     # their entries, NULL until the first call
cdef bint closed = False
cdef int threads = 0            # for calls that name no number; 0: not known yet


def use(object f64, object f32):
    """Lead to these kernel sets from now on."""
    sets[0], sets[1] = f64, f32
    products[0] = products[1] = NULL


def close(bint on):
    """Decline every call, or none any more: who listens to compiled calls wants to see them all."""
    global closed
    closed = on


def set_threads(int n_threads):
    """The number of threads of calls that do not name one."""
    global threads
    threads = n_threads


cdef product_fn find_product(int which) except NULL:
    cdef object kernels = sets[which]
    cdef product_fn found = <product_fn>PyCapsule_GetPointer(kernels.matmul.entry, "llmcy.product")
    if sets[which] is kernels:  # the import may have let another thread choose others
        products[which] = found
    return found


cdef inline bint usable(object x, int number) noexcept:
    """An array of this type whose memory a kernel can read as it is."""
    return (
        cnp.PyArray_CheckExact(x)
        and cnp.PyArray_TYPE(<cnp.ndarray>x) == number
        and (cnp.PyArray_FLAGS(<cnp.ndarray>x) & READABLE) == READABLE
        and cnp.PyArray_ISNOTSWAPPED(<cnp.ndarray>x)
    )


cdef inline bint apart(cnp.ndarray x, cnp.ndarray y) noexcept:
    """The two have no byte in common."""
    cdef const char* x_start = cnp.PyArray_BYTES(x)
    cdef const char* y_start = cnp.PyArray_BYTES(y)
    return (
        x_start + cnp.PyArray_NBYTES(x) <= y_start or y_start + cnp.PyArray_NBYTES(y) <= x_start
    )


cdef inline int count_threads(object n_threads) noexcept:
    """The number a call asks for, or 0 if it cannot be had here."""
    cdef int overflow = 0
    cdef long number
    if n_threads is None:
        return threads
    if not PyLong_CheckExact(n_threads):
        return 0
    number = PyLong_AsLongAndOverflow(n_threads, &overflow)
    return <int>number if overflow == 0 and 1 <= number <= MOST_THREADS else 0


cdef object short_matmul(
    object a, object b, object transpose_a, object transpose_b, object out, object n_threads
):
    """out (..., m, n) = a (..., m, k) x b (k, n) or b (..., k, n); None for any other call."""
    cdef cnp.npy_intp dims[MOST_AXES]
    cdef cnp.ndarray x, y, result
    cdef int number, which, axis, axes, y_axes, status
    cdef int n_used = count_threads(n_threads)
    cdef bint shared, ta = transpose_a is True, tb = transpose_b is True
    cdef Py_ssize_t batch = 1, m, n, k
    cdef product_fn product
    if closed or n_used == 0 or not cnp.PyArray_CheckExact(a):
        return None
    if not ((ta or transpose_a is False) and (tb or transpose_b is False)):
        return None
    x = <cnp.ndarray>a
    number = cnp.PyArray_TYPE(x)
    if not ((number == cnp.NPY_FLOAT64 or number == cnp.NPY_FLOAT32) and usable(a, number)):
        return None
    if not usable(b, number):
        return None
    y = <cnp.ndarray>b
    axes, y_axes = cnp.PyArray_NDIM(x), cnp.PyArray_NDIM(y)
    shared = y_axes == 2
    if not 2 <= axes <= MOST_AXES or not (shared or y_axes == axes):
        return None
    for axis in range(axes - 2):
        dims[axis] = cnp.PyArray_DIM(x, axis)
        if not shared and cnp.PyArray_DIM(y, axis) != dims[axis]:
            return None
        batch *= dims[axis]
    m, k = cnp.PyArray_DIM(x, axes - 2), cnp.PyArray_DIM(x, axes - 1)
    if ta:
        m, k = k, m
    n = cnp.PyArray_DIM(y, y_axes - 2 if tb else y_axes - 1)
    if cnp.PyArray_DIM(y, y_axes - 1 if tb else y_axes - 2) != k:
        return None
    dims[axes - 2], dims[axes - 1] = m, n

    which = number == cnp.NPY_FLOAT32
    product = products[which]
    if product == NULL:
        product = find_product(which)

    if out is None:
        result = new_array(axes, dims, number, cnp.PyArray_ITEMSIZE(x))
    else:
        if not usable(out, number):
            return None
        result = <cnp.ndarray>out
        if cnp.PyArray_NDIM(result) != axes or not cnp.PyArray_ISWRITEABLE(result):
            return None
        for axis in range(axes):
            if cnp.PyArray_DIM(result, axis) != dims[axis]:
                return None
        if not (apart(result, x) and apart(result, y)):
            return None

    if shared and not ta:  # the leading axes are more rows of one product
        batch, m = 1, batch * m
    if batch * m <= SHORT_WORK and n <= SHORT_WORK and batch * m * n * k <= SHORT_WORK:
        status = product(
            cnp.PyArray_DATA(x), cnp.PyArray_DATA(y), cnp.PyArray_DATA(result),
            batch, m, n, k, ta, tb, shared, n_used,
        )
    else:
        with nogil:
            status = product(
                cnp.PyArray_DATA(x), cnp.PyArray_DATA(y), cnp.PyArray_DATA(result),
                batch, m, n, k, ta, tb, shared, n_used,
            )
    if status:
        raise MemoryError("matmul: no memory for the threads' scratch buffers")
    return result


cdef object long_matmul = None


def _matmul(
    object a, object b, *, object transpose_a=False, object transpose_b=False, object out=None,
    object n_threads=None,
):
    cdef object done = short_matmul(a, b, transpose_a, transpose_b, out, n_threads)
    if done is not None:
        return done
    return long_matmul(
        a, b, transpose_a=transpose_a, transpose_b=transpose_b, out=out, n_threads=n_threads
    )


def try_matmul(
    object a, object b, object transpose_a, object transpose_b, object out, object n_threads
):
    """The short way alone."""
    return short_matmul(a, b, transpose_a, transpose_b, out, n_threads)


def with_short_way(object long_way):
    """The function that tries the short way first, with the name and the text of the long one.

    A function in Python around both would cost more than all else here: after a product that fills
    the caches, 1.5 microseconds.
    """
    global long_matmul
    long_matmul = long_way
    return update_wrapper(_matmul, long_way)
