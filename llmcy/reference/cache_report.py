"""The report on cached generation: a cache step by step, and text with it and without it.

What full attention matrices over the same prefixes would hold is counted by formula; everything
else is read off sessions, caches and results.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmcy.checkpoint import Checkpoint
from llmcy.config import ModelConfig
from llmcy.errors import CacheError
from llmcy.generate import (
    CachedGenerationResult,
    CacheSession,
    GenerationConfig,
    GenerationResult,
    KVCache,
    StepOutput,
    WorkCounters,
    generate_cached,
    generate_uncached,
)
from llmcy.model import Decoder
from llmcy.reference.replay import logits_of
from llmcy.reference.sampling_report import MAX_NEW_TOKENS, MODE, PROMPT, stop_word
from llmcy.reference.text import decimals, hexadecimal, listed, record
from llmcy.rng import SplitMix64
from llmcy.state import DecoderModelState

__all__ = ["MeasuredCache", "Phase", "cache_report", "cached_decoder", "measure_cache"]

CONFIG = ModelConfig(vocab_size=5, d_model=4, n_heads=2, n_layers=2, d_ff=4, max_seq_len=4)
SEED = 38
FIRST, NEXT = (0, 1), 2
TOLERANCE = 2e-12  # what was promised where bits were not


@dataclass(frozen=True)
class Phase:
    """One call of a session.

    Attributes
    ----------
    before, after
        Positions held.
    layer_lengths, shape
        Length of every layer's cache; shape of the first one's keys.
    output
        What the call gave.
    difference
        Largest distance between its logits and those of a full pass over the same prefix.
    """

    before: int
    after: int
    layer_lengths: tuple[int, ...]
    shape: tuple[int, ...]
    output: StepOutput
    difference: float


@dataclass(frozen=True)
class Pair:
    """A prompt continued with a cache and without one, from equal random states."""

    cached: CachedGenerationResult
    uncached: GenerationResult
    states_equal: bool

    @property
    def equal(self) -> bool:
        """Whether prompt, tokens, stop and every draw and interval agree."""
        a, b = self.cached, self.uncached
        return (a.prompt, a.generated, a.stop, a.steps) == (b.prompt, b.generated, b.stop, b.steps)


@dataclass(frozen=True)
class MeasuredCache:
    """What was seen of a cache.

    Attributes
    ----------
    fingerprint, prefill, decode, work
        The decoder's parameters; two calls; the counters after both.
    storage_distinct
        No two layers share memory.
    loaded_bytes, rng_state, context, text, written, ended
        A loaded checkpoint, its continuation both ways and as text, and one with an end token.
    reset
        What a reset changed and what it left.
    rejected, unchanged
        Refusals by name; whether all of them left the cache as it was.
    """

    fingerprint: str
    prefill: Phase
    decode: Phase
    work: WorkCounters
    storage_distinct: bool
    loaded_bytes: int
    rng_state: int
    context: int
    text: Pair
    written: str
    ended: Pair
    reset: dict[str, int | bool]
    rejected: dict[str, bool]
    unchanged: bool


def cached_decoder() -> Decoder:
    """The decoder whose cache is looked at."""
    return Decoder.initialize(CONFIG, SEED)


def measure_cache(data: bytes) -> MeasuredCache:
    """Fill, read, reset and misuse a cache; continue a prompt with the checkpoint in ``data``."""
    model = cached_decoder()
    cache = KVCache(model)
    with cache.bind(model) as session:
        prefill = _phase(session, model, FIRST, lambda: session.prefill(FIRST))
        decode = _phase(session, model, (*FIRST, NEXT), lambda: session.decode(NEXT))
        work = session.work
        reset = _reset(session, (prefill.output, decode.output), work)
    checkpoint = Checkpoint.from_bytes(data)
    state, pieces = checkpoint.sampling_rng_state(), checkpoint.tokenizer.literal_pieces() or ()
    loaded = checkpoint.into_model()
    text = _both(loaded, state, None)
    rejected, unchanged = _misuse(model)
    return MeasuredCache(
        DecoderModelState.snapshot(model).fingerprint(),
        prefill,
        decode,
        work,
        _distinct(cache),
        len(data),
        state,
        loaded.config.max_seq_len,
        text,
        b"".join(pieces[token_id] for token_id in text.cached.generated).decode(),
        _both(loaded, state, text.cached.generated[0]),
        reset,
        rejected,
        unchanged,
    )


def cache_report(measured: MeasuredCache) -> str:
    """All lines of the report, each ending in a newline."""
    prefill, decode, work = measured.prefill, measured.decode, measured.work
    text, ended = measured.text, measured.ended
    lanes = CONFIG.n_layers * CONFIG.n_heads
    prefixes = (len(FIRST), len(FIRST) + 1)
    complete = [lanes * n * n for n in prefixes]
    lengths = range(1, decode.after + 1)
    lines = [
        record(
            "config",
            layers=CONFIG.n_layers,
            heads=CONFIG.n_heads,
            model_width=CONFIG.d_model,
            context=CONFIG.max_seq_len,
            tolerance=f"{TOLERANCE:.12f}",
        ),
        record("prefill", prompt=listed(FIRST), **_described(prefill, complete[0])),
        record(
            "decode",
            token=NEXT,
            position=int(decode.output.positions[0]),
            **_described(decode, complete[1]),
        ),
        record(
            "work",
            prefill_tokens=work.prefill_tokens,
            decode_tokens=work.decode_tokens,
            layer_caches=len(decode.layer_lengths),
            cache_appends=work.cache_appends,
            qkv_rows=work.qkv_projection_rows,
            cached_scores=work.attention_score_values,
            complete_prefix_scores=sum(complete),
            layer_storage_distinct=measured.storage_distinct,
        ),
        record(
            "loaded",
            checkpoint_bytes=measured.loaded_bytes,
            context_capacity=measured.context,
            rng_state=hexadecimal(measured.rng_state),
            prompt=listed(text.cached.prompt),
            generated=listed(text.cached.generated),
            text=measured.written,
            prefixes=listed(step.prefix_length for step in text.cached.steps),
            stop=stop_word(text.cached.stop),
            final_cache=text.cached.final_cache_length,
            prefill_tokens=text.cached.prefill_tokens,
            decode_tokens=text.cached.decode_tokens,
            cached_scores=text.cached.score_values,
            complete_prefix_scores=text.cached.complete_prefix_scores,
            tokens_match=text.equal,
            rng_match=text.states_equal,
        ),
        record(
            "eos",
            token=text.cached.generated[0],
            generated=listed(ended.cached.generated),
            stop=stop_word(ended.cached.stop),
            final_cache=ended.cached.final_cache_length,
            decode_tokens=ended.cached.decode_tokens,
            tokens_match=ended.equal,
            rng_match=ended.states_equal,
        ),
        record("reset", **measured.reset),
        record("errors", **measured.rejected, unchanged=measured.unchanged),
        record(
            "history",
            lanes=lanes,
            cached_lengths=listed(lengths),
            cached_scores=work.attention_score_values,
            complete_prefix_lengths=listed(prefixes),
            complete_prefix_scores=sum(complete),
            avoided_scores=sum(complete) - work.attention_score_values,
        ),
        "next=run-everything-from-text-to-text",
    ]
    return "\n".join(lines) + "\n"


# --------------------------------------------------------------------------- one call
def _phase(
    session: CacheSession, model: Decoder, prefix: Sequence[int], call: Callable[[], StepOutput]
) -> Phase:
    cache = session.cache
    before = len(cache)
    output = call()
    full = logits_of(model, prefix)[-1]
    return Phase(
        before,
        len(cache),
        tuple(len(layer) for layer in cache.layers),
        cache.layers[0].keys().shape,
        output,
        float(np.max(np.abs(output.logits[0, 0] - full))),
    )


def _described(phase: Phase, complete: int) -> dict[str, Any]:
    return {
        "cache": f"{phase.before}->{phase.after}",
        "layer_lengths": listed(phase.layer_lengths),
        "shape": listed(phase.shape),
        "cached_scores": phase.output.score_values,
        "complete_prefix_scores": complete,
        "max_abs_diff": f"{phase.difference:.12f}",
        "logits": decimals(phase.output.logits[0, 0].tolist(), 9),
    }


# --------------------------------------------------------------------------- reset and misuse
def _storage(cache: KVCache) -> list[NDArray[Any]]:
    return [array for layer in cache.layers for array in layer.storage]


def _distinct(cache: KVCache) -> bool:
    arrays = _storage(cache)
    return not any(
        np.shares_memory(one, other) for n, one in enumerate(arrays) for other in arrays[n + 1 :]
    )


def _reset(
    session: CacheSession, outputs: Sequence[StepOutput], work: WorkCounters
) -> dict[str, int | bool]:
    cache = session.cache
    before = len(cache)
    places = [array.ctypes.data for array in _storage(cache)]
    contents = [array.tobytes() for array in _storage(cache)]
    session.reset()
    found: dict[str, int | bool] = {
        "before": before,
        "after": len(cache),
        "allocation_reused": [array.ctypes.data for array in _storage(cache)] == places,
        "storage_unchanged": [array.tobytes() for array in _storage(cache)] == contents,
        "work_zeroed": session.work == WorkCounters(),
    }
    again = [session.prefill(FIRST), session.decode(NEXT)]
    found["replay_identical"] = session.work == work and all(
        a.logits.tobytes() == b.logits.tobytes() for a, b in zip(again, outputs, strict=True)
    )
    return found


def _misuse(model: Decoder) -> tuple[dict[str, bool], bool]:
    """Five requests that must be refused, each by name, and leave the cache alone."""
    named = [(name, parameter.data) for name, parameter in model.named_parameters()]
    rebuilt = Decoder.from_parameters(model.config, named)
    changed = Decoder.from_parameters(replace(model.config, rms_norm_eps=1e-5), named)
    everything = tuple(range(model.config.max_seq_len))
    rejected, unchanged = {}, True

    def refuses(kind: str, held: Sequence[int], attempt: Callable[[KVCache], object]) -> bool:
        nonlocal unchanged
        cache = KVCache(model)
        with cache.bind(model) as session:
            if held:
                session.prefill(held)
        before = (cache.lengths.tolist(), cache.work, [a.tobytes() for a in _storage(cache)])
        try:
            attempt(cache)
        except CacheError as error:
            after = (cache.lengths.tolist(), cache.work, [a.tobytes() for a in _storage(cache)])
            unchanged = unchanged and after == before
            return error.kind == kind
        return False

    def in_session(call: Callable[[CacheSession], object]) -> Callable[[KVCache], object]:
        def attempt(cache: KVCache) -> None:
            with cache.bind(model) as session:
                call(session)

        return attempt

    decode, prefill = in_session(lambda s: s.decode(NEXT)), in_session(lambda s: s.prefill(FIRST))
    rejected["decode_before_prefill"] = refuses("DecodeRequiresPrefill", (), decode)
    rejected["prefill_nonempty"] = refuses("PrefillRequiresEmpty", FIRST, prefill)
    rejected["overflow"] = refuses("Full", everything, decode)
    rejected["rebuilt_model"] = refuses(
        "ModelParameterMismatch", FIRST, lambda cache: cache.bind(rebuilt)
    )
    rejected["changed_config"] = refuses(
        "ModelConfigMismatch", FIRST, lambda cache: cache.bind(changed)
    )
    return rejected, unchanged


# --------------------------------------------------------------------------- text
def _both(model: Decoder, state: int, eos: int | None) -> Pair:
    request = GenerationConfig(MODE, eos, MAX_NEW_TOKENS)
    one, other = SplitMix64(state), SplitMix64(state)
    cached = generate_cached(model, PROMPT, request, one)
    uncached = generate_uncached(model, PROMPT, request, other)
    return Pair(cached, uncached, one.state == other.state)
