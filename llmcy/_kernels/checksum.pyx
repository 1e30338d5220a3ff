"""FNV-1a, 64 bit."""

from llmcy._kernels.types cimport u8, u64


def fnv1a64_update(u64 state, const u8[::1] data):
    """Continue a hash over more bytes."""
    cdef Py_ssize_t i
    with nogil:
        for i in range(data.shape[0]):
            state = (state ^ data[i]) * <u64>0x00000100000001b3
    return state
