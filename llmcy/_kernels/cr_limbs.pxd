"""Unsigned multi-limb integers: the arithmetic under the exact fallback.

A number is `n` 64-bit limbs, least significant first.  The callers read it as a fixed-point
value: `n` limbs after the point, and, where a function says `n + 1`, one more limb before it,
in two's complement when it can be negative.

Every operation that drops bits drops them downward (towards minus infinity for the bit pattern),
so each of them is off by less than one unit of the last limb.  The callers add these units up.
"""

from libc.stdint cimport uint64_t


cdef extern from *:
    """
    typedef unsigned __int128 llmcy_u128;
    /* floor((remainder * 2^64 + limb) / w), remainder < w; remainder becomes the new one.  In C
       because Cython, which takes the typedef for a 64-bit type, casts the operands of '/'. */
    static inline uint64_t llmcy_divide_step(uint64_t *remainder, uint64_t limb, uint64_t w) {
        llmcy_u128 current = ((llmcy_u128)*remainder << 64) | limb;
        *remainder = (uint64_t)(current % w);
        return (uint64_t)(current / w);
    }
    """
    ctypedef unsigned long long u128 "llmcy_u128"
    uint64_t divide_step "llmcy_divide_step"(
        uint64_t* remainder, uint64_t limb, uint64_t w
    ) noexcept nogil


cdef enum:
    MAX_LIMBS = 40          # the longest number any function below holds


cdef inline void clear(uint64_t* a, int n) noexcept nogil:
    cdef int i
    for i in range(n):
        a[i] = 0


cdef inline void copy(uint64_t* out, const uint64_t* a, int n) noexcept nogil:
    cdef int i
    for i in range(n):
        out[i] = a[i]


cdef inline bint is_zero(const uint64_t* a, int n) noexcept nogil:
    cdef int i
    for i in range(n):
        if a[i] != 0:
            return False
    return True


cdef inline int compare(const uint64_t* a, const uint64_t* b, int n) noexcept nogil:
    """-1, 0 or 1 as a < b, a == b, a > b (unsigned)."""
    cdef int i
    for i in range(n - 1, -1, -1):
        if a[i] != b[i]:
            return 1 if a[i] > b[i] else -1
    return 0


cdef inline uint64_t add(uint64_t* a, const uint64_t* b, int n) noexcept nogil:
    """a += b; returns the carry out."""
    cdef int i
    cdef u128 s
    cdef uint64_t carry = 0
    for i in range(n):
        s = <u128>a[i] + b[i] + carry
        a[i] = <uint64_t>s
        carry = <uint64_t>(s >> 64)
    return carry


cdef inline uint64_t subtract(uint64_t* a, const uint64_t* b, int n) noexcept nogil:
    """a -= b; returns the borrow out."""
    cdef int i
    cdef u128 d
    cdef uint64_t borrow = 0
    for i in range(n):
        d = <u128>a[i] - b[i] - borrow
        a[i] = <uint64_t>d
        borrow = <uint64_t>(d >> 64) & 1
    return borrow


cdef inline void negate(uint64_t* a, int n) noexcept nogil:
    """a = -a in two's complement."""
    cdef int i
    cdef u128 s
    cdef uint64_t carry = 1
    for i in range(n):
        s = <u128>(~a[i]) + carry
        a[i] = <uint64_t>s
        carry = <uint64_t>(s >> 64)


cdef inline bint is_negative(const uint64_t* a, int n) noexcept nogil:
    return (a[n - 1] >> 63) != 0


cdef inline uint64_t multiply_word(uint64_t* out, const uint64_t* a, int n, uint64_t w) noexcept nogil:
    """out = a * w, n limbs; returns the limb that does not fit."""
    cdef int i
    cdef u128 p
    cdef uint64_t carry = 0
    for i in range(n):
        p = <u128>a[i] * w + carry
        out[i] = <uint64_t>p
        carry = <uint64_t>(p >> 64)
    return carry


cdef inline void divide_word(uint64_t* a, int n, uint64_t w) noexcept nogil:
    """a = floor(a / w)."""
    cdef int i
    cdef uint64_t remainder = 0
    for i in range(n - 1, -1, -1):
        a[i] = divide_step(&remainder, a[i], w)


cdef inline void multiply(uint64_t* out, const uint64_t* a, int na, const uint64_t* b, int nb) noexcept nogil:
    """out = a * b, na + nb limbs; out overlaps neither."""
    cdef int i, j
    cdef u128 p
    cdef uint64_t carry
    clear(out, na + nb)
    for i in range(na):
        carry = 0
        for j in range(nb):
            p = <u128>a[i] * b[j] + out[i + j] + carry
            out[i + j] = <uint64_t>p
            carry = <uint64_t>(p >> 64)
        out[i + nb] = carry


cdef inline void multiply_fraction(uint64_t* out, const uint64_t* a, const uint64_t* b, int n) noexcept nogil:
    """out = floor(a * b / 2^(64 n)): the product of two pure fractions; out may be a or b."""
    cdef uint64_t full[2 * MAX_LIMBS]
    multiply(full, a, n, b, n)
    copy(out, full + n, n)


cdef inline void shift_left(uint64_t* a, int n, int bits) noexcept nogil:
    """a <<= bits (bits >= 0, what leaves the top is lost)."""
    cdef int limbs = bits >> 6, s = bits & 63, i
    cdef uint64_t high, low
    for i in range(n - 1, -1, -1):
        high = a[i - limbs] if i - limbs >= 0 else 0
        low = a[i - limbs - 1] if i - limbs - 1 >= 0 else 0
        a[i] = (high << s) | (low >> (64 - s)) if s != 0 else high


cdef inline void shift_right(uint64_t* a, int n, int bits) noexcept nogil:
    """a >>= bits (bits >= 0, unsigned)."""
    cdef int limbs = bits >> 6, s = bits & 63, i
    cdef uint64_t high, low
    for i in range(n):
        low = a[i + limbs] if i + limbs < n else 0
        high = a[i + limbs + 1] if i + limbs + 1 < n else 0
        a[i] = (low >> s) | (high << (64 - s)) if s != 0 else low


cdef inline void place(uint64_t* a, int n, uint64_t m, int position) noexcept nogil:
    """a = floor(m * 2^position); what is above n limbs is lost."""
    clear(a, n)
    if position < 0:
        a[0] = m >> -position if position > -64 else 0
        return
    cdef int limb = position >> 6, s = position & 63
    if limb < n:
        a[limb] = m << s
    if s != 0 and limb + 1 < n:
        a[limb + 1] = m >> (64 - s)


cdef inline int bit_length(const uint64_t* a, int n) noexcept nogil:
    """Position of the highest one bit plus one; 0 for zero."""
    cdef int i, length
    cdef uint64_t w
    for i in range(n - 1, -1, -1):
        if a[i] != 0:
            w = a[i]
            length = 64 * i
            while w != 0:
                w >>= 1
                length += 1
            return length
    return 0


cdef inline uint64_t bits_from(const uint64_t* a, int n, int position) noexcept nogil:
    """floor(a / 2^position) mod 2^64; limbs outside the number are zero (position may be < 0)."""
    cdef int limb, s
    cdef uint64_t low, high
    limb = position >> 6            # arithmetic shift: floor for negative positions too
    s = position & 63
    low = a[limb] if 0 <= limb < n else 0
    if s == 0:
        return low
    high = a[limb + 1] if 0 <= limb + 1 < n else 0
    return (low >> s) | (high << (64 - s))


cdef inline bint any_below(const uint64_t* a, int n, int position) noexcept nogil:
    """Whether one of the bits below `position` is one."""
    cdef int limb = position >> 6, s = position & 63, i
    if position <= 0:
        return False
    for i in range(limb if limb < n else n):
        if a[i] != 0:
            return True
    return limb < n and s != 0 and (a[limb] << (64 - s)) != 0
