"""exp, correctly rounded: exp(x) = 2^(k/128) * exp(r), x = k ln2/128 + r.

The fast path computes exp(x) / 2^floor(k/128), a value in [0.99, 2.01], as hi + lo with an error
below EXP_ERROR; docs/elementary.md has the proof.  If hi + (lo - EXP_ERROR) and
hi + (lo + EXP_ERROR) round to the same double, so does the exact value; else integers decide.
Arrays are computed vector by vector in llmcy_exp.h, which asks cr_exp for the lanes that its own
test leaves in doubt; binary32 is there alone.
"""

from libc.math cimport INFINITY

from llmcy._kernels.cr_exact cimport exact_exp
from llmcy._kernels.types cimport bits_of, from_bits, real, u64

cdef extern from "cr_tables.h" nogil:
    const double EXP_INVERSE "LLMCY_EXP_INVERSE"
    const double EXP_STEP_1 "LLMCY_EXP_STEP_1"
    const double EXP_STEP_2 "LLMCY_EXP_STEP_2"
    const double EXP_STEP_3 "LLMCY_EXP_STEP_3"
    const double* EXP_HEAD "LLMCY_EXP_HEAD"
    const double* EXP_TAIL "LLMCY_EXP_TAIL"

cdef extern from *:
    """
    #define LLMCY_EXP_ERROR 0x1.4p-67
    #define LLMCY_ROUND_INT 0x1.8p52    /* adding and subtracting it rounds to an integer */
    #define LLMCY_ROUND_34 0x1.8p18     /* ... to a multiple of 2^-34 */
    """
    const double EXP_ERROR "LLMCY_EXP_ERROR"
    const double ROUND_INT "LLMCY_ROUND_INT"
    const double ROUND_34 "LLMCY_ROUND_34"

cdef extern from "llmcy_exp.h" nogil:
    void exp_of "llmcy_exp_of"(
        const real* x, real* y, Py_ssize_t n, double (*one)(double) noexcept nogil
    )
    void exp_of_shifted "llmcy_exp_of_shifted"(
        const real* x, real shift, real* y, Py_ssize_t n, double (*one)(double) noexcept nogil
    )
    void exp_of_decay "llmcy_exp_of_decay"(
        const real* x, real* y, Py_ssize_t n, double (*one)(double) noexcept nogil
    )


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


# ---- arrays of the build's scalar type --------------------------------------------------------

cdef inline void cr_exp_block(const real* x, real* y, Py_ssize_t n) noexcept nogil:
    """y[i] = exp(x[i]) for i < n; y may be x."""
    exp_of(x, y, n, cr_exp)


cdef inline void cr_exp_block_below(
    const real* x, real top, real* y, Py_ssize_t n
) noexcept nogil:
    """y[i] = exp(x[i] - top) for i < n and x[i] <= top, the difference rounded; y may be x."""
    exp_of_shifted(x, top, y, n, cr_exp)


cdef inline void cr_exp_block_decay(const real* x, real* y, Py_ssize_t n) noexcept nogil:
    """y[i] = exp(-|x[i]|) for i < n; y may be x."""
    exp_of_decay(x, y, n, cr_exp)
