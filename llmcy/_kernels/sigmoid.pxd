# The sigmoid of a block of elements, for swiglu and decode_step.

from llmcy._kernels.cr_math cimport cr_exp_block_decay
from llmcy._kernels.types cimport real

cdef extern from *:
    """
    #define LLMCY_SIGMOID_GROUP (LLMCY_IS_F32 ? 256 : 32)
    """
    enum:
        # Elements of which all exponentials come first.  In binary64 so few that the processor divides
        # them while it computes the next ones; in binary32 long loops are worth more.
        GROUP "LLMCY_SIGMOID_GROUP"


cdef inline void _sigmoids(const real* x, real* sg, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    cr_exp_block_decay(x, sg, n)
    for i in range(n):
        sg[i] = (<real>1 if x[i] >= 0 else sg[i]) / (<real>1 + sg[i])


cdef inline void sigmoids(const real* x, real* sg, Py_ssize_t n) noexcept nogil:
    """sg[i] = 1 / (1 + e) for x[i] >= 0, else e / (1 + e), with e = exp(-|x[i]|)."""
    cdef Py_ssize_t start = 0
    while start + GROUP <= n:
        _sigmoids(x + start, sg + start, GROUP)
        start += GROUP
    if start < n:
        _sigmoids(x + start, sg + start, n - start)
