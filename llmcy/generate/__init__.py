"""From logits to tokens, and from a prompt to its continuation."""

from llmcy.generate.cached import (
    CachedGenerationResult,
    generate_batch,
    generate_cached,
)
from llmcy.generate.generate import (
    GenerationConfig,
    GenerationResult,
    GenerationStep,
    StopReason,
    generate_uncached,
)
from llmcy.generate.kv_cache import CacheSession, KVCache, StepOutput, WorkCounters
from llmcy.generate.layer_cache import AttentionEvidence, LayerKVCache, forward_incremental
from llmcy.generate.modes import Greedy, SamplingMode, TemperatureSampling, TemperatureTopK
from llmcy.generate.sampling import (
    Distribution,
    Sample,
    distribution,
    sample,
    sample_traced,
)

__all__ = [
    "AttentionEvidence",
    "CacheSession",
    "CachedGenerationResult",
    "Distribution",
    "GenerationConfig",
    "GenerationResult",
    "GenerationStep",
    "Greedy",
    "KVCache",
    "LayerKVCache",
    "Sample",
    "SamplingMode",
    "StepOutput",
    "StopReason",
    "TemperatureSampling",
    "TemperatureTopK",
    "WorkCounters",
    "distribution",
    "forward_incremental",
    "generate_batch",
    "generate_cached",
    "generate_uncached",
    "sample",
    "sample_traced",
]
