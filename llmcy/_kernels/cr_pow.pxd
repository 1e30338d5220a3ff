"""pow, correctly rounded, with the special cases of IEEE 754 (and C, annex F)."""

from libc.math cimport INFINITY, NAN

from llmcy._kernels.cr_exact cimport exact_pow
from llmcy._kernels.types cimport IS_F32, fabs, real


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


cdef inline double cr_pow(double x, double y) noexcept nogil:
    cdef double result = 0.0
    if pow_special(x, y, &result):
        return result
    result = exact_pow(fabs(x), y, 53)
    return -result if x < 0.0 and is_odd(y) else result


cdef inline float cr_powf(float x, float y) noexcept nogil:
    cdef double result = 0.0
    if pow_special(x, y, &result):
        return <float>result
    result = exact_pow(fabs(x), y, 24)
    return <float>(-result if x < 0.0 and is_odd(y) else result)


cdef inline real cr_pow_r(real x, real y) noexcept nogil:
    if IS_F32:
        return cr_powf(<float>x, <float>y)
    return <real>cr_pow(x, y)
