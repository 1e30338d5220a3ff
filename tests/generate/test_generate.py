"""Continuing a prompt from full forward passes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from llmcy.config import ModelConfig
from llmcy.errors import GenerationError
from llmcy.generate import (
    GenerationConfig,
    GenerationStep,
    Greedy,
    StopReason,
    TemperatureTopK,
    generate_uncached,
    sample,
)
from llmcy.model import Decoder
from llmcy.reference.fixtures import PUBLISHED
from llmcy.rng import SplitMix64
from llmcy.tape import Tensor, no_grad

CONFIG = ModelConfig(vocab_size=11, d_model=8, n_heads=2, n_layers=2, d_ff=8, max_seq_len=6)
DRAWN = TemperatureTopK(0.9, 5)


def model(dtype: str = "float64") -> Decoder:
    return Decoder.initialize(ModelConfig.from_dict({**CONFIG.to_dict(), "dtype": dtype}), 5)


def hexbits(value: float) -> str:
    return f"{np.float64(value).view(np.uint64):016x}"


@pytest.mark.feature("Q01")
def test_the_published_continuation() -> None:
    """The trained decoder of the published run, one token of prompt, the saved sampling state."""
    trained = PUBLISHED.train_decoder().selected_model
    rng = SplitMix64(0x9E3779B97F4A7C38)
    request = GenerationConfig(TemperatureTopK(1.0, 3), None, 3)
    found = generate_uncached(trained, [0], request, rng)
    assert found.generated == (4, 4)
    assert found.stop is StopReason.CONTEXT_LIMIT
    assert found.full_prefix_calls == 2
    assert [s.prefix_length for s in found.steps] == [1, 2]
    assert [hexbits(s.unit_draw) for s in found.steps] == ["3fe3518a0b2e3272", "3fe9abf52aefe10e"]
    assert [tuple(map(hexbits, s.interval)) for s in found.steps] == [
        ("3fe2b3a79e7cfe2d", "3ff0000000000000"),
        ("3fe77dfcbadfceeb", "3ff0000000000000"),
    ]
    assert rng.state == 0xDAA66D2C7DDF7462


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_token_comes_from_the_last_row_of_a_full_pass(dtype: str) -> None:
    decoder, rng, other = model(dtype), SplitMix64(1), SplitMix64(1)
    found = generate_uncached(decoder, [3, 1], GenerationConfig(DRAWN, None, 4), rng)
    prefix = [3, 1]
    for step in found.steps:
        with no_grad():
            logits = decoder.forward(np.array([prefix])).data
        assert step.prefix_length == len(prefix)
        choice = sample(logits[0, -1].astype(np.float64), DRAWN, other)
        assert (step.token_id, step.unit_draw, step.interval) == (
            choice.token_id, choice.unit_draw, choice.interval,
        )  # fmt: skip
        prefix.append(choice.token_id)
    assert found.prompt + found.generated == tuple(prefix)
    assert found.stop is StopReason.TOKEN_LIMIT
    assert rng.state == other.state


def test_the_three_ways_to_stop_in_their_order() -> None:
    decoder = model()

    def stop(prompt: list[int], eos: int | None, limit: int) -> tuple[StopReason, int]:
        found = generate_uncached(
            decoder, prompt, GenerationConfig(Greedy(), eos, limit), SplitMix64(0)
        )
        assert found.full_prefix_calls == len(found.steps) == len(found.generated)
        return found.stop, len(found.generated)

    first = generate_uncached(
        decoder, [2], GenerationConfig(Greedy(), None, 1), SplitMix64(0)
    ).generated[0]
    assert stop([2], None, 3) == (StopReason.TOKEN_LIMIT, 3)
    assert stop([2], None, 50) == (StopReason.CONTEXT_LIMIT, 6)
    assert stop([2] * 6, None, 50) == (StopReason.CONTEXT_LIMIT, 1)  # a full prompt gives one
    assert stop([2] * 6, None, 1) == (StopReason.TOKEN_LIMIT, 1)  # the limit is asked first
    assert stop([2], first, 50) == (StopReason.EOS, 1)
    assert stop([2], first, 1) == (StopReason.EOS, 1)  # the end token before the limit
    assert stop([2], None, 0) == (StopReason.TOKEN_LIMIT, 0)


def test_no_tokens_asked_for_computes_and_draws_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(Decoder, "forward", lambda *_: calls.append(1))
    rng = SplitMix64(4)
    found = generate_uncached(model(), [1], GenerationConfig(DRAWN, None, 0), rng)
    assert (found.generated, found.steps, found.full_prefix_calls) == ((), (), 0)
    assert (calls, rng.state) == ([], 4)


REQUESTS: list[tuple[str, dict[str, object], list[int], GenerationConfig]] = [
    ("EmptyPrompt", {}, [], GenerationConfig(TemperatureTopK(0.0, 0), 99, 3)),
    ("PromptTooLong", {"tokens": 7, "max_positions": 6}, [99] * 7,
     GenerationConfig(TemperatureTopK(0.0, 0), 99, 3)),
    ("PromptTokenOutOfBounds", {"position": 2, "token_id": 11, "vocabulary_size": 11}, [1, 2, 11],
     GenerationConfig(TemperatureTopK(0.0, 0), 99, 3)),
    ("PromptTokenOutOfBounds", {"position": 0, "token_id": -1}, [-1],
     GenerationConfig(Greedy(), None, 3)),
    ("EosTokenOutOfBounds", {"token_id": 11, "vocabulary_size": 11}, [1],
     GenerationConfig(TemperatureTopK(0.0, 0), 11, 3)),
    ("Sampling", {"cause": "InvalidTemperature"}, [1],
     GenerationConfig(TemperatureTopK(0.0, 0), None, 0)),
    ("Sampling", {"cause": "InvalidTopK"}, [1],
     GenerationConfig(TemperatureTopK(1.0, 12), None, 0)),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "fields", "prompt", "config"), REQUESTS)
def test_a_bad_request_is_refused_in_order(
    kind: str, fields: dict[str, Any], prompt: list[int], config: GenerationConfig
) -> None:
    rng = SplitMix64(4)
    with pytest.raises(GenerationError) as caught:
        generate_uncached(model(), prompt, config, rng)
    assert caught.value.kind == kind
    for name, value in fields.items():
        found = getattr(caught.value, name)
        assert (found.kind if name == "cause" else found) == value
    assert rng.state == 4


@pytest.mark.parametrize("limit", [-1, 1.5, True, None])
def test_a_limit_is_a_count(limit: object) -> None:
    with pytest.raises(GenerationError) as caught:
        GenerationConfig(Greedy(), None, limit)  # type: ignore[arg-type]
    assert caught.value.kind == "InvalidMaxNewTokens"


def test_a_failing_pass_keeps_the_draws_already_made(monkeypatch: pytest.MonkeyPatch) -> None:
    decoder, rng = model(), SplitMix64(4)

    def poison(step: GenerationStep) -> None:
        if step.prefix_length == 2:
            weight = decoder.blocks[1].ffn.gate.weight
            weight.assign(np.full(weight.shape, 1e308))

    with pytest.raises(GenerationError) as caught:
        generate_uncached(decoder, [1], GenerationConfig(DRAWN, None, 5), rng, on_token=poison)
    assert (caught.value.kind, caught.value.cause.kind) == ("Autodiff", "NonFiniteValue")
    other = SplitMix64(4)
    other.unit(), other.unit()
    assert rng.state == other.state


def test_logits_of_another_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Decoder, "forward", lambda *_: Tensor(np.zeros((1, 1, 10))))
    with pytest.raises(GenerationError) as caught:
        generate_uncached(model(), [1], GenerationConfig(Greedy(), None, 1), SplitMix64(0))
    assert (caught.value.kind, caught.value.expected, caught.value.actual) == (
        "LogitCountMismatch", 11, 10,
    )  # fmt: skip


def test_tokens_are_shown_as_they_are_chosen() -> None:
    seen: list[GenerationStep] = []
    show: Callable[[GenerationStep], None] = seen.append
    found = generate_uncached(
        model(), np.array([1, 2]), GenerationConfig(DRAWN, None, 3), SplitMix64(4), on_token=show
    )
    assert tuple(seen) == found.steps
    assert len(seen) == 3


def test_generation_records_nothing_and_changes_nothing(isa: str) -> None:
    decoder = model()
    before = [(p.data.tobytes(), p.revision) for _, p in decoder.named_parameters()]
    runs = [
        generate_uncached(decoder, [1], GenerationConfig(DRAWN, None, 5), SplitMix64(4))
        for _ in range(2)
    ]
    assert runs[0] == runs[1]
    assert [(p.data.tobytes(), p.revision) for _, p in decoder.named_parameters()] == before
    assert EXPECTED.setdefault("run", runs[0]) == runs[0]


EXPECTED: dict[str, object] = {}
