# The inverse roots of RMSNorm (formula in rms_norm.pyx) and of attention (attention.pyx).

from llmcy._kernels.cr_math cimport cr_exp, cr_log
from llmcy._kernels.types cimport IS_F32, real, sqrt, sqrtf


cdef inline real inverse_root(double st) noexcept nogil:
    if IS_F32:
        return <real>(1.0 / sqrt(st))
    return <real>cr_exp(cr_log(st) * -0.5)


cdef inline real score_scale(Py_ssize_t Dh) noexcept nogil:
    """The rounded reciprocal of a rounded root; to be formed within a chunk, whose rounding mode is
    known."""
    if IS_F32:
        return <real>(<float>1.0 / sqrtf(<float>Dh))
    return <real>(1.0 / sqrt(<double>Dh))
