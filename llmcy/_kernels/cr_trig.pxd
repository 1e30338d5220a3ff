"""sin and cos, correctly rounded for every finite argument: x = k pi/128 + r.

    sin(x) = S cos(r) + C sin(r),   S = sin(k pi/128), C = cos(k pi/128) from a table.

The fast path takes |x| <= 2^20 and computes a pair with the error stated at `sine_pair` (proof in
docs/elementary.md); beyond it, and where it cannot tell, integers decide.
"""

from libc.math cimport INFINITY, NAN

from llmcy._kernels.cr_dd cimport Pair, fast_two_sum, rounds_alike, two_product, two_sum
from llmcy._kernels.cr_exact cimport exact_cos, exact_sin
from llmcy._kernels.cr_log cimport is_halfway
from llmcy._kernels.types cimport IS_F32, bits_of, fabs, real

cdef extern from "cr_tables.h" nogil:
    const double CIRCLE_INVERSE "LLMCY_CIRCLE_INVERSE"
    const double CIRCLE_STEP_1 "LLMCY_CIRCLE_STEP_1"
    const double CIRCLE_STEP_2 "LLMCY_CIRCLE_STEP_2"
    const double CIRCLE_STEP_3 "LLMCY_CIRCLE_STEP_3"
    const double CIRCLE_STEP_4 "LLMCY_CIRCLE_STEP_4"
    const double* SINE_HEAD "LLMCY_SINE_HEAD"
    const double* SINE_TAIL "LLMCY_SINE_TAIL"

cdef extern from *:
    """
    #define LLMCY_SINE_ERROR 0x1p-63            /* relative ... */
    #define LLMCY_SINE_ERROR_REDUCTION 0x1p-108 /* ... plus absolute */
    #define LLMCY_CIRCLE_ROUND 0x1.8p52
    """
    const double SINE_ERROR "LLMCY_SINE_ERROR"
    const double SINE_ERROR_REDUCTION "LLMCY_SINE_ERROR_REDUCTION"
    const double ROUND_INT "LLMCY_CIRCLE_ROUND"


cdef inline Pair sine_pair(double x, int quarter) noexcept nogil:
    """sin(x + quarter * pi/2) for |x| <= 2^20.

    Off by less than |value| * SINE_ERROR + SINE_ERROR_REDUCTION.
    """
    cdef double shifted = x * CIRCLE_INVERSE + ROUND_INT
    cdef double k = shifted - ROUND_INT
    cdef int i = <int>(bits_of(shifted) & 255) + 64 * quarter
    cdef double sh = SINE_HEAD[i & 255], sl = SINE_TAIL[i & 255]
    cdef double ch = SINE_HEAD[(i + 64) & 255], cl = SINE_TAIL[(i + 64) & 255]
    # r: the three products with 27 bits are exact, and so is the first difference
    cdef Pair a = two_sum(x - k * CIRCLE_STEP_1, -(k * CIRCLE_STEP_2))
    cdef Pair b = two_sum(a.hi, -(k * CIRCLE_STEP_3))
    cdef Pair r = two_sum(b.hi, (a.lo + b.lo) - k * CIRCLE_STEP_4)
    cdef Pair square = two_product(r.hi, r.hi)
    cdef double q = square.hi
    # sin(r) = r.hi + sine_low, cos(r) = 1 - q/2 + cosine_low
    cdef double sine_low = r.lo + (r.hi * q) * (-1.0 / 6.0 + q * (1.0 / 120.0 + q * (
        -1.0 / 5040.0 + q * (1.0 / 362880.0))))
    cdef double cosine_low = (q * q) * (1.0 / 24.0 + q * (-1.0 / 720.0 + q * (1.0 / 40320.0)))
    cosine_low -= 0.5 * square.lo + r.hi * r.lo
    cdef Pair u = two_product(ch, r.hi)
    cdef Pair v = two_product(sh, -0.5 * q)
    cdef Pair first = two_sum(sh, u.hi)
    cdef Pair second = two_sum(first.hi, v.hi)
    cdef double low = (first.lo + second.lo) + (u.lo + v.lo)
    low += (sl + cl * r.hi) - sl * (0.5 * q)
    low += ch * sine_low + sh * cosine_low
    return fast_two_sum(second.hi, low)


cdef inline bint decided(Pair p, double* result) noexcept nogil:
    return rounds_alike(p, fabs(p.hi) * SINE_ERROR + SINE_ERROR_REDUCTION, result)


cdef inline double cr_sin(double x) noexcept nogil:
    cdef double result = 0.0
    if not fabs(x) < INFINITY:
        return NAN
    if fabs(x) < 1.4901161193847656e-08:            # 2^-26: x^3/6 is below half a unit of x
        return x
    if fabs(x) <= 1048576.0 and decided(sine_pair(x, 0), &result):
        return result
    return exact_sin(x, 53, 0)


cdef inline double cr_cos(double x) noexcept nogil:
    cdef double result = 0.0
    if not fabs(x) < INFINITY:
        return NAN
    if fabs(x) < 7.450580596923828e-09:             # 2^-27: x^2/2 is below 2^-54
        return 1.0
    if fabs(x) <= 1048576.0 and decided(sine_pair(x, 1), &result):
        return result
    return exact_cos(x, 53, 0)


# binary32: why the second rounding is right unless halfway is said in cr_log.  Small arguments of
# sin return unchanged, and no binary32 number comes within 2^-60 of a multiple of pi/2, so no
# result is subnormal.

cdef inline float cr_sinf(float x) noexcept nogil:
    cdef double y = cr_sin(x)
    if is_halfway(y):
        return <float>exact_sin(x, 24, 0)
    return <float>y


cdef inline float cr_cosf(float x) noexcept nogil:
    cdef double y = cr_cos(x)
    if is_halfway(y):
        return <float>exact_cos(x, 24, 0)
    return <float>y


cdef inline real cr_sin_r(real x) noexcept nogil:
    if IS_F32:
        return cr_sinf(<float>x)
    return <real>cr_sin(x)


cdef inline real cr_cos_r(real x) noexcept nogil:
    if IS_F32:
        return cr_cosf(<float>x)
    return <real>cr_cos(x)
