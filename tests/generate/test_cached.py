"""Cached generation: tokens, draws, intervals and random states of the uncached way."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcy import kernels
from llmcy.config import ModelConfig
from llmcy.errors import CachedGenerationError, CacheError, GenerationError
from llmcy.generate import (
    GenerationConfig,
    GenerationStep,
    Greedy,
    KVCache,
    SamplingMode,
    StopReason,
    TemperatureSampling,
    TemperatureTopK,
    generate_batch,
    generate_cached,
    generate_uncached,
    session,
)
from llmcy.kernels import log_softmax
from llmcy.model import Decoder
from llmcy.reference.fixtures import PUBLISHED
from llmcy.rng import SplitMix64
from llmcy.tape import no_grad

CONFIG = ModelConfig(vocab_size=11, d_model=8, n_heads=2, n_layers=2, d_ff=8, max_seq_len=12)
DRAWN = TemperatureTopK(0.9, 5)


def model(dtype: str = "float64") -> Decoder:
    return Decoder.initialize(ModelConfig.from_dict({**CONFIG.to_dict(), "dtype": dtype}), 5)


modes = st.one_of(
    st.just(Greedy()),
    st.builds(TemperatureTopK, st.floats(0.2, 3.0), st.integers(1, 11)),
    st.builds(
        TemperatureSampling,
        st.floats(0.2, 3.0),
        st.sampled_from([None, 7]),
        st.floats(0.3, 1.0),
        st.floats(0.0, 0.4),
        st.floats(0.8, 2.0),
    ),
)


@settings(max_examples=40)
@given(
    prompts=st.lists(st.lists(st.integers(0, 10), min_size=1, max_size=12), min_size=1, max_size=4),
    mode=modes,
    eos=st.sampled_from([None, 3, 7]),
    limit=st.integers(0, 14),
    seed=st.integers(0, 2**64 - 5),
)
def test_batched_cached_and_uncached_agree_by_bits(
    dtype: np.dtype,
    prompts: list[list[int]],
    mode: SamplingMode,
    eos: int | None,
    limit: int,
    seed: int,
) -> None:
    decoder = model(dtype.name)
    config = GenerationConfig(mode, eos, limit, log_probabilities=True)
    streams = [SplitMix64(seed + i) for i in range(len(prompts))]
    together = generate_batch(decoder, prompts, config, streams)
    for i, (prompt, found) in enumerate(zip(prompts, together, strict=True)):
        alone, slow = SplitMix64(seed + i), SplitMix64(seed + i)
        expected = generate_uncached(decoder, prompt, config, slow)
        assert (found.prompt, found.generated, found.steps, found.stop) == (
            expected.prompt, expected.generated, expected.steps, expected.stop,
        )  # fmt: skip
        assert generate_cached(decoder, prompt, config, alone) == found
        assert streams[i].state == alone.state == slow.state
        calls = len(found.steps)
        assert found.final_cache_length == (len(prompt) + calls - 1 if calls else 0)
        assert found.layer_cache_count == 2


def test_the_published_checkpoint_continues_alike() -> None:
    trained = PUBLISHED.train_decoder().selected_model
    rng = SplitMix64(0x9E3779B97F4A7C38)
    found = generate_cached(trained, [0], GenerationConfig(TemperatureTopK(1.0, 3), None, 3), rng)
    assert (found.generated, found.stop) == ((4, 4), StopReason.CONTEXT_LIMIT)
    assert rng.state == 0xDAA66D2C7DDF7462
    assert (found.prefill_tokens, found.decode_tokens, found.final_cache_length) == (1, 1, 2)
    assert found.score_values == 2 * (1 + 2)  # one layer of two heads
    assert found.complete_prefix_scores == 2 * (1 + 4)
    rng = SplitMix64(0x9E3779B97F4A7C38)
    ended = generate_cached(trained, [0], GenerationConfig(TemperatureTopK(1.0, 3), 4, 3), rng)
    assert (ended.generated, ended.stop, ended.decode_tokens) == ((4,), StopReason.EOS, 0)


def test_nothing_asked_for_computes_and_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(KVCache, "__init__", lambda *_: pytest.fail("a cache was made"))
    rng = SplitMix64(4)
    found = generate_cached(model(), [1], GenerationConfig(DRAWN, None, 0), rng)
    assert (found.generated, found.steps, found.stop) == ((), (), StopReason.TOKEN_LIMIT)
    assert (found.final_cache_length, found.layer_cache_count, found.score_values) == (0, 2, 0)
    assert rng.state == 4
    assert generate_batch(model(), [], GenerationConfig(DRAWN, None, 3), []) == ()


REQUESTS: list[tuple[str, list[int], GenerationConfig]] = [
    ("EmptyPrompt", [], GenerationConfig(TemperatureTopK(0.0, 0), 99, 3)),
    ("PromptTooLong", [99] * 13, GenerationConfig(TemperatureTopK(0.0, 0), 99, 3)),
    ("PromptTokenOutOfBounds", [1, 11], GenerationConfig(TemperatureTopK(0.0, 0), 99, 3)),
    ("EosTokenOutOfBounds", [1], GenerationConfig(TemperatureTopK(0.0, 0), 11, 3)),
    ("Sampling", [1], GenerationConfig(TemperatureTopK(0.0, 0), None, 0)),
    ("Sampling", [1], GenerationConfig(TemperatureTopK(1.0, 12), None, 0)),
]


@pytest.mark.parametrize(("kind", "prompt", "config"), REQUESTS)
def test_a_bad_request_is_refused_in_order(
    kind: str, prompt: list[int], config: GenerationConfig
) -> None:
    rng, other = SplitMix64(4), SplitMix64(4)
    with pytest.raises(CachedGenerationError) as caught:
        generate_cached(model(), prompt, config, rng)
    with pytest.raises(GenerationError) as uncached:
        generate_uncached(model(), prompt, config, other)
    assert caught.value.kind == uncached.value.kind == kind
    assert caught.value.fields == uncached.value.fields
    with pytest.raises(CachedGenerationError) as batched:
        generate_batch(model(), [[1], prompt], config, [other, rng])
    if kind != "EosTokenOutOfBounds" and kind != "Sampling":
        assert batched.value.kind == ("EosTokenOutOfBounds" if config.eos else kind)
    assert rng.state == other.state == 4


def test_one_stream_a_prompt() -> None:
    with pytest.raises(CachedGenerationError) as caught:
        generate_batch(model(), [[1], [2]], GenerationConfig(DRAWN, None, 1), [SplitMix64(1)])
    assert caught.value.kind == "StreamCountMismatch"
    assert (caught.value.expected, caught.value.actual) == (2, 1)


def test_a_failure_in_the_middle_keeps_the_draws_already_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng, other = SplitMix64(4), SplitMix64(4)
    steps: list[GenerationStep] = []
    real_step, real_norm = kernels.CachedDecodeStep.step, session.final_norm

    def stopping(self: kernels.CachedDecodeStep, *given: Any) -> kernels.StepResult | None:
        return real_step(self, *given) if len(steps) < 2 else None

    def overflowing(*given: Any) -> np.ndarray:
        return np.full_like(real_norm(*given), 1.0 if len(steps) < 2 else np.inf)

    monkeypatch.setattr(kernels.CachedDecodeStep, "advance", lambda *_: None)
    monkeypatch.setattr(kernels.CachedDecodeStep, "step", stopping)
    monkeypatch.setattr(session, "final_norm", overflowing)
    with pytest.raises(CachedGenerationError) as caught:
        generate_cached(
            model(), [1], GenerationConfig(DRAWN, None, 5), rng, on_token=steps.append
        )
    assert (caught.value.kind, caught.value.cause.kind) == ("Autodiff", "NonFiniteValue")
    assert len(steps) == 2
    other.unit(), other.unit()
    assert rng.state == other.state


def test_a_model_that_changes_meanwhile_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder = model()
    seen: list[Any] = []

    def change(step: GenerationStep) -> None:
        gain = decoder.final_norm.gain
        try:
            gain.assign(gain.data)
        except Exception as error:
            seen.append(error.kind)  # type: ignore[attr-defined]

    generate_cached(decoder, [1], GenerationConfig(DRAWN, None, 2), SplitMix64(4), on_token=change)
    assert seen == ["ParameterValueBorrowed"] * 2
    decoder.final_norm.gain.assign(decoder.final_norm.gain.data)  # and let go afterwards


def test_no_memory_for_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise CacheError("AllocationFailed", "no memory", elements=1)

    monkeypatch.setattr(KVCache, "__init__", refuse)
    with pytest.raises(CachedGenerationError) as caught:
        generate_cached(model(), [1], GenerationConfig(DRAWN, None, 2), SplitMix64(4))
    assert (caught.value.kind, caught.value.cause.kind) == ("Cache", "AllocationFailed")


def test_log_probabilities_are_the_models_own() -> None:
    decoder = model()
    config = GenerationConfig(TemperatureTopK(0.3, 2), None, 4, log_probabilities=True)
    found = generate_cached(decoder, [2], config, SplitMix64(1))
    prefix = [2]
    for step in found.steps:
        with no_grad():
            logits = decoder.forward(np.array([prefix])).data[0, -1]
        assert step.log_probability == log_softmax(logits)[step.token_id]
        prefix.append(step.token_id)
    plain = generate_cached(
        decoder, [2], GenerationConfig(TemperatureTopK(0.3, 2), None, 4), SplitMix64(1)
    )
    assert [step.log_probability for step in plain.steps] == [None] * 4
