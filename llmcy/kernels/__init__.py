"""The numerical functions of llmcy on numpy arrays: checked, in the order the contract fixes.

Every function takes C-contiguous float32 or float64 arrays, gives the same bits on every processor
and with every number of threads, and raises before it computes when its arguments do not fit.
Values may be NaN or infinite: arithmetic then says so in its results, and the tape reports it.
"""

from llmcy.kernels.adamw import (
    ADAMW_STAGES,
    AdamWGroup,
    AdamWUpdate,
    NonFiniteStage,
    adamw_stages,
    adamw_update,
)
from llmcy.kernels.attention import attention, attention_backward
from llmcy.kernels.attention_step import (
    KEY_BLOCK,
    attention_step,
    cache_append,
    cached_keys,
    empty_cache,
)
from llmcy.kernels.compensated import compensated_reach, compensated_sum
from llmcy.kernels.cross_entropy import (
    cross_entropy,
    cross_entropy_backward,
    cross_entropy_row_losses,
)
from llmcy.kernels.decode_step import (
    BlockWeights,
    CachedDecodeStep,
    DecoderWeights,
    DecodeStep,
    StepResult,
)
from llmcy.kernels.elementary import cos, exp, log, log1p, pow, sin
from llmcy.kernels.elementwise import (
    accumulate,
    add,
    copy,
    first_non_finite,
    multiply,
    multiply_backward,
    scale,
    scale_backward,
)
from llmcy.kernels.embedding import embedding, embedding_backward
from llmcy.kernels.grad_norm import BlockSums, GradNorm, grad_norm
from llmcy.kernels.linear_cross_entropy import linear_cross_entropy
from llmcy.kernels.matmul import matmul, matmul_d_weight
from llmcy.kernels.memory import empty, empty_like, release_memory, zeros
from llmcy.kernels.recording import RecordedCalls, Recording
from llmcy.kernels.reduce import mean, mean_backward, sum, sum_backward, sum_rows
from llmcy.kernels.rms_norm import RmsNorm, rms_norm, rms_norm_backward
from llmcy.kernels.rope import rope, rope_table
from llmcy.kernels.softmax import (
    causal_softmax,
    causal_softmax_backward,
    log_softmax,
    log_softmax_backward,
    softmax,
    softmax_backward,
)
from llmcy.kernels.swiglu import silu, silu_backward, swiglu, swiglu_backward

__all__ = [
    "ADAMW_STAGES",
    "KEY_BLOCK",
    "AdamWGroup",
    "AdamWUpdate",
    "BlockSums",
    "BlockWeights",
    "CachedDecodeStep",
    "DecodeStep",
    "DecoderWeights",
    "GradNorm",
    "NonFiniteStage",
    "RecordedCalls",
    "Recording",
    "RmsNorm",
    "StepResult",
    "accumulate",
    "adamw_stages",
    "adamw_update",
    "add",
    "attention",
    "attention_backward",
    "attention_step",
    "cache_append",
    "cached_keys",
    "causal_softmax",
    "causal_softmax_backward",
    "compensated_reach",
    "compensated_sum",
    "copy",
    "cos",
    "cross_entropy",
    "cross_entropy_backward",
    "cross_entropy_row_losses",
    "embedding",
    "embedding_backward",
    "empty",
    "empty_cache",
    "empty_like",
    "exp",
    "first_non_finite",
    "grad_norm",
    "linear_cross_entropy",
    "log",
    "log1p",
    "log_softmax",
    "log_softmax_backward",
    "matmul",
    "matmul_d_weight",
    "mean",
    "mean_backward",
    "multiply",
    "multiply_backward",
    "pow",
    "release_memory",
    "rms_norm",
    "rms_norm_backward",
    "rope",
    "rope_table",
    "scale",
    "scale_backward",
    "silu",
    "silu_backward",
    "sin",
    "softmax",
    "softmax_backward",
    "sum",
    "sum_backward",
    "sum_rows",
    "swiglu",
    "swiglu_backward",
    "zeros",
]
