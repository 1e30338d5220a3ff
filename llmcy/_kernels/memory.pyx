"""New arrays, large ones in memory that earlier ones have given back; see ``memory.h``."""

cimport cython
cimport numpy as cnp
from cpython.pythread cimport PyThread_get_thread_ident

cnp.import_array()

cdef extern from "memory.h" nogil:
    void* llmcy_memory_take(size_t size)
    void llmcy_memory_give_back(void* address, size_t size)
    size_t llmcy_memory_held()
    size_t llmcy_memory_made()
    void llmcy_memory_release()
    void llmcy_memory_start()

llmcy_memory_start()

SMALLEST = 16384        # bytes of an array whose memory is kept; numpy's own is as good below
cdef size_t smallest = SMALLEST


@cython.no_gc
cdef class Workspace:
    """Memory that passes from array to array among those a thread makes while it is open.

    What happens in it once can happen in it again, in the same places: the same calls at the same
    addresses never get in each other's way.  :func:`placed` gives such an array as a place.
    """

    cdef dict free              # size -> addresses
    cdef readonly size_t nbytes
    cdef readonly Py_ssize_t in_use

    def __cinit__(self):
        self.free = {}
        self.nbytes = 0
        self.in_use = 0

    cdef void* take(self, size_t size) except? NULL:
        cdef list addresses = self.free.get(size)
        cdef void* address
        if addresses:
            address = <void*><size_t>addresses.pop()
        else:
            address = llmcy_memory_take(size)
            if address != NULL:
                self.nbytes += size
        self.in_use += address != NULL
        return address

    cdef void give_back(self, void* address, size_t size):
        self.in_use -= 1
        self.free.setdefault(size, []).append(<size_t>address)

    def open(self):
        """Serve the arrays that this thread makes from now on."""
        global _open, _open_thread
        _open_thread = PyThread_get_thread_ident()
        _open = self

    def close(self):
        """Serve no more arrays."""
        global _open
        if _open is self:
            _open = None

    def __dealloc__(self):
        cdef size_t size
        for size, addresses in self.free.items():
            for address in addresses:
                llmcy_memory_give_back(<void*><size_t>address, size)


cdef Workspace _open = None
cdef unsigned long _open_thread = 0


@cython.no_gc
cdef class Block:
    """The memory of one array; given back when the array and all its views are gone."""

    cdef void* address
    cdef size_t size
    cdef Workspace workspace    # where it came from, if it did

    def __dealloc__(self):
        if self.address == NULL:
            return
        if self.workspace is None:
            llmcy_memory_give_back(self.address, self.size)
        else:
            self.workspace.give_back(self.address, self.size)


def placed(cnp.ndarray array, Workspace workspace):
    """The array's place in a workspace, as an array that holds the workspace and not the place;
    or the array itself when its memory is not the workspace's."""
    cdef cnp.ndarray place
    cdef object owner = array
    while isinstance(owner, cnp.ndarray):
        owner = cnp.get_array_base(owner)
    if type(owner) is not Block or (<Block>owner).workspace is not workspace:
        return array
    place = cnp.PyArray_SimpleNewFromData(
        cnp.PyArray_NDIM(array), cnp.PyArray_DIMS(array), cnp.PyArray_TYPE(array),
        cnp.PyArray_DATA(array),
    )
    cnp.set_array_base(place, workspace)
    return place


cdef object _shape(int ndim, cnp.npy_intp* dims):
    cdef int axis
    return tuple([dims[axis] for axis in range(ndim)])


cdef cnp.ndarray new_array(int ndim, cnp.npy_intp* dims, int type_number, size_t item_size):
    """A C-contiguous array of arbitrary contents, of a plain number type in native byte order."""
    cdef int axis
    cdef size_t size = item_size
    cdef Block block
    cdef cnp.ndarray array
    for axis in range(ndim):
        if dims[axis] < 0:
            raise ValueError(f"negative length in shape {_shape(ndim, dims)}")
        if dims[axis] != 0 and size > <size_t>(1 << 62) // <size_t>dims[axis]:
            raise MemoryError(f"an array of shape {_shape(ndim, dims)} is too large")
        size *= <size_t>dims[axis]
    if size < smallest:
        return cnp.PyArray_SimpleNew(ndim, dims, type_number)
    block = Block.__new__(Block)
    if _open is not None and _open_thread == PyThread_get_thread_ident():
        block.workspace = _open
        block.address = block.workspace.take(size)
    else:
        block.address = llmcy_memory_take(size)
    if block.address == NULL:
        raise MemoryError(f"no memory for an array of shape {_shape(ndim, dims)}")
    block.size = size
    array = cnp.PyArray_SimpleNewFromData(ndim, dims, type_number, block.address)
    cnp.set_array_base(array, block)
    return array


def empty(tuple shape, cnp.dtype dtype):
    """A C-contiguous array of arbitrary contents; for the plain number types in native byte order."""
    cdef cnp.npy_intp dims[32]
    cdef int axis, ndim = len(shape)
    if ndim > 32:
        raise ValueError(f"an array cannot have {ndim} axes")
    for axis in range(ndim):
        dims[axis] = shape[axis]
    return new_array(ndim, dims, dtype.type_num, cnp.PyDataType_ELSIZE(dtype))


def held() -> int:
    """Bytes that wait for new arrays."""
    return llmcy_memory_held()


def made() -> int:
    """How many blocks of memory have been made so far, instead of used again."""
    return llmcy_memory_made()


def release():
    """Return the waiting memory to the system."""
    llmcy_memory_release()
