"""sin and cos, correctly rounded for every finite argument."""

from libc.math cimport INFINITY, NAN

from llmcy._kernels.cr_exact cimport exact_cos, exact_sin
from llmcy._kernels.types cimport IS_F32, fabs, real


cdef inline double cr_sin(double x) noexcept nogil:
    if not fabs(x) < INFINITY:
        return NAN
    if fabs(x) < 1.4901161193847656e-08:            # 2^-26: x^3/6 is below half a unit of x
        return x
    return exact_sin(x, 53)


cdef inline double cr_cos(double x) noexcept nogil:
    if not fabs(x) < INFINITY:
        return NAN
    if fabs(x) < 7.450580596923828e-09:             # 2^-27: x^2/2 is below 2^-54
        return 1.0
    return exact_cos(x, 53)


cdef inline float cr_sinf(float x) noexcept nogil:
    if not fabs(x) < INFINITY:
        return NAN
    if fabs(x) < 1.4901161193847656e-08:
        return x
    return <float>exact_sin(x, 24)


cdef inline float cr_cosf(float x) noexcept nogil:
    if not fabs(x) < INFINITY:
        return NAN
    if fabs(x) < 7.450580596923828e-09:
        return 1.0
    return <float>exact_cos(x, 24)


cdef inline real cr_sin_r(real x) noexcept nogil:
    if IS_F32:
        return cr_sinf(<float>x)
    return <real>cr_sin(x)


cdef inline real cr_cos_r(real x) noexcept nogil:
    if IS_F32:
        return cr_cosf(<float>x)
    return <real>cr_cos(x)
