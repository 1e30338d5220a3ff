# The inverse root of RMSNorm (formula in rms_norm.pyx), for rms_norm and decode_step.

from llmcy._kernels.cr_math cimport cr_exp, cr_log
from llmcy._kernels.types cimport IS_F32, real, sqrt


cdef inline real inverse_root(double st) noexcept nogil:
    if IS_F32:
        return <real>(1.0 / sqrt(st))
    return <real>cr_exp(cr_log(st) * -0.5)
