"""exp, correctly rounded: exp(x) = 2^(k/128) * exp(r), x = k ln2/128 + r.

The fast path computes exp(x) / 2^floor(k/128), a value in [0.99, 2.01], as hi + lo with an error
below EXP_ERROR; docs/elementary.md has the proof.  If hi + (lo - EXP_ERROR) and
hi + (lo + EXP_ERROR) round to the same double, so does the exact value; else integers decide.
Only + - * and a table are used, in an order that a compiler can vectorise without changing a bit.
"""

from libc.math cimport INFINITY

from llmcy._kernels.cr_exact cimport exact_exp
from llmcy._kernels.types cimport IS_F32, bits_of, fabs, from_bits, real, u64

cdef extern from "cr_tables.h" nogil:
    const double EXP_INVERSE "LLMCY_EXP_INVERSE"
    const double EXP_STEP_1 "LLMCY_EXP_STEP_1"
    const double EXP_STEP_2 "LLMCY_EXP_STEP_2"
    const double EXP_STEP_3 "LLMCY_EXP_STEP_3"
    const double* EXP_HEAD "LLMCY_EXP_HEAD"
    const double* EXP_TAIL "LLMCY_EXP_TAIL"
    const double* EXP_POWER "LLMCY_EXP_POWER"

cdef extern from *:
    """
    #define LLMCY_EXP_ERROR 0x1.4p-67
    #define LLMCY_ROUND_INT 0x1.8p52    /* adding and subtracting it rounds to an integer */
    #define LLMCY_ROUND_34 0x1.8p18     /* ... to a multiple of 2^-34 */
    """
    const double EXP_ERROR "LLMCY_EXP_ERROR"
    const double ROUND_INT "LLMCY_ROUND_INT"
    const double ROUND_34 "LLMCY_ROUND_34"

cdef enum:
    EXP_BLOCK = 64


# ---- binary64 ------------------------------------------------------------------------------------

cdef inline double exp_reduced(
    double s, double low, u64 index, double error, double* spread
) noexcept nogil:
    """2^(index/128) * exp(s + low), right if `spread` comes back as zero.

    |s| < 0.00272, |low| < 2^-61; the low bits of `index` are a number in two's complement.
    """
    cdef double head = (s + ROUND_34) - ROUND_34    # 26 bits
    cdef double tail = (s - head) + low
    # exp(s) - 1 - s
    cdef double q = (s * s) * (0.5 + s * (1.0 / 6.0 + s * (1.0 / 24.0 + s * (
        1.0 / 120.0 + s * (1.0 / 720.0)))))
    cdef double th = EXP_HEAD[index & 127]
    cdef double tl = EXP_TAIL[index & 127]
    cdef double product = th * head                 # exact: 27 and 26 bits
    cdef double hi = th + product
    cdef double lo = (product - (hi - th)) + (tl + (th * (q + tail) + tl * (s + q)))
    cdef double above = hi + (lo + error)
    spread[0] = above - (hi + (lo - error))
    return from_bits(bits_of(above) + ((index >> 7) << 52))


cdef inline double exp_fast(double x, double* spread) noexcept nogil:
    """exp(x) for -708 <= x <= 709, right if `spread` comes back as zero."""
    cdef double shifted = x * EXP_INVERSE + ROUND_INT
    cdef double k = shifted - ROUND_INT             # the low bits of `shifted` hold it too
    cdef double d = x - k * EXP_STEP_1              # product and difference exact
    cdef double p = k * EXP_STEP_2                  # exact
    cdef double s = d - p                           # s + slip = d - p exactly (two-sum)
    cdef double back = s - d
    cdef double slip = (d - (s - back)) - (p + back)
    return exp_reduced(s, slip - k * EXP_STEP_3, bits_of(shifted), EXP_ERROR, spread)


cdef inline double cr_exp(double x) noexcept nogil:
    cdef double spread = 0.0, y
    if -708.0 <= x and x <= 709.0:
        y = exp_fast(x, &spread)
        if spread == 0.0:
            return y
    if x != x:
        return x
    if x > 709.79:
        return INFINITY
    if x < -745.14:
        return 0.0
    return exact_exp(x, 53, 0)


cdef inline void exp_block_f64(const double* x, double* y, int n) noexcept nogil:
    """y[i] = exp(x[i]) for i < n <= EXP_BLOCK.  Three plain loops, so that each is vectorised."""
    cdef double inside[EXP_BLOCK]
    cdef double value[EXP_BLOCK]
    cdef double spread[EXP_BLOCK]
    cdef double v
    cdef u64 doubt = 0
    cdef int i
    for i in range(n):
        v = x[i]
        v = v if v >= -708.0 else -708.0            # NaN becomes -708 and differs from x below
        inside[i] = v if v <= 709.0 else 709.0
    for i in range(n):
        value[i] = exp_fast(inside[i], &spread[i])
    for i in range(n):
        doubt |= bits_of(spread[i]) | (bits_of(inside[i]) ^ bits_of(x[i]))
    if doubt != 0:
        for i in range(n):
            if spread[i] != 0.0 or inside[i] != x[i]:
                value[i] = cr_exp(x[i])
    for i in range(n):
        y[i] = value[i]


# ---- binary32 ------------------------------------------------------------------------------------

cdef inline float exp_narrow(double x) noexcept nogil:
    """exp of a binary32 value within [-110, 100], rounded to binary32.

    In binary64 the value is off by less than 2^-50 of itself.  No binary32 argument comes that
    close to a boundary between two results: established by trying all of them
    (tests/kernels/test_elementary.py, test_exp_of_every_float).
    """
    cdef double shifted = x * EXP_INVERSE + ROUND_INT
    cdef double k = shifted - ROUND_INT
    cdef u64 index = bits_of(shifted)
    cdef double r = (x - k * EXP_STEP_1) - k * EXP_STEP_2
    cdef double p = r + (r * r) * (0.5 + r * (1.0 / 6.0 + r * (1.0 / 24.0 + r * (1.0 / 120.0))))
    cdef double power = EXP_POWER[index & 127]
    return <float>from_bits(bits_of(power + power * p) + ((index >> 7) << 52))


cdef inline float cr_expf(float x) noexcept nogil:
    if x != x:
        return x
    if x > 100.0:
        return INFINITY
    if x < -110.0:
        return 0.0
    return exp_narrow(x)


cdef inline void exp_block_f32(const float* x, float* y, int n) noexcept nogil:
    cdef double inside[EXP_BLOCK]
    cdef float value[EXP_BLOCK]
    cdef float v
    cdef int i
    for i in range(n):
        v = x[i]
        v = -110.0 if v < -110.0 else v             # NaN stays
        inside[i] = 100.0 if v > 100.0 else v
    for i in range(n):
        value[i] = exp_narrow(inside[i])
    for i in range(n):
        y[i] = value[i] if x[i] == x[i] else x[i]


# ---- the scalar type of the build ----------------------------------------------------------------

cdef inline real cr_exp_r(real x) noexcept nogil:
    if IS_F32:
        return cr_expf(<float>x)
    return <real>cr_exp(x)


cdef inline void cr_exp_block(const real* x, real* y, Py_ssize_t n) noexcept nogil:
    """y[i] = exp(x[i]) for i < n; y may be x.  The bits are those of cr_exp_r."""
    cdef Py_ssize_t i
    cdef int m
    for i from 0 <= i < n by EXP_BLOCK:
        m = <int>(n - i) if n - i < EXP_BLOCK else EXP_BLOCK
        if IS_F32:
            exp_block_f32(<const float*>(x + i), <float*>(y + i), m)
        else:
            exp_block_f64(<const double*>(x + i), <double*>(y + i), m)
