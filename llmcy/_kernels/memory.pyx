"""New arrays, large ones in memory that earlier ones have given back; see ``memory.h``."""

cimport numpy as cnp

cnp.import_array()

cdef extern from "memory.h" nogil:
    void* llmcy_memory_take(size_t size)
    void llmcy_memory_give_back(void* address, size_t size)
    size_t llmcy_memory_held()
    void llmcy_memory_release()

cdef enum:
    SMALLEST = 16384        # bytes; numpy's own allocation is as good below


cdef class Block:
    """The memory of one array; given back when the array and all its views are gone."""

    cdef void* address
    cdef size_t size

    def __dealloc__(self):
        if self.address != NULL:
            llmcy_memory_give_back(self.address, self.size)


def empty(tuple shape, cnp.dtype dtype):
    """A C-contiguous array of arbitrary contents; for the plain number types in native byte order."""
    cdef cnp.npy_intp dims[32]
    cdef int axis, ndim = len(shape)
    cdef size_t size = cnp.PyDataType_ELSIZE(dtype)
    cdef cnp.npy_intp length
    cdef int number = dtype.type_num
    cdef Block block
    cdef cnp.ndarray array
    if ndim > 32:
        raise ValueError(f"an array cannot have {ndim} axes")
    for axis in range(ndim):
        length = shape[axis]
        if length < 0:
            raise ValueError(f"negative length in shape {shape}")
        dims[axis] = length
        if length != 0 and size > <size_t>(1 << 62) // <size_t>length:
            raise MemoryError(f"an array of shape {shape} is too large")
        size *= <size_t>length
    if size < SMALLEST:
        return cnp.PyArray_SimpleNew(ndim, dims, number)
    block = Block.__new__(Block)
    block.address = llmcy_memory_take(size)
    if block.address == NULL:
        raise MemoryError(f"no memory for an array of shape {shape}")
    block.size = size
    array = cnp.PyArray_SimpleNewFromData(ndim, dims, number, block.address)
    cnp.set_array_base(array, block)
    return array


def held() -> int:
    """Bytes that wait for new arrays."""
    return llmcy_memory_held()


def release():
    """Return the waiting memory to the system."""
    llmcy_memory_release()
