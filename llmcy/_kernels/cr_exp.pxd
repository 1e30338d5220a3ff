"""exp, correctly rounded."""

from libc.math cimport INFINITY

from llmcy._kernels.cr_exact cimport exact_exp
from llmcy._kernels.types cimport IS_F32, fabs, real


cdef inline double cr_exp(double x) noexcept nogil:
    if x != x:
        return x
    if x > 709.79:
        return INFINITY
    if x < -745.14:
        return 0.0
    if fabs(x) < 5.551115123125783e-17:             # 2^-54
        return 1.0
    return exact_exp(x, 53)


cdef inline float cr_expf(float x) noexcept nogil:
    if x != x:
        return x
    if x > 89.0:
        return INFINITY
    if x < -104.0:
        return 0.0
    if fabs(x) < 5.551115123125783e-17:
        return 1.0
    return <float>exact_exp(x, 24)


cdef inline real cr_exp_r(real x) noexcept nogil:
    if IS_F32:
        return cr_expf(<float>x)
    return <real>cr_exp(x)


cdef inline void cr_exp_block(const real* x, real* y, Py_ssize_t n) noexcept nogil:
    """y[i] = exp(x[i]) for i < n; y may be x."""
    cdef Py_ssize_t i
    for i in range(n):
        y[i] = cr_exp_r(x[i])
