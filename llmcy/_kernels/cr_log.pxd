"""log and log1p, correctly rounded: log(x) = k ln2 - log(c) + log(1 + r), r = z c - 1.

x = z 2^k with z in [0.705, 1.41), and c a reciprocal of 11 bits for the piece of that interval in
which z lies; around 1 it is 1, and then nothing cancels.  The fast path computes a pair with the
errors stated at `log_pair` (proof in docs/elementary.md); if it cannot tell, integers decide.
"""

from libc.math cimport INFINITY, NAN

from llmcy._kernels.cr_dd cimport Pair, fast_two_sum, rounds_alike, two_product, two_sum
from llmcy._kernels.cr_exact cimport exact_log, exact_log1p
from llmcy._kernels.types cimport IS_F32, bits_of, fabs, from_bits, i64, real, u64

cdef extern from "cr_tables.h" nogil:
    const double LN2_HEAD "LLMCY_LN2_HEAD"
    const double LN2_TAIL "LLMCY_LN2_TAIL"
    const u64 LOG_OFFSET "LLMCY_LOG_OFFSET"
    const int LOG_NEAR_ONE "LLMCY_LOG_NEAR_ONE"
    const double* LOG_INVERSE "LLMCY_LOG_INVERSE"
    const double* LOG_HEAD "LLMCY_LOG_HEAD"
    const double* LOG_TAIL "LLMCY_LOG_TAIL"

cdef extern from *:
    """
    #define LLMCY_LOG_ERROR_NEAR 0x1p-65    /* relative, for z in the piece of 1 and k = 0 */
    #define LLMCY_LOG_ERROR 0x1p-71         /* absolute, elsewhere */
    """
    const double LOG_ERROR_NEAR "LLMCY_LOG_ERROR_NEAR"
    const double LOG_ERROR "LLMCY_LOG_ERROR"


cdef struct Place:
    double z                    # x = z * 2^k
    int k
    int piece


cdef inline Place place_of(double x) noexcept nogil:
    """For finite x > 0."""
    cdef Place p
    cdef double normal = x if x >= 2.2250738585072014e-308 else x * 18014398509481984.0    # 2^54
    cdef u64 distance = bits_of(normal) - LOG_OFFSET
    cdef int k = <int>(<i64>distance >> 52)
    p.z = from_bits(bits_of(normal) - (<u64>k << 52))
    p.k = k if x >= 2.2250738585072014e-308 else k - 54
    p.piece = <int>(distance >> 45) & 127
    return p


cdef inline Pair reduced(double z, double c) noexcept nogil:
    """z c - 1 exactly: c has 11 bits, the upper part of z 32."""
    cdef double upper = from_bits(bits_of(z) & 0xffffffffffe00000ULL)
    return two_sum(upper * c - 1.0, (z - upper) * c)


cdef inline Pair log_pair(Pair r, double k, int piece) noexcept nogil:
    """k ln2 - log(c) + log(1 + r.hi + r.lo) for |r| < 2^-7.8, |r.lo| < 2^-52.

    Off by less than LOG_ERROR_NEAR of itself where k = 0 and c = 1 (r.lo = 0 there), else by less
    than LOG_ERROR.
    """
    cdef Pair square = two_product(r.hi, r.hi)
    cdef double t = r.hi
    # log(1 + t) - t + t^2/2
    cdef double cubic = (t * square.hi) * (1.0 / 3.0 + t * (-1.0 / 4.0 + t * (1.0 / 5.0 + t * (
        -1.0 / 6.0 + t * (1.0 / 7.0 + t * (-1.0 / 8.0 + t * (1.0 / 9.0)))))))
    cdef double base = k * LN2_HEAD + LOG_HEAD[piece]       # exact: multiples of 2^-42 below 2^10
    cdef Pair first = two_sum(base, t)
    cdef Pair second = two_sum(first.hi, -0.5 * square.hi)
    cdef double low = (k * LN2_TAIL + LOG_TAIL[piece]) + (first.lo + second.lo)
    low += (r.lo - t * (r.lo - t * r.lo)) - 0.5 * square.lo
    return fast_two_sum(second.hi, low + cubic)


cdef inline double log_error(Pair p, Place at) noexcept nogil:
    if at.k == 0 and at.piece == LOG_NEAR_ONE:
        return fabs(p.hi) * LOG_ERROR_NEAR
    return LOG_ERROR


cdef inline double cr_log(double x) noexcept nogil:
    cdef Place at
    cdef Pair p
    cdef double result = 0.0
    if not x > 0.0:
        return -INFINITY if x == 0.0 else NAN
    if x == INFINITY:
        return x
    if x == 1.0:
        return 0.0
    at = place_of(x)
    p = log_pair(reduced(at.z, LOG_INVERSE[at.piece]), <double>at.k, at.piece)
    if rounds_alike(p, log_error(p, at), &result):
        return result
    return exact_log(x, 53, 0)


cdef inline double cr_log1p(double x) noexcept nogil:
    cdef Place at
    cdef Pair p, u
    cdef double result = 0.0
    if not x > -1.0:
        return -INFINITY if x == -1.0 else NAN
    if x == INFINITY or fabs(x) < 5.551115123125783e-17:    # 2^-54: x^2/2 is below half a unit
        return x
    u = two_sum(1.0, x)                                     # 1 + x exactly
    at = place_of(u.hi)
    if at.k == 0 and at.piece == LOG_NEAR_ONE:
        p.hi = x                                            # r = x
        p.lo = 0.0
    else:
        p = reduced(at.z, LOG_INVERSE[at.piece])
        if at.k < 200:                                      # else the rest is below 2^-199
            p.lo += u.lo * from_bits(<u64>(1023 - at.k) << 52) * LOG_INVERSE[at.piece]
    p = log_pair(p, <double>at.k, at.piece)
    if rounds_alike(p, log_error(p, at), &result):
        return result
    return exact_log1p(x, 53, 0)


# ---- binary32 ------------------------------------------------------------------------------------
# A correctly rounded binary64 value, rounded again to binary32, is right unless it lies exactly
# halfway between two binary32 numbers: rounding is monotonic and the halfway points are binary64
# numbers themselves, so the exact value is on the same side of them.  None of the results below is
# in the subnormal range of binary32 (where halfway points have fewer bits): log is either 0 or
# above 2^-25, and log1p returns small arguments unchanged.

cdef inline bint is_halfway(double y) noexcept nogil:
    """Whether y is halfway between two neighbouring normal binary32 numbers."""
    return (bits_of(y) & 0x1fffffff) == 0x10000000


cdef inline float cr_logf(float x) noexcept nogil:
    cdef double y = cr_log(x)
    if is_halfway(y):
        return <float>exact_log(x, 24, 0)
    return <float>y


cdef inline float cr_log1pf(float x) noexcept nogil:
    cdef double y = cr_log1p(x)
    if is_halfway(y):
        return <float>exact_log1p(x, 24, 0)
    return <float>y


cdef inline real cr_log_r(real x) noexcept nogil:
    if IS_F32:
        return cr_logf(<float>x)
    return <real>cr_log(x)


cdef inline real cr_log1p_r(real x) noexcept nogil:
    if IS_F32:
        return cr_log1pf(<float>x)
    return <real>cr_log1p(x)
