"""Correctly rounded elementary functions: the only place where kernels get them from.

`cr_log` ... take and give binary64, `cr_logf` ... binary32, `cr_log_r` ... the scalar type of the
build; `cr_exp_block` ... do arrays of that type.  Each gives the value of the function rounded once,
to nearest even, subnormals kept, so its bits depend on the argument alone.  No libm function is
used.  Error bounds: docs/elementary.md.
"""

from llmcy._kernels.cr_exp cimport cr_exp, cr_exp_block, cr_exp_block_below, cr_exp_block_decay
from llmcy._kernels.cr_log cimport cr_log, cr_log1p, cr_log1p_r, cr_log1pf, cr_log_r, cr_logf
from llmcy._kernels.cr_pow cimport cr_pow, cr_pow_r, cr_powf
from llmcy._kernels.cr_trig cimport cr_cos, cr_cos_r, cr_cosf, cr_sin, cr_sin_r, cr_sinf
