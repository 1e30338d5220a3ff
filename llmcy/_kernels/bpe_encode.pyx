# cython: auto_pickle=False
"""Encoding with byte-pair rules in time proportional to the text, and decoding.

Rules apply in rank order, each in one pass from left to right without overlap.  A rule's operands
always have lower ranks, so applying rank r makes only pairs of higher rank, and all places of a pair
appear at once: at the start for two bytes, else while its newer token is made.  Each rank with
places has them in a queue, ascending; ranks are taken in ascending order, and a place whose pair has
changed since is skipped.
"""

cimport cython
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


cdef struct Work:
    # what one call needs; the queue of a rank is arena[start : start + count] where its bit is set
    u32* symbols
    u32* arena
    u32 n_arena
    u64 arena_capacity
    u32* starts
    u32* counts
    u64* waiting
    u32* touched           # ranks whose queue is being made
    u32* beside            # per replacement: ranks of its left and right pair
    u32 beside_capacity


cdef void _release(Work* work) noexcept nogil:
    free(work.symbols)
    free(work.arena)
    free(work.starts)
    free(work.counts)
    free(work.waiting)
    free(work.touched)
    free(work.beside)


cdef inline void _count(Work* work, u32 rank, u32* n_touched) noexcept nogil:
    cdef u64 bit = <u64>1 << (rank & 63)
    if not work.waiting[rank >> 6] & bit:
        work.waiting[rank >> 6] |= bit
        work.counts[rank] = 0
        work.touched[n_touched[0]] = rank
        n_touched[0] += 1
    work.counts[rank] += 1


cdef int _reserve(Work* work, u32 n_touched) noexcept nogil:
    """Room in the arena for the queues just counted, which are then empty again."""
    cdef u32 i, rank, end = work.n_arena
    cdef u64 capacity
    cdef u32* grown
    for i in range(n_touched):
        rank = work.touched[i]
        work.starts[rank] = end
        end += work.counts[rank]
        work.counts[rank] = 0
    if end > work.arena_capacity:
        capacity = <u64>end + end // 2
        grown = <u32*>realloc(work.arena, capacity * sizeof(u32))
        if grown == NULL:
            return -1
        work.arena = grown
        work.arena_capacity = capacity
    work.n_arena = end
    return 0


cdef inline void _enqueue(Work* work, u32 rank, u32 position) noexcept nogil:
    work.arena[work.starts[rank] + work.counts[rank]] = position
    work.counts[rank] += 1


@cython.final
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
        cdef u32 i, rank, n_touched = 0
        cdef size_t n_rules = self.n_rules
        work.arena = NULL
        work.n_arena = 0
        work.arena_capacity = 0
        work.beside = NULL
        work.beside_capacity = 0
        work.symbols = <u32*>malloc((<size_t>n + 2) * sizeof(u32))
        work.starts = <u32*>malloc((n_rules + 1) * sizeof(u32))
        work.counts = <u32*>malloc((n_rules + 1) * sizeof(u32))
        work.touched = <u32*>malloc((n_rules + 1) * sizeof(u32))
        work.waiting = <u64*>calloc(n_rules // 64 + 1, sizeof(u64))
        if (
            work.symbols == NULL or work.starts == NULL or work.counts == NULL
            or work.touched == NULL or work.waiting == NULL
        ):
            return -1
        work.symbols[0] = BOUNDARY
        work.symbols[n + 1] = BOUNDARY
        for i in range(n):
            work.symbols[i + 1] = data[i]
        for i in range(1, n):
            rank = self.byte_ranks[(work.symbols[i] << 8) | work.symbols[i + 1]]
            if rank != MISSING:
                _count(work, rank, &n_touched)
        if _reserve(work, n_touched) != 0:
            return -1
        for i in range(1, n):
            rank = self.byte_ranks[(work.symbols[i] << 8) | work.symbols[i + 1]]
            if rank != MISSING:
                _enqueue(work, rank, i)
        return 0

    cdef u32 _replace(self, Work* work, u32 rule) noexcept nogil:
        """Replace the pair of one rank wherever its queue still finds it.

        The queue keeps the replaced positions; returns how many.
        """
        cdef u32 left = self.lefts[rule], right = self.rights[rule], new = 256 + rule
        cdef u32 left_length = <u32>self.lengths[left]
        cdef u32 right_length = <u32>self.lengths[right]
        cdef u32* symbols = work.symbols
        cdef u32* queue = work.arena + work.starts[rule]
        cdef u32 i, p, q, kept = 0
        work.waiting[rule >> 6] &= ~(<u64>1 << (rule & 63))
        for i in range(work.counts[rule]):
            p = queue[i]
            if symbols[p] != left:
                continue
            q = p + left_length
            if symbols[q] != right:
                continue
            symbols[p] = new
            symbols[q] = END | new
            symbols[q + right_length - 1] = END | new
            queue[kept] = p
            kept += 1
        return kept

    cdef int _queue_new_pairs(self, Work* work, u32 rule, u32 n) noexcept nogil:
        """Queues for the pairs beside the ``n`` replacements of one rank."""
        cdef u32 new = 256 + rule, length = <u32>self.lengths[new]
        cdef u32 start = work.starts[rule]
        cdef u32* symbols = work.symbols
        cdef u32* grown
        cdef u32 i, p, symbol, rank, n_touched = 0
        if 2 * n > work.beside_capacity:
            grown = <u32*>realloc(work.beside, 2 * <size_t>n * sizeof(u32))
            if grown == NULL:
                return -1
            work.beside = grown
            work.beside_capacity = 2 * n
        for i in range(n):
            p = work.arena[start + i]
            symbol = symbols[p - 1]
            rank = MISSING
            if symbol != BOUNDARY:
                rank = pair_map_get(&self.ranks, pair_key(symbol & ~END, new))
                if rank != MISSING:
                    _count(work, rank, &n_touched)
            work.beside[2 * i] = rank
            symbol = symbols[p + length]
            rank = MISSING
            if symbol != BOUNDARY and symbol != new:   # (new, new) is found from its right half
                rank = pair_map_get(&self.ranks, pair_key(new, symbol))
                if rank != MISSING:
                    _count(work, rank, &n_touched)
            work.beside[2 * i + 1] = rank
        if _reserve(work, n_touched) != 0:
            return -1
        for i in range(n):
            p = work.arena[start + i]
            rank = work.beside[2 * i]
            if rank != MISSING:
                _enqueue(work, rank, p - <u32>self.lengths[symbols[p - 1] & ~END])
            rank = work.beside[2 * i + 1]
            if rank != MISSING:
                _enqueue(work, rank, p)
        return 0

    cdef i64 _merge_all(self, Work* work, const u8* data, u32 n) noexcept nogil:
        """Number of tokens left, or -1 without memory."""
        cdef i64 n_tokens = n
        cdef u32 word, rule, replaced
        if self._start(work, data, n) != 0:
            return -1
        for word in range(self.n_rules // 64 + 1):
            while work.waiting[word] != 0:
                rule = 64 * word + <u32>lowest_bit(work.waiting[word])
                replaced = self._replace(work, rule)
                if self._queue_new_pairs(work, rule, replaced) != 0:
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
