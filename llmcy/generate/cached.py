"""Continuing prompts with a cache: the tokens, draws and random states of the uncached way.

The final token of a text is never fed back, so a cache ends up holding the prompt and every
generated token but the last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from llmcy.errors import CachedGenerationError, CacheError
from llmcy.generate.generate import (
    GenerationConfig,
    GenerationStep,
    StopReason,
    Writer,
    check_request,
)
from llmcy.generate.kv_cache import CacheSession, KVCache
from llmcy.model import Decoder
from llmcy.rng import SplitMix64

__all__ = ["CachedGenerationResult", "generate_batch", "generate_cached"]

Prompt = Sequence[int] | NDArray[np.int64]


@dataclass(frozen=True)
class CachedGenerationResult:
    """A prompt continued with a cache.

    Attributes
    ----------
    prompt, generated, steps, stop
        As in :class:`~llmcy.generate.generate.GenerationResult`.
    prefill_tokens, decode_tokens
        Tokens that went through the model: the prompt's, and one a later token.
    final_cache_length
        Their sum.
    layer_cache_count
        Layers, each with a cache.
    score_values
        Attention scores computed: layers x heads x length, for every length up to the last.
    complete_prefix_scores
        What full attention matrices over the same prefixes would hold: layers x heads x prefix
        squared, for every choice.
    """

    prompt: tuple[int, ...]
    generated: tuple[int, ...]
    steps: tuple[GenerationStep, ...]
    stop: StopReason
    prefill_tokens: int
    decode_tokens: int
    layer_cache_count: int
    score_values: int
    complete_prefix_scores: int

    @property
    def final_cache_length(self) -> int:
        """Positions the cache held at the end."""
        return self.prefill_tokens + self.decode_tokens


def generate_cached(
    model: Decoder,
    prompt: Prompt,
    config: GenerationConfig,
    rng: SplitMix64,
    *,
    on_token: Callable[[GenerationStep], object] | None = None,
) -> CachedGenerationResult:
    """Continue ``prompt``: one pass over it, then one row a token.

    Parameters
    ----------
    model, prompt, config, rng, on_token
        As for :func:`~llmcy.generate.generate.generate_uncached`.

    Returns
    -------
    CachedGenerationResult
        The tokens, draws, intervals and final random state of the uncached way, by bits.

    Raises
    ------
    CachedGenerationError
        As the uncached way, in the same order; ``Cache`` when there is no memory for the cache or
        the model changed meanwhile.
    """

    def show(_: int, step: GenerationStep) -> None:
        if on_token is not None:
            on_token(step)

    return generate_batch(model, [prompt], config, [rng], on_token=show)[0]


def generate_batch(
    model: Decoder,
    prompts: Sequence[Prompt],
    config: GenerationConfig,
    rngs: Sequence[SplitMix64],
    *,
    on_token: Callable[[int, GenerationStep], object] | None = None,
) -> tuple[CachedGenerationResult, ...]:
    """Continue several prompts side by side; lengths may differ.

    Parameters
    ----------
    model, config
        As for :func:`generate_cached`; the same settings for all prompts.
    prompts
        Token ids of each prompt.
    rngs
        A stream for each prompt.
    on_token
        Called with the prompt's index and the step, as soon as a token is chosen.

    Returns
    -------
    tuple of CachedGenerationResult
        What :func:`generate_cached` gives for each prompt alone.  A text that has ended takes no
        further part.

    Raises
    ------
    CachedGenerationError
        ``StreamCountMismatch`` unless there is one stream a prompt; else as
        :func:`generate_cached`, for the first prompt that is refused.  Nothing is drawn then.
    """
    if len(prompts) != len(rngs):
        raise CachedGenerationError(
            "StreamCountMismatch",
            f"{len(prompts)} prompts need as many random streams, got {len(rngs)}",
            expected=len(prompts),
            actual=len(rngs),
        )
    vocab_size, max_seq_len = model.config.vocab_size, model.config.max_seq_len
    checked = [
        check_request(prompt, config, vocab_size, max_seq_len, CachedGenerationError)
        for prompt in prompts
    ]
    writers = [
        Writer(ids, config, rng, vocab_size, max_seq_len, CachedGenerationError)
        for ids, rng in zip(checked, rngs, strict=True)
    ]
    if writers and config.max_new_tokens > 0:
        longest = max(len(ids) for ids in checked)
        capacity = min(max_seq_len, longest + config.max_new_tokens - 1)
        try:
            with KVCache(model, len(writers), capacity).bind(model) as session:
                _write(session, writers, on_token)
        except CacheError as error:
            cause = error.cause if error.kind == "Autodiff" else error
            kind = "Autodiff" if error.kind == "Autodiff" else "Cache"
            raise CachedGenerationError(kind, str(error), cause=cause) from error
    lanes = model.config.n_layers * model.config.n_heads
    return tuple(_result(writer, model.config.n_layers, lanes) for writer in writers)


def _write(
    session: CacheSession,
    writers: list[Writer],
    on_token: Callable[[int, GenerationStep], object] | None,
) -> None:
    going = list(range(len(writers)))
    out = session.prefill([writer.prompt for writer in writers])
    while True:
        for row, logits in zip(going, out.logits, strict=True):
            step = writers[row].choose(logits[0])
            if on_token is not None:
                on_token(row, step)
        going = [row for row in going if writers[row].stop is None]
        if not going:
            return
        out = session.decode([writers[row].prefix[-1] for row in going], going)


def _result(writer: Writer, layers: int, lanes: int) -> CachedGenerationResult:
    assert writer.stop is not None  # nothing ends earlier
    calls = len(writer.steps)
    prefill = len(writer.prompt) if calls else 0
    decode = max(calls - 1, 0)
    final = prefill + decode
    return CachedGenerationResult(
        writer.prompt,
        writer.generated,
        tuple(writer.steps),
        writer.stop,
        prefill,
        decode,
        layers,
        lanes * (final * (final + 1) // 2),
        lanes * sum(step.prefix_length**2 for step in writer.steps),
    )
