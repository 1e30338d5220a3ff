"""log and log1p, correctly rounded."""

from libc.math cimport INFINITY, NAN

from llmcy._kernels.cr_exact cimport exact_log, exact_log1p
from llmcy._kernels.types cimport IS_F32, fabs, real


cdef inline double cr_log(double x) noexcept nogil:
    if not x > 0.0:
        return -INFINITY if x == 0.0 else NAN
    if x == INFINITY:
        return x
    if x == 1.0:
        return 0.0
    return exact_log(x, 53)


cdef inline float cr_logf(float x) noexcept nogil:
    if not x > 0.0:
        return -INFINITY if x == 0.0 else NAN
    if x == INFINITY:
        return x
    if x == 1.0:
        return 0.0
    return <float>exact_log(x, 24)


cdef inline double cr_log1p(double x) noexcept nogil:
    if not x > -1.0:
        return -INFINITY if x == -1.0 else NAN
    if x == INFINITY or fabs(x) < 5.551115123125783e-17:       # 2^-54
        return x
    return exact_log1p(x, 53)


cdef inline float cr_log1pf(float x) noexcept nogil:
    if not x > -1.0:
        return -INFINITY if x == -1.0 else NAN
    if x == INFINITY or fabs(x) < 5.551115123125783e-17:
        return x
    return <float>exact_log1p(x, 24)


cdef inline real cr_log_r(real x) noexcept nogil:
    if IS_F32:
        return cr_logf(<float>x)
    return <real>cr_log(x)


cdef inline real cr_log1p_r(real x) noexcept nogil:
    if IS_F32:
        return cr_log1pf(<float>x)
    return <real>cr_log1p(x)
