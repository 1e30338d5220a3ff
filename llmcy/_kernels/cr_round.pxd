"""Between doubles and multi-limb integers: taking a double apart, rounding an integer to a result.

`bits` is the precision of the result: 53 for binary64, 24 for binary32.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from llmcy._kernels.cr_limbs cimport (
    MAX_LIMBS, add, any_below, bit_length, bits_from, copy, is_zero, place, subtract,
)


cdef struct Parts:
    uint64_t mantissa           # 2^52 <= mantissa < 2^53
    int exponent                # |x| = mantissa * 2^exponent
    bint negative


cdef inline Parts split(double x) noexcept nogil:
    """Mantissa and exponent of a finite nonzero double, subnormals normalised."""
    cdef Parts p
    cdef uint64_t u
    memcpy(&u, &x, 8)
    p.negative = (u >> 63) != 0
    p.exponent = <int>((u >> 52) & 0x7ff) - 1075
    p.mantissa = u & 0xfffffffffffffULL
    if p.exponent == -1075:
        p.exponent = -1074
        while p.mantissa < (<uint64_t>1 << 52):
            p.mantissa <<= 1
            p.exponent -= 1
    else:
        p.mantissa |= <uint64_t>1 << 52
    return p


cdef inline uint64_t round_integer(const uint64_t* a, int n, int scale, int bits) noexcept nogil:
    """Bit pattern (without sign) of a * 2^scale rounded to nearest even, a > 0."""
    cdef int bias = 1023 if bits == 53 else 127
    cdef int length = bit_length(a, n)
    cdef int exponent = length - 1 + scale          # 2^exponent <= value < 2^(exponent + 1)
    cdef int kept = bits                            # bits that the result has room for
    cdef uint64_t infinity = (<uint64_t>(2 * bias + 1)) << (bits - 1)
    cdef uint64_t m
    cdef bint half
    cdef int position
    if exponent > bias:
        return infinity
    if exponent < 1 - bias:                         # subnormal
        kept = bits - (1 - bias - exponent)
    if kept < 0:                                    # below half of the smallest subnormal
        return 0
    position = length - kept                        # of the lowest kept bit
    m = bits_from(a, n, position) if kept > 0 else 0
    half = (bits_from(a, n, position - 1) & 1) != 0
    if half and ((m & 1) != 0 or any_below(a, n, position - 1)):
        m += 1
    if exponent >= 1 - bias:                        # a carry out of m moves into the exponent
        m += (<uint64_t>(exponent + bias - 1)) << (bits - 1)
    return m


cdef inline double from_pattern(uint64_t pattern, bint negative, int bits) noexcept nogil:
    cdef double d
    cdef float f
    cdef uint32_t narrow
    if bits == 53:
        pattern |= <uint64_t>negative << 63
        memcpy(&d, &pattern, 8)
        return d
    narrow = <uint32_t>pattern | (<uint32_t>negative << 31)
    memcpy(&f, &narrow, 4)
    return f


cdef inline bint decide(
    const uint64_t* a, int n, int scale, int error, int bits, uint64_t* pattern
) noexcept nogil:
    """Whether everything within 2^error of a rounds alike; then `pattern` is that rounding."""
    cdef uint64_t margin[MAX_LIMBS]
    cdef uint64_t low[MAX_LIMBS]
    cdef uint64_t high[MAX_LIMBS]
    if error >= 64 * n - 1:
        return False
    place(margin, n, 1, error)
    copy(low, a, n)
    copy(high, a, n)
    if subtract(low, margin, n) != 0 or is_zero(low, n) or add(high, margin, n) != 0:
        return False
    pattern[0] = round_integer(low, n, scale, bits)
    return pattern[0] == round_integer(high, n, scale, bits)
