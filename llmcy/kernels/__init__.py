"""The numerical functions of llmcy on numpy arrays: checked, in the order the contract fixes.

Every function takes C-contiguous float32 or float64 arrays, gives the same bits on every processor
and with every number of threads, and raises before it computes when its arguments do not fit.
Values may be NaN or infinite: arithmetic then says so in its results, and the tape reports it.
"""

from llmcy.kernels.attention import attention, attention_backward
from llmcy.kernels.elementary import cos, exp, log, log1p, pow, sin
from llmcy.kernels.elementwise import (
    accumulate,
    add,
    first_non_finite,
    multiply,
    multiply_backward,
    scale,
    scale_backward,
)
from llmcy.kernels.matmul import matmul, matmul_d_weight
from llmcy.kernels.reduce import mean, mean_backward, sum, sum_backward, sum_rows

__all__ = [
    "accumulate",
    "add",
    "attention",
    "attention_backward",
    "cos",
    "exp",
    "first_non_finite",
    "log",
    "log1p",
    "matmul",
    "matmul_d_weight",
    "mean",
    "mean_backward",
    "multiply",
    "multiply_backward",
    "pow",
    "scale",
    "scale_backward",
    "sin",
    "sum",
    "sum_backward",
    "sum_rows",
]
