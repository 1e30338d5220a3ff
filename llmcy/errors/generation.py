"""Sampling, continuing prompts, and caches of keys and values."""

from __future__ import annotations

from llmcy.errors.base import LlmcyError

__all__ = [
    "CacheError",
    "CachedGenerationError",
    "GenerationError",
    "SamplingError",
]


class SamplingError(LlmcyError, ValueError):
    """Choosing a token from logits."""

    KINDS = {
        "EmptyLogits": (),
        "VocabularyTooLarge": ("vocabulary_size",),
        "NonFiniteLogit": ("token_id", "value"),
        "InvalidTemperature": ("value",),
        "InvalidTopK": ("top_k", "vocabulary_size"),
        "InvalidTopP": ("value",),
        "InvalidMinP": ("value",),
        "InvalidRepetitionPenalty": ("value",),
        "InvalidProbabilitySum": ("value",),
    }


class GenerationError(LlmcyError, ValueError):
    """Requests to continue a prompt."""

    KINDS = {
        "EmptyPrompt": (),
        "PromptTooLong": ("tokens", "max_positions"),
        "PromptTokenOutOfBounds": ("position", "token_id", "vocabulary_size"),
        "EosTokenOutOfBounds": ("token_id", "vocabulary_size"),
        "InvalidMaxNewTokens": ("value",),
        "LogitCountMismatch": ("expected", "actual"),
        "Sampling": (),
        "Model": (),
        "Autodiff": (),
    }


class CachedGenerationError(GenerationError):
    """Requests to continue a prompt with a cache; ``Cache`` wraps what the cache refused."""

    KINDS = GenerationError.KINDS | {
        "Cache": (),
        "StreamCountMismatch": ("expected", "actual"),
    }


class CacheError(LlmcyError, RuntimeError):
    """Caches of keys and values: of one attention layer, and of a whole model."""

    KINDS = {
        # making one
        "ZeroBatchSize": (),
        "ZeroCapacity": (),
        "CapacityExceedsPositions": ("capacity", "positions"),
        "ElementCountOverflow": ("elements",),
        "AllocationFailed": ("elements",),
        # one token through one layer
        "InputRank": ("shape",),
        "SingleTokenRequired": ("tokens",),
        "InputBatchMismatch": ("expected", "actual"),
        "InputWidthMismatch": ("expected", "actual"),
        "CacheModelWidthMismatch": ("cache", "layer"),
        "CacheHeadCountMismatch": ("cache", "layer"),
        "CacheHeadWidthMismatch": ("cache", "layer"),
        "CacheLayerMismatch": ("parameter",),
        "CacheLayerRevisionMismatch": ("parameter", "cache", "layer"),
        "CacheRopeMismatch": (),
        "Cache": (),
        "Full": ("capacity",),
        "Autodiff": (),
        # binding a whole model
        "ModelConfigMismatch": (),
        "ModelParameterCountMismatch": ("cache", "model"),
        "ModelParameterMismatch": ("index",),
        "ModelParameterRevisionMismatch": ("index", "cache", "model"),
        "LayerCountMismatch": ("cache", "model"),
        "LayerLengthInvariant": ("layer", "expected", "actual"),
        "LayerBatchSizeMismatch": ("layer", "expected", "actual"),
        "LayerCapacityMismatch": ("layer", "expected", "actual"),
        "IncrementalAttention": ("layer",),
        # a session
        "SessionClosed": (),
        "PromptCountMismatch": ("expected", "actual"),
        "EmptyPrompt": ("row",),
        "PrefillRequiresEmpty": ("len",),
        "PromptTooLong": ("tokens", "capacity"),
        "PromptTokenOutOfBounds": ("position", "token_id", "vocabulary_size"),
        "DecodeRequiresPrefill": (),
        "RowsMismatch": ("expected", "actual"),
        "DecodeTokenOutOfBounds": ("token_id", "vocabulary_size"),
        "PreparedCacheChanged": ("layer",),
        "WorkOverflow": ("counter",),
    }
