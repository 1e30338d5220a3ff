"""Encoding with byte-pair rules in time proportional to the text, and decoding.

Rules apply in rank order, each in one pass from left to right without overlap.  A rule's operands
always have lower ranks, so applying rank r makes only pairs of higher rank.  Each rank keeps a queue
of the positions where its pair stood when it was made; ranks are taken in ascending order and a
queue is ascending by position (a pair's places all appear while its newer token is made).  A
position whose pair has changed since is skipped.
"""

cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdlib cimport calloc, free, malloc, realloc

from llmcy._kernels.pair_map cimport (
    BOUNDARY, END, MISSING, PairMap, pair_key, pair_map_create, pair_map_destroy, pair_map_get,
    pair_map_put,
)
from llmcy._kernels.types cimport i64, u8, u32, u64

import numpy as np

cnp.import_array()

MAX_BYTES = 1 << 30         # three places a byte must be countable in 32 bits
cdef u64 LONGEST = <u64>1 << 62     # token lengths stop here; no text is that long


cdef extern from *:
    """
    static inline int llmcy_lowest_bit(uint64_t word) { return __builtin_ctzll(word); }
    """
    int lowest_bit "llmcy_lowest_bit"(u64 word) noexcept nogil


cdef struct Place:
    u32 position
    u32 next


cdef struct Work:
    # what one call needs; rank queues are valid where `waiting` has their bit
    u32* symbols
    Place* places
    u32 n_places, place_capacity
    u32* heads
    u32* tails
    u64* waiting


cdef void _release(Work* work) noexcept nogil:
    free(work.symbols)
    free(work.places)
    free(work.heads)
    free(work.tails)
    free(work.waiting)


cdef int _enqueue(Work* work, u32 rank, u32 position) noexcept nogil:
    cdef Place* grown
    cdef u32 place = work.n_places, capacity
    cdef u64 bit = <u64>1 << (rank & 63)
    if place == work.place_capacity:
        capacity = work.place_capacity + work.place_capacity // 2 + 64
        grown = <Place*>realloc(work.places, <size_t>capacity * sizeof(Place))
        if grown == NULL:
            return -1
        work.places = grown
        work.place_capacity = capacity
    # used places are not taken again: queues filled together stay together in memory
    work.n_places += 1
    work.places[place].position = position
    work.places[place].next = MISSING
    if work.waiting[rank >> 6] & bit:
        work.places[work.tails[rank]].next = place
    else:
        work.waiting[rank >> 6] |= bit
        work.heads[rank] = place
    work.tails[rank] = place
    return 0


cdef class Encoder:
    """Rules ready to apply: ``pairs`` (M, 2) int64, training-space ids, already validated."""

    cdef PairMap ranks
    cdef u32* byte_ranks        # rank of each pair of bytes, or MISSING
    cdef u32* lefts
    cdef u32* rights
    cdef u64* lengths           # bytes of each training-space token, at most LONGEST
    cdef u32 n_rules

    def __cinit__(self, cnp.ndarray pairs):
        cdef i64* data = <i64*>cnp.PyArray_DATA(pairs)
        cdef u32 n = <u32>cnp.PyArray_DIM(pairs, 0)
        cdef u32 rank, left, right
        cdef u64 slots = 64
        while slots < 2 * <u64>n + 2:
            slots *= 2
        self.n_rules = n
        self.byte_ranks = <u32*>malloc(65536 * sizeof(u32))
        self.lefts = <u32*>malloc((<size_t>n + 1) * sizeof(u32))
        self.rights = <u32*>malloc((<size_t>n + 1) * sizeof(u32))
        self.lengths = <u64*>malloc((<size_t>n + 256) * sizeof(u64))
        if (
            self.byte_ranks == NULL or self.lefts == NULL or self.rights == NULL
            or self.lengths == NULL or pair_map_create(&self.ranks, slots) != 0
        ):
            raise MemoryError
        for left in range(65536):
            self.byte_ranks[left] = MISSING
        for left in range(256):
            self.lengths[left] = 1
        for rank in range(n):
            left = <u32>data[2 * rank]
            right = <u32>data[2 * rank + 1]
            self.lefts[rank] = left
            self.rights[rank] = right
            self.lengths[256 + rank] = min(LONGEST, self.lengths[left] + self.lengths[right])
            if left < 256 and right < 256:
                self.byte_ranks[(left << 8) | right] = rank
            if pair_map_put(&self.ranks, pair_key(left, right), rank) != 0:
                raise MemoryError

    def __dealloc__(self):
        free(self.byte_ranks)
        free(self.lefts)
        free(self.rights)
        free(self.lengths)
        pair_map_destroy(&self.ranks)

    # -- encoding -----------------------------------------------------------------------------------

    cdef int _start(self, Work* work, const u8* data, u32 n) noexcept nogil:
        """Bytes into slots, and every pair of bytes that has a rule into its queue."""
        cdef u32 i, rank
        work.places = NULL
        work.n_places = 0
        work.place_capacity = 0
        work.symbols = <u32*>malloc((<size_t>n + 2) * sizeof(u32))
        work.heads = <u32*>malloc((<size_t>self.n_rules + 1) * sizeof(u32))
        work.tails = <u32*>malloc((<size_t>self.n_rules + 1) * sizeof(u32))
        work.waiting = <u64*>calloc(self.n_rules // 64 + 1, sizeof(u64))
        if (
            work.symbols == NULL or work.heads == NULL or work.tails == NULL
            or work.waiting == NULL
        ):
            return -1
        work.symbols[0] = BOUNDARY
        work.symbols[n + 1] = BOUNDARY
        for i in range(n):
            work.symbols[i + 1] = data[i]
        for i in range(1, n):
            rank = self.byte_ranks[(work.symbols[i] << 8) | work.symbols[i + 1]]
            if rank != MISSING and _enqueue(work, rank, i) != 0:
                return -1
        return 0

    cdef i64 _apply(self, Work* work, u32 rule) noexcept nogil:
        """Replace the pair of one rank wherever its queue still finds it; returns how often."""
        cdef u32 left = self.lefts[rule], right = self.rights[rule], new = 256 + rule
        cdef u32 left_length = <u32>self.lengths[left]
        cdef u32 right_length = <u32>self.lengths[right]
        cdef u32* symbols = work.symbols
        cdef u32 place = work.heads[rule], p, q, symbol, rank
        cdef i64 count = 0
        work.waiting[rule >> 6] &= ~(<u64>1 << (rule & 63))
        while place != MISSING:
            p = work.places[place].position
            place = work.places[place].next
            if symbols[p] != left:
                continue
            q = p + left_length
            if symbols[q] != right:
                continue
            symbols[p] = new
            symbols[q] = END | new
            symbols[q + right_length - 1] = END | new
            count += 1
            symbol = symbols[p - 1]
            if symbol != BOUNDARY:
                symbol &= ~END
                rank = pair_map_get(&self.ranks, pair_key(symbol, new))
                if rank != MISSING and _enqueue(work, rank, p - <u32>self.lengths[symbol]) != 0:
                    return -1
            symbol = symbols[q + right_length]
            if symbol != BOUNDARY:
                rank = pair_map_get(&self.ranks, pair_key(new, symbol))
                if rank != MISSING and _enqueue(work, rank, p) != 0:
                    return -1
        return count

    cdef i64 _merge_all(self, Work* work, const u8* data, u32 n) noexcept nogil:
        """Number of tokens left, or -1 without memory."""
        cdef i64 n_tokens = n, replaced
        cdef u32 word
        if self._start(work, data, n) != 0:
            return -1
        for word in range(self.n_rules // 64 + 1):
            while work.waiting[word] != 0:
                replaced = self._apply(work, 64 * word + <u32>lowest_bit(work.waiting[word]))
                if replaced < 0:
                    return -1
                n_tokens -= replaced
        return n_tokens

    def encode(self, const u8[::1] data, u32 shift, object first=None, object last=None):
        """Ids of ``data`` plus ``shift`` as int64, between ``first`` and ``last`` where given."""
        cdef Work work
        cdef i64 n_tokens
        cdef Py_ssize_t size = data.shape[0]
        cdef Py_ssize_t at = 0, slot = 1
        cdef const u8* bytes_in = &data[0] if size > 0 else NULL
        cdef cnp.ndarray ids
        cdef i64* out
        if size > MAX_BYTES:
            raise OverflowError(f"{size} bytes")
        with nogil:
            n_tokens = self._merge_all(&work, bytes_in, <u32>size)
        try:
            if n_tokens < 0:
                raise MemoryError
            ids = np.empty(n_tokens + (first is not None) + (last is not None), np.int64)
            out = <i64*>cnp.PyArray_DATA(ids)
            if first is not None:
                out[0] = first
                at = 1
            while work.symbols[slot] != BOUNDARY:
                out[at] = <i64>work.symbols[slot] + shift
                slot += <Py_ssize_t>self.lengths[work.symbols[slot]]
                at += 1
            if last is not None:
                out[at] = last
        finally:
            _release(&work)
        return ids

    # -- decoding -----------------------------------------------------------------------------------

    def token_lengths(self):
        """Bytes of every training-space token, int64; 2**62 stands for that many or more."""
        cdef cnp.ndarray out = np.empty(256 + <Py_ssize_t>self.n_rules, np.int64)
        cdef i64* values = <i64*>cnp.PyArray_DATA(out)
        cdef Py_ssize_t i
        for i in range(256 + <Py_ssize_t>self.n_rules):
            values[i] = <i64>self.lengths[i]
        return out

    def decode(self, cnp.ndarray ids, u32 shift, Py_ssize_t n_bytes):
        """Bytes of int64 ids, each ``shift`` too large; ``n_bytes`` is the sum of their lengths."""
        cdef const i64* tokens = <const i64*>cnp.PyArray_DATA(ids)
        cdef Py_ssize_t n = cnp.PyArray_SIZE(ids), i, at = 0
        cdef bytes result = PyBytes_FromStringAndSize(NULL, n_bytes)
        cdef u8* out = <u8*>PyBytes_AS_STRING(result)
        # open halves wait on a stack: one for each rule on the way down, so never more than rules
        cdef u32* stack = <u32*>malloc((<size_t>self.n_rules + 1) * sizeof(u32))
        cdef Py_ssize_t depth
        cdef u32 token
        if stack == NULL:
            raise MemoryError
        with nogil:
            for i in range(n):
                token = <u32>(tokens[i] - shift)
                depth = 0
                while True:
                    if token >= 256:
                        stack[depth] = self.rights[token - 256]
                        depth += 1
                        token = self.lefts[token - 256]
                        continue
                    out[at] = <u8>token
                    at += 1
                    if depth == 0:
                        break
                    depth -= 1
                    token = stack[depth]
        free(stack)
        return result
