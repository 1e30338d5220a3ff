"""SplitMix64 over a raw 64-bit state (numerics contract, section 2)."""

cimport numpy as cnp

from llmcy._kernels.types cimport i64, u64

cnp.import_array()


cdef inline u64 _mix(u64 z) noexcept nogil:
    z = (z ^ (z >> 30)) * <u64>0xbf58476d1ce4e5b9
    z = (z ^ (z >> 27)) * <u64>0x94d049bb133111eb
    return z ^ (z >> 31)


cdef inline u64 _next(u64* state) noexcept nogil:
    state[0] += <u64>0x9e3779b97f4a7c15
    return _mix(state[0])


cdef inline u64 _below(u64* state, u64 n) noexcept nogil:
    # draws under the floor are rejected so that every residue is equally likely
    cdef u64 floor = (<u64>0 - n) % n
    cdef u64 draw = _next(state)
    while draw < floor:
        draw = _next(state)
    return draw % n


def next_u64(u64 state):
    """Advance once: ``(draw, new state)``."""
    cdef u64 draw = _next(&state)
    return draw, state


def below(u64 state, u64 n):
    """An integer in [0, n), n >= 1: ``(value, new state)``."""
    cdef u64 value = _below(&state, n)
    return value, state


def fill_unit(u64 state, cnp.ndarray out):
    """Fill a float64 array with draws in [0, 1); returns the new state."""
    cdef double* values = <double*>cnp.PyArray_DATA(out)
    cdef Py_ssize_t i, n = cnp.PyArray_SIZE(out)
    with nogil:
        for i in range(n):
            values[i] = <double>(_next(&state) >> 11) * (1.0 / 9007199254740992.0)
    return state


def shuffle(u64 state, cnp.ndarray rows):
    """Shuffle the rows of an int64 array (n, width): descending Fisher-Yates; returns the new state."""
    cdef i64* data = <i64*>cnp.PyArray_DATA(rows)
    cdef Py_ssize_t n = cnp.PyArray_DIM(rows, 0)
    cdef Py_ssize_t width = cnp.PyArray_SIZE(rows) // n if n > 0 else 0
    cdef Py_ssize_t i, j, k
    cdef i64 held
    with nogil:
        for i in range(n - 1, 0, -1):
            j = <Py_ssize_t>_below(&state, <u64>(i + 1))
            for k in range(width):
                held = data[i * width + k]
                data[i * width + k] = data[j * width + k]
                data[j * width + k] = held
    return state
