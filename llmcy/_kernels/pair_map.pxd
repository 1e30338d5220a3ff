# From a pair of token ids to a 32-bit number: open addressing, linear probing, no removal.
#
# Token strings as both byte-pair kernels hold them (`symbols`): one 32-bit slot per byte.  A token
# stands at its first byte as its id; its last byte, if another one, holds END | id, so that the
# token before a position can be found; the slots between hold anything with END set.  BOUNDARY
# stands before the first and after the last token of a sequence.  Ids are therefore below
# 0x7fffffff, and with token lengths at hand no other links are needed.

from libc.stdlib cimport calloc, free

from llmcy._kernels.types cimport u32, u64

cdef extern from *:
    """
    #define LLMCY_TOKEN_END 0x80000000u
    #define LLMCY_BOUNDARY 0xffffffffu
    #define LLMCY_MISSING 0xffffffffu
    """
    const u32 END "LLMCY_TOKEN_END"
    const u32 BOUNDARY "LLMCY_BOUNDARY"
    const u32 MISSING "LLMCY_MISSING"

cdef struct PairMap:
    u64* keys        # (left << 32 | right) + 1; 0 marks a free slot
    u32* values
    u64 mask         # slots - 1, a power of two minus one
    u64 used


cdef inline u64 pair_key(u32 left, u32 right) noexcept nogil:
    return (<u64>left << 32) | right


cdef inline u64 _slot(const PairMap* table, u64 key) noexcept nogil:
    # multiplicative hashing (Knuth, vol. 3, 6.4); the upper half of the product is well mixed
    cdef u64 slot = ((key * <u64>0x9e3779b97f4a7c15) >> 32) & table.mask
    while table.keys[slot] != 0 and table.keys[slot] != key + 1:
        slot = (slot + 1) & table.mask
    return slot


cdef inline int pair_map_create(PairMap* table, u64 slots) noexcept nogil:
    # slots: a power of two; -1 when there is no memory
    table.keys = <u64*>calloc(slots, sizeof(u64))
    table.values = <u32*>calloc(slots, sizeof(u32))
    table.mask = slots - 1
    table.used = 0
    return 0 if table.keys != NULL and table.values != NULL else -1


cdef inline void pair_map_destroy(PairMap* table) noexcept nogil:
    free(table.keys)
    free(table.values)
    table.keys = NULL
    table.values = NULL


cdef inline u32 pair_map_get(const PairMap* table, u64 key) noexcept nogil:
    cdef u64 slot = _slot(table, key)
    return table.values[slot] if table.keys[slot] != 0 else MISSING


cdef inline int _grow(PairMap* table) noexcept nogil:
    cdef PairMap larger
    cdef u64 i, slot
    if pair_map_create(&larger, 2 * (table.mask + 1)) != 0:
        pair_map_destroy(&larger)
        return -1
    for i in range(table.mask + 1):
        if table.keys[i] != 0:
            slot = _slot(&larger, table.keys[i] - 1)
            larger.keys[slot] = table.keys[i]
            larger.values[slot] = table.values[i]
    larger.used = table.used
    pair_map_destroy(table)
    table[0] = larger
    return 0


cdef inline int pair_map_put(PairMap* table, u64 key, u32 value) noexcept nogil:
    # the key must be new; at most half of the slots are used
    cdef u64 slot
    if 2 * (table.used + 1) > table.mask + 1 and _grow(table) != 0:
        return -1
    slot = _slot(table, key)
    table.keys[slot] = key + 1
    table.values[slot] = value
    table.used += 1
    return 0
