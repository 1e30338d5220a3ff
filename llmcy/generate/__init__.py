"""From logits to tokens, and from a prompt to its continuation."""

from llmcy.generate.generate import (
    GenerationConfig,
    GenerationResult,
    GenerationStep,
    StopReason,
    generate_uncached,
)
from llmcy.generate.sampling import (
    Distribution,
    Greedy,
    Sample,
    SamplingMode,
    TemperatureTopK,
    distribution,
    sample,
    sample_traced,
)

__all__ = [
    "Distribution",
    "GenerationConfig",
    "GenerationResult",
    "GenerationStep",
    "Greedy",
    "Sample",
    "SamplingMode",
    "StopReason",
    "TemperatureTopK",
    "distribution",
    "generate_uncached",
    "sample",
    "sample_traced",
]
