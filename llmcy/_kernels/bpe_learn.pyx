# cython: auto_pickle=False
"""Learning byte pairs with counts that are kept up to date.

count(a, b) is the number of adjacent positions, overlapping, that hold tokens a and b inside one
sequence.  Replacing the winner (l, r) by n changes only pairs beside a replacement:

    x l r y  ->  x n y      one (x, l) and one (r, y) less, one (x, n) and one (n, y) more

so counts of older pairs only fall, and a pair that holds n gets its final list of positions while
n is made.  That list is ascending because replacements are visited left to right and lists are
made from them in that order; the left-to-right rule for runs such as "aaa" therefore needs no
sorting.  A heap whose entries may be too large, never too small, gives the next winner: the largest
count, then the smallest left id, then the smallest right id.
"""

cimport cython
cimport numpy as cnp
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdlib cimport calloc, free, malloc, realloc

from llmcy._kernels.pair_map cimport (
    BOUNDARY, END, MISSING, PairMap, pair_key, pair_map_create, pair_map_destroy, pair_map_get,
    pair_map_put,
)
from llmcy._kernels.types cimport u8, u32, u64

import numpy as np

cnp.import_array()

MAX_SLOTS = 0x7fffff00     # bytes and boundaries together; ids stay below END


cdef struct Pair:
    u64 key
    u32 count              # adjacent positions that hold the pair now
    u32 n_positions        # entries of the list; some may no longer hold the pair
    u32 single             # the list itself when it has one entry
    u32* positions


cdef struct Entry:
    u64 key
    u32 count              # count of the pair when the entry was made: an upper bound
    u32 pair


cdef inline bint _before(const Entry* a, const Entry* b) noexcept nogil:
    return a.count > b.count or (a.count == b.count and a.key < b.key)


@cython.final
cdef class Learner:
    """The state of learning: make it from a list of bytes objects, then call `step`.

    ``token_count`` is the number of ids so far (256 plus the rules).
    """

    cdef u32* symbols
    cdef u32* lengths      # bytes of each token
    cdef u32* left_slot    # per token id, while a rule is applied
    cdef u32* right_slot
    cdef u32* touched
    cdef Pair* pairs
    cdef Entry* heap
    cdef PairMap table
    cdef u32 n_tokens, token_capacity, n_pairs, pair_capacity
    cdef u64 n_heap, heap_capacity
    cdef Py_ssize_t n_slots
    cdef bint failed

    def __cinit__(self, list sequences):
        cdef Py_ssize_t total = len(sequences) + 1
        cdef Py_ssize_t at = 0, i, size
        cdef const u8* data
        cdef bytes sequence
        cdef int status
        for sequence in sequences:
            total += PyBytes_GET_SIZE(sequence)
        if total > MAX_SLOTS:
            raise OverflowError(f"{total} bytes and boundaries")
        self.n_slots = total
        self.symbols = <u32*>malloc(total * sizeof(u32))
        self.token_capacity = 512
        self.lengths = <u32*>malloc(self.token_capacity * sizeof(u32))
        self.left_slot = <u32*>calloc(self.token_capacity, sizeof(u32))
        self.right_slot = <u32*>calloc(self.token_capacity, sizeof(u32))
        self.touched = <u32*>malloc(2 * self.token_capacity * sizeof(u32))
        if (
            self.symbols == NULL or self.lengths == NULL or self.left_slot == NULL
            or self.right_slot == NULL or self.touched == NULL
            or pair_map_create(&self.table, 1 << 12) != 0
        ):
            raise MemoryError
        self.n_tokens = 256
        for i in range(256):
            self.lengths[i] = 1
        self.symbols[0] = BOUNDARY
        at = 1
        for sequence in sequences:
            data = <const u8*>PyBytes_AS_STRING(sequence)
            size = PyBytes_GET_SIZE(sequence)
            for i in range(size):
                self.symbols[at + i] = data[i]
            at += size
            self.symbols[at] = BOUNDARY
            at += 1
        with nogil:
            status = self._count_bytes()
        if status != 0:
            raise MemoryError

    def __dealloc__(self):
        cdef u32 i
        if self.pairs != NULL:
            for i in range(self.n_pairs):
                free(self.pairs[i].positions)
        free(self.pairs)
        free(self.heap)
        free(self.symbols)
        free(self.lengths)
        free(self.left_slot)
        free(self.right_slot)
        free(self.touched)
        pair_map_destroy(&self.table)

    @property
    def token_count(self):
        return self.n_tokens

    # -- pairs and heap ---------------------------------------------------------------------------

    cdef int _new_pair(self, u64 key, u32 count, u32* index) noexcept nogil:
        """A pair with room for ``count`` positions, counted and in the heap."""
        cdef Pair* pairs
        cdef Pair* pair
        cdef u32 capacity
        if self.n_pairs == self.pair_capacity:
            capacity = 2 * self.pair_capacity + 1024
            pairs = <Pair*>realloc(self.pairs, capacity * sizeof(Pair))
            if pairs == NULL:
                return -1
            self.pairs = pairs
            self.pair_capacity = capacity
        pair = &self.pairs[self.n_pairs]
        pair.key = key
        pair.count = count
        pair.n_positions = 0
        pair.positions = NULL
        if count > 1:
            pair.positions = <u32*>malloc(count * sizeof(u32))
            if pair.positions == NULL:
                return -1
        index[0] = self.n_pairs
        self.n_pairs += 1
        if pair_map_put(&self.table, key, index[0]) != 0:
            return -1
        return self._push(key, count, index[0])

    cdef inline void _append(self, u32 index, u32 position) noexcept nogil:
        cdef Pair* pair = &self.pairs[index]
        if pair.positions == NULL:
            pair.single = position
        else:
            pair.positions[pair.n_positions] = position
        pair.n_positions += 1

    cdef inline void _decrement(self, u32 left, u32 right) noexcept nogil:
        cdef Pair* pair = &self.pairs[pair_map_get(&self.table, pair_key(left, right))]
        pair.count -= 1
        if pair.count == 0:
            free(pair.positions)
            pair.positions = NULL

    cdef int _push(self, u64 key, u32 count, u32 index) noexcept nogil:
        cdef Entry* heap
        cdef u64 capacity, at = self.n_heap, parent
        cdef Entry entry
        if self.n_heap == self.heap_capacity:
            capacity = 2 * self.heap_capacity + 1024
            heap = <Entry*>realloc(self.heap, capacity * sizeof(Entry))
            if heap == NULL:
                return -1
            self.heap = heap
            self.heap_capacity = capacity
        entry.key = key
        entry.count = count
        entry.pair = index
        self.n_heap += 1
        while at > 0:
            parent = (at - 1) // 2
            if not _before(&entry, &self.heap[parent]):
                break
            self.heap[at] = self.heap[parent]
            at = parent
        self.heap[at] = entry
        return 0

    cdef void _sift_down(self) noexcept nogil:
        cdef Entry entry = self.heap[0]
        cdef u64 at = 0, child
        while True:
            child = 2 * at + 1
            if child >= self.n_heap:
                break
            if child + 1 < self.n_heap and _before(&self.heap[child + 1], &self.heap[child]):
                child += 1
            if not _before(&self.heap[child], &entry):
                break
            self.heap[at] = self.heap[child]
            at = child
        self.heap[at] = entry

    cdef u32 _take_winner(self) noexcept nogil:
        """Index of the pair to replace next, or MISSING when no pair is left."""
        cdef Pair* pair
        cdef u32 index
        while self.n_heap > 0:
            index = self.heap[0].pair
            pair = &self.pairs[index]
            if pair.count != 0 and pair.count < self.heap[0].count:
                self.heap[0].count = pair.count
                self._sift_down()
                continue
            self.n_heap -= 1
            if self.n_heap > 0:
                self.heap[0] = self.heap[self.n_heap]
                self._sift_down()
            if pair.count != 0:
                return index
        return MISSING

    # -- the work -----------------------------------------------------------------------------------

    cdef int _count_bytes(self) noexcept nogil:
        cdef u32* slots = <u32*>calloc(65536, sizeof(u32))
        cdef Py_ssize_t i
        cdef u32 left, right, byte_pair
        if slots == NULL:
            return -1
        for i in range(self.n_slots - 1):
            if self.symbols[i] != BOUNDARY and self.symbols[i + 1] != BOUNDARY:
                slots[(self.symbols[i] << 8) | self.symbols[i + 1]] += 1
        for byte_pair in range(65536):
            if slots[byte_pair] != 0:
                left = byte_pair >> 8
                right = byte_pair & 255
                if self._new_pair(pair_key(left, right), slots[byte_pair], &slots[byte_pair]) != 0:
                    free(slots)
                    return -1
        for i in range(self.n_slots - 1):
            if self.symbols[i] != BOUNDARY and self.symbols[i + 1] != BOUNDARY:
                self._append(slots[(self.symbols[i] << 8) | self.symbols[i + 1]], <u32>i)
        free(slots)
        return 0

    cdef u32 _replace(
        self, u32 left, u32 right, u32* positions, u32 n_positions
    ) noexcept nogil:
        """Rewrite all places left to right; keeps the replaced positions in front, returns how many."""
        cdef u32 new = self.n_tokens
        cdef u32 left_length = self.lengths[left]
        cdef u32 right_length = self.lengths[right]
        cdef u32 kept = 0, i, p, q, symbol
        cdef u32* symbols = self.symbols
        for i in range(n_positions):
            p = positions[i]
            if symbols[p] != left:
                continue
            q = p + left_length
            if symbols[q] != right:
                continue
            symbol = symbols[p - 1]
            # a neighbour that is the new token itself never had its pair counted
            if symbol != BOUNDARY and (symbol & ~END) != new:
                self._decrement(symbol & ~END, left)
            symbol = symbols[q + right_length]
            if symbol != BOUNDARY:
                self._decrement(right, symbol)
            symbols[p] = new
            symbols[q] = END | new
            symbols[q + right_length - 1] = END | new
            positions[kept] = p
            kept += 1
        return kept

    cdef int _list_new_pairs(self, const u32* positions, u32 n_positions) noexcept nogil:
        """Count and list the pairs beside the replacements: (x, new), then (new, y)."""
        cdef u32 new = self.n_tokens
        cdef u32 length = self.lengths[new]
        cdef u32* lefts = self.touched
        cdef u32* rights = self.touched + self.token_capacity
        cdef u32 n_lefts = 0, n_rights = 0, i, p, symbol
        for i in range(n_positions):
            p = positions[i]
            symbol = self.symbols[p - 1]
            if symbol != BOUNDARY:
                symbol &= ~END
                if self.left_slot[symbol] == 0:
                    lefts[n_lefts] = symbol
                    n_lefts += 1
                self.left_slot[symbol] += 1
            symbol = self.symbols[p + length]
            if symbol != BOUNDARY and symbol != new:      # (new, new) is counted from its right half
                if self.right_slot[symbol] == 0:
                    rights[n_rights] = symbol
                    n_rights += 1
                self.right_slot[symbol] += 1
        for i in range(n_lefts):
            symbol = lefts[i]
            if self._new_pair(
                pair_key(symbol, new), self.left_slot[symbol], &self.left_slot[symbol]
            ) != 0:
                return -1
        for i in range(n_rights):
            symbol = rights[i]
            if self._new_pair(
                pair_key(new, symbol), self.right_slot[symbol], &self.right_slot[symbol]
            ) != 0:
                return -1
        for i in range(n_positions):
            p = positions[i]
            symbol = self.symbols[p - 1]
            if symbol != BOUNDARY:
                symbol &= ~END
                self._append(self.left_slot[symbol], p - self.lengths[symbol])
            symbol = self.symbols[p + length]
            if symbol != BOUNDARY and symbol != new:
                self._append(self.right_slot[symbol], p)
        for i in range(n_lefts):
            self.left_slot[lefts[i]] = 0
        for i in range(n_rights):
            self.right_slot[rights[i]] = 0
        return 0

    cdef int _room_for_token(self) noexcept nogil:
        cdef u32 capacity = 2 * self.token_capacity, i
        cdef u32* grown
        if self.n_tokens + 1 < self.token_capacity:
            return 0
        grown = <u32*>realloc(self.lengths, capacity * sizeof(u32))
        if grown == NULL:
            return -1
        self.lengths = grown
        grown = <u32*>realloc(self.touched, 2 * capacity * sizeof(u32))
        if grown == NULL:
            return -1
        self.touched = grown
        grown = <u32*>realloc(self.left_slot, capacity * sizeof(u32))
        if grown == NULL:
            return -1
        self.left_slot = grown
        grown = <u32*>realloc(self.right_slot, capacity * sizeof(u32))
        if grown == NULL:
            return -1
        self.right_slot = grown
        for i in range(self.token_capacity, capacity):
            self.left_slot[i] = 0
            self.right_slot[i] = 0
        self.token_capacity = capacity
        return 0

    cdef int _step(self, u64* key, u32* candidates, u32* replacements) noexcept nogil:
        cdef u32 index, left, right, n_positions
        cdef u32 single
        cdef u32* positions
        cdef int status
        if self._room_for_token() != 0:
            return -1
        index = self._take_winner()
        if index == MISSING:
            return 0
        key[0] = self.pairs[index].key
        candidates[0] = self.pairs[index].count
        left = <u32>(key[0] >> 32)
        right = <u32>(key[0] & 0xffffffffu)
        self.lengths[self.n_tokens] = self.lengths[left] + self.lengths[right]
        # the list leaves the pair first: a run "aaa" lowers the winner's own count on the way
        n_positions = self.pairs[index].n_positions
        single = self.pairs[index].single
        positions = self.pairs[index].positions
        self.pairs[index].positions = NULL
        if positions == NULL:
            replacements[0] = self._replace(left, right, &single, n_positions)
            status = self._list_new_pairs(&single, replacements[0])
        else:
            replacements[0] = self._replace(left, right, positions, n_positions)
            status = self._list_new_pairs(positions, replacements[0])
            free(positions)
        self.pairs[index].count = 0
        self.n_tokens += 1
        return status if status != 0 else 1

    def step(self):
        """Make one rule: ``(left, right, candidate count, replacement count)``, or None at the end."""
        cdef u64 key = 0
        cdef u32 candidates = 0, replacements = 0
        cdef int status
        if self.failed:
            raise MemoryError
        with nogil:
            status = self._step(&key, &candidates, &replacements)
        if status < 0:
            self.failed = True      # half-made counts must not be used
            raise MemoryError
        if status == 0:
            return None
        return key >> 32, key & 0xffffffff, candidates, replacements

    def sequences(self):
        """Every sequence as a uint32 array of training-space ids."""
        cdef Py_ssize_t at = 1, start, n
        cdef cnp.ndarray ids
        cdef u32* out
        result = []
        while at < self.n_slots:
            start = at
            n = 0
            while self.symbols[at] != BOUNDARY:
                at += self.lengths[self.symbols[at]]
                n += 1
            ids = np.empty(n, np.uint32)
            out = <u32*>cnp.PyArray_DATA(ids)
            at = start
            n = 0
            while self.symbols[at] != BOUNDARY:
                out[n] = self.symbols[at]
                at += self.lengths[self.symbols[at]]
                n += 1
            at += 1
            result.append(ids)
        return result
