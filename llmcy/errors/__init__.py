"""The one hierarchy of exceptions.

Every error has a ``kind``, a CamelCase word that never changes, and the fields that the kind
declares, as attributes.  The human text may change; programs look at kind and fields.  An error
that wraps another one (a checkpoint whose optimizer settings are invalid, say) has it as ``cause``.
"""

from __future__ import annotations

from llmcy.errors.arguments import (
    ConfigError,
    DTypeError,
    NonFiniteError,
    RangeError,
    ShapeError,
)
from llmcy.errors.base import LlmcyError
from llmcy.errors.evaluation import FinalEvaluationError, MetricError
from llmcy.errors.generation import (
    CachedGenerationError,
    CacheError,
    GenerationError,
    SamplingError,
)
from llmcy.errors.storage import CheckpointError, FileError, InteropError, RunError
from llmcy.errors.text import DataError, TokenizerError
from llmcy.errors.training import (
    AutodiffError,
    InitializationError,
    ModelError,
    OptimizerError,
    OptimizerStateError,
    TensorError,
    TrainerError,
    trainer_errors,
)

__all__ = [
    "AutodiffError",
    "CacheError",
    "CachedGenerationError",
    "CheckpointError",
    "ConfigError",
    "DTypeError",
    "DataError",
    "FileError",
    "FinalEvaluationError",
    "GenerationError",
    "InitializationError",
    "InteropError",
    "LlmcyError",
    "MetricError",
    "ModelError",
    "NonFiniteError",
    "OptimizerError",
    "OptimizerStateError",
    "RangeError",
    "RunError",
    "SamplingError",
    "ShapeError",
    "TensorError",
    "TokenizerError",
    "TrainerError",
    "trainer_errors",
]

# a traceback names the place to import an error from
for _name in __all__:
    globals()[_name].__module__ = __name__
del _name
