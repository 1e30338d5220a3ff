"""One new token a sequence attends to a cache of rotated keys and plain values.

For sequence s with n cached positions, head h, its shared key/value head g = h // (H / Hk), the
new rotated query q and the new rotated key and value in place n:

    score[j] = (fold over e of q[e] * key[j, e]) * (1 / sqrt(w))      j = 0 .. n
    p        = softmax(score)
    out[e]   = fold over j of p[j] * value[j, e]

the last row of causal attention, in its order (numerics contract, sections 6 and 14; part two,
section 4), so it has the bits of the same row computed with all others.

Keys lie in blocks of KEY_BLOCK positions, features first: keys[s, g, j // KEY_BLOCK, e,
j % KEY_BLOCK].  Lanes then run across positions while e ascends, and a block is read from one end
to the other.  Values are values[s, g, j, e].
"""

cimport numpy as cnp

from llmcy._kernels.step_heads cimport KEY_BLOCK_SIZE, Step, append_token, attend_heads
from llmcy._kernels.types cimport i64, real

cnp.import_array()

KEY_BLOCK = KEY_BLOCK_SIZE


def attention_step(
    cnp.ndarray q, cnp.ndarray new_key, cnp.ndarray new_value,  # IN (n, H * Dh), (n, Hk * Dh) twice
    cnp.ndarray keys, cnp.ndarray values,  # IN (B, Hk, blocks, Dh, KEY_BLOCK), (B, Hk, C, Dh)
    cnp.ndarray rows, cnp.ndarray lengths,  # IN (n,)
    cnp.ndarray out, object weights,  # OUT (n, H * Dh); (n, H, longest + 1) or None
    Py_ssize_t n, Py_ssize_t C, Py_ssize_t H, Py_ssize_t Hk, Py_ssize_t Dh, Py_ssize_t longest,
    int n_threads,
):
    cdef Step job
    cdef int status
    job.q = <const real*>cnp.PyArray_DATA(q)
    job.new_key = <const real*>cnp.PyArray_DATA(new_key)
    job.new_value = <const real*>cnp.PyArray_DATA(new_value)
    job.keys = <const real*>cnp.PyArray_DATA(keys)
    job.values = <const real*>cnp.PyArray_DATA(values)
    job.rows = <const i64*>cnp.PyArray_DATA(rows)
    job.lengths = <const i64*>cnp.PyArray_DATA(lengths)
    job.out = <real*>cnp.PyArray_DATA(out)
    job.weights = NULL if weights is None else <real*>cnp.PyArray_DATA(<cnp.ndarray>weights)
    job.C, job.H, job.Hk, job.Dh, job.longest = C, H, Hk, Dh, longest
    job.q_row, job.kv_row = H * Dh, Hk * Dh
    with nogil:
        status = attend_heads(&job, n, n_threads)
    if status:
        raise MemoryError("attention_step: no memory for the threads' scratch buffers")


def cache_append(
    cnp.ndarray new_key, cnp.ndarray new_value,  # IN (n, Hk * Dh)
    cnp.ndarray keys, cnp.ndarray values,  # IN and OUT
    cnp.ndarray rows, cnp.ndarray positions,  # IN (n,)
    Py_ssize_t n, Py_ssize_t C, Py_ssize_t Hk, Py_ssize_t Dh,
):
    """Put token i's key and value into place positions[i] of sequence rows[i]."""
    cdef const real* key = <const real*>cnp.PyArray_DATA(new_key)
    cdef const real* value = <const real*>cnp.PyArray_DATA(new_value)
    cdef real* all_keys = <real*>cnp.PyArray_DATA(keys)
    cdef real* all_values = <real*>cnp.PyArray_DATA(values)
    cdef const i64* row = <const i64*>cnp.PyArray_DATA(rows)
    cdef const i64* position = <const i64*>cnp.PyArray_DATA(positions)
    cdef Py_ssize_t i
    with nogil:
        for i in range(n):
            append_token(
                key + i * Hk * Dh, value + i * Hk * Dh, all_keys, all_values, row[i], position[i],
                C, Hk, Dh,
            )
