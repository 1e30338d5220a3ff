# The sigmoid of a block of elements, for swiglu and decode_step.

from llmcy._kernels.cr_math cimport cr_exp_block_decay
from llmcy._kernels.types cimport real


cdef inline void sigmoids(const real* x, real* sg, Py_ssize_t n) noexcept nogil:
    cdef Py_ssize_t i
    cr_exp_block_decay(x, sg, n)
    for i in range(n):
        sg[i] = (<real>1 if x[i] >= 0 else sg[i]) / (<real>1 + sg[i])
