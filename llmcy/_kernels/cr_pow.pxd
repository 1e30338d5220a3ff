"""pow, correctly rounded, with the special cases of IEEE 754 (and C, annex F).

The fast path is exp(y log x) with log x as a pair good to 2^-75 of itself; the error of the whole
is below POW_ERROR (proof in docs/elementary.md).  Powers that are halfway between two results, and
whatever else it cannot tell, are decided by integers.
"""

from libc.math cimport INFINITY, NAN

from llmcy._kernels.cr_dd cimport Pair, fast_two_sum, two_product, two_sum
from llmcy._kernels.cr_exact cimport exact_pow
from llmcy._kernels.cr_exp cimport (
    EXP_INVERSE, EXP_STEP_1, EXP_STEP_2, EXP_STEP_3, ROUND_INT, exp_reduced,
)
from llmcy._kernels.cr_log cimport (
    LN2_HEAD, LN2_TAIL, LOG_HEAD, LOG_INVERSE, LOG_TAIL, Place, is_halfway, place_of, reduced,
)
from llmcy._kernels.types cimport IS_F32, bits_of, fabs, real

cdef extern from *:
    """
    #define LLMCY_POW_ERROR 0x1p-64
    #define LLMCY_THIRD_TAIL 0x1.5555555555555p-56      /* 1/3 - fl(1/3) */
    """
    const double POW_ERROR "LLMCY_POW_ERROR"
    const double THIRD_TAIL "LLMCY_THIRD_TAIL"


cdef inline bint is_integer(double y) noexcept nogil:
    """For finite y."""
    return fabs(y) >= 4503599627370496.0 or <double><long long>y == y       # 2^52


cdef inline bint is_odd(double y) noexcept nogil:
    """For an integer y (all from 2^53 on are even)."""
    return fabs(y) < 9007199254740992.0 and (<long long>y & 1) != 0


cdef inline bint pow_special(double x, double y, double* result) noexcept nogil:
    """Whether x^y is one of the named cases; then `result` is its value.

    What is left has finite x != 0, |x| != 1, finite y != 0, and y an integer where x < 0.
    """
    cdef bint odd
    cdef double magnitude = fabs(x)
    if x == 1.0 or y == 0.0:                        # also for NaN
        result[0] = 1.0
        return True
    if x != x or y != y:
        result[0] = NAN
        return True
    if fabs(y) == INFINITY:
        if magnitude == 1.0:
            result[0] = 1.0
        else:
            result[0] = INFINITY if (magnitude > 1.0) == (y > 0.0) else 0.0
        return True
    odd = is_integer(y) and is_odd(y)
    if magnitude == 0.0 or magnitude == INFINITY:
        magnitude = INFINITY if (magnitude == INFINITY) == (y > 0.0) else 0.0
        # the sign bit decides, also of -0
        result[0] = -magnitude if odd and (x < 0.0 or 1.0 / x < 0.0) else magnitude
        return True
    if x < 0.0 and not is_integer(y):
        result[0] = NAN
        return True
    if magnitude == 1.0:
        result[0] = -1.0 if odd else 1.0
        return True
    return False


cdef inline Pair log_wide(double x) noexcept nogil:
    """log(x) for finite x > 0, off by less than 2^-75 of itself (and exactly 0 for x = 1).

    The sum of cr_log's log_pair with the cubic term as a pair as well.
    """
    cdef Place at = place_of(x)
    cdef double k = at.k
    cdef Pair r = reduced(at.z, LOG_INVERSE[at.piece])
    cdef double t = r.hi
    cdef Pair square = two_product(t, t)
    cdef Pair cube = two_product(t, square.hi)
    # log(1 + t) = t - t^2/2 + t^3 (1/3 + tail of the series)
    cdef double series = t * (-1.0 / 4.0 + t * (1.0 / 5.0 + t * (-1.0 / 6.0 + t * (
        1.0 / 7.0 + t * (-1.0 / 8.0 + t * (1.0 / 9.0 + t * (-1.0 / 10.0)))))))
    cdef Pair factor = fast_two_sum(1.0 / 3.0, series)
    cdef Pair cubic = two_product(cube.hi, factor.hi)
    cubic.lo += cube.hi * (factor.lo + THIRD_TAIL) + (cube.lo + t * square.lo) * factor.hi
    cdef double base = k * LN2_HEAD + LOG_HEAD[at.piece]
    cdef Pair first = two_sum(base, t)
    cdef Pair second = two_sum(first.hi, -0.5 * square.hi)
    cdef Pair third = two_sum(second.hi, cubic.hi)
    cdef double low = (k * LN2_TAIL + LOG_TAIL[at.piece]) + ((first.lo + second.lo) + third.lo)
    low += (r.lo - t * (r.lo - t * r.lo)) + (cubic.lo - 0.5 * square.lo)
    return fast_two_sum(third.hi, low)


cdef inline double pow_fast(double x, double y, double* spread) noexcept nogil:
    """x^y for x > 0, x != 1, y != 0, right if `spread` comes back as zero."""
    cdef Pair log_x, e, s
    cdef double shifted, k
    spread[0] = 1.0
    if fabs(y) > 18446744073709551616.0:            # 2^64: beyond the range, as |log x| >= 2^-53
        return 0.0
    log_x = log_wide(x)
    if fabs(y * log_x.hi) < 2.7755575615628914e-17:        # 2^-55: within a quarter unit of 1
        spread[0] = 0.0
        return 1.0
    e = two_product(y, log_x.hi)
    e.lo += y * log_x.lo
    if not (-708.0 <= e.hi and e.hi <= 709.0):
        return 0.0
    # as exp_fast, with e.lo joining the reduced argument
    shifted = e.hi * EXP_INVERSE + ROUND_INT
    k = shifted - ROUND_INT
    s = two_sum(e.hi - k * EXP_STEP_1, -(k * EXP_STEP_2))
    s = two_sum(s.hi, (s.lo - k * EXP_STEP_3) + e.lo)
    return exp_reduced(s.hi, s.lo, bits_of(shifted), POW_ERROR, spread)


cdef inline double cr_pow(double x, double y) noexcept nogil:
    cdef double result = 0.0, spread = 0.0
    if pow_special(x, y, &result):
        return result
    result = pow_fast(fabs(x), y, &spread)
    if spread != 0.0:
        result = exact_pow(fabs(x), y, 53, 0)
    return -result if x < 0.0 and is_odd(y) else result


cdef inline float cr_powf(float x, float y) noexcept nogil:
    cdef double result = 0.0, magnitude
    if pow_special(x, y, &result):
        return <float>result
    result = cr_pow(x, y)
    # The second rounding is right unless halfway (cr_log says why) or in the subnormal range.
    magnitude = fabs(result)
    if is_halfway(result) or (7.006492321624085e-46 <= magnitude        # 2^-150
                              and magnitude < 1.1754943508222875e-38):  # 2^-126
        magnitude = exact_pow(fabs(x), y, 24, 0)
        return <float>(-magnitude if result < 0.0 else magnitude)
    return <float>result


cdef inline real cr_pow_r(real x, real y) noexcept nogil:
    if IS_F32:
        return cr_powf(<float>x, <float>y)
    return <real>cr_pow(x, y)
