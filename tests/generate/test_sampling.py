"""Distributions and draws, by bits."""

import math
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcy.errors import SamplingError
from llmcy.generate import (
    Greedy,
    TemperatureTopK,
    distribution,
    sample,
    sample_traced,
)
from llmcy.rng import SplitMix64
from tests.oracle import sampling as oracle

LOGITS = [0.0, 1.0, 1.0, 2.0]


def hexbits(value: float) -> str:
    return struct.pack(">d", value).hex()


@pytest.mark.parametrize(
    ("temperature", "bits"),
    [
        (0.5, ["3f8d19c8e0992b4e", "3fbae0dc0f990c45", "3fbae0dc0f990c45", "3fe8d361d8975841"]),
        (1.0, ["3fb2842f720c62f1", "3fc92a946fa34394", "3fc92a946fa34394", "3fe11a2fd9ecd1d7"]),
        (2.0, ["3fc23ea6a786dafb", "3fce149a052c16c2", "3fce149a052c16c2", "3fd8cc12a7107bc1"]),
    ],
)
def test_the_published_distributions(temperature: float, bits: list[str]) -> None:
    found = distribution(LOGITS, TemperatureTopK(temperature, 4))
    assert [hexbits(p) for p in found.probabilities.tolist()] == bits
    assert found.retained == found.ranking == (3, 1, 2, 0)
    assert found.positive_support == (0, 1, 2, 3)


def test_top_k_keeps_exactly_k_even_inside_a_tie() -> None:
    found = distribution(LOGITS, TemperatureTopK(1.0, 2))
    assert found.retained == (3, 1)
    assert [c.retained for c in found.candidates] == [False, True, False, True]
    assert [c.rank for c in found.candidates] == [4, 2, 3, 1]
    assert [c.logit for c in found.candidates] == LOGITS
    assert found.probabilities[2] == found.probabilities[0] == 0.0


def test_the_smallest_normal_temperature() -> None:
    found = distribution([2.0, 2.0, 1.0], TemperatureTopK(2.2250738585072014e-308, 3))
    assert found.probabilities.tolist() == [0.5, 0.5, 0.0]
    assert found.retained == (0, 1, 2)
    assert found.positive_support == (0, 1)


def test_the_published_draws() -> None:
    rng = SplitMix64(36)
    expected = [
        (3, "3fed3662c520e497", 0x9E3779B97F4A7C39),
        (2, "3fd5af7243113d9a", 0x3C6EF372FE94F84E),
        (2, "3fd2e75d5b2bdee2", 0xDAA66D2C7DDF7463),
        (2, "3fd667e87964de6e", 0x78DDE6E5FD29F078),
        (3, "3fe27f6c36973bd9", 0x1715609F7C746C8D),
        (3, "3fe51f83d9ed40de", 0xB54CDA58FBBEE8A2),
        (3, "3feac19507702cdf", 0x538454127B0964B7),
        (3, "3fe50af94d580dc1", 0xF1BBCDCBFA53E0CC),
    ]
    intervals = {
        3: ("3fdb20e6a55078a4", "3ff0000000000000"),
        2: ("3fcb20e6a55078a4", "3fdb20e6a55078a4"),
    }
    for token_id, draw, state in expected:
        choice, found = sample_traced(LOGITS, TemperatureTopK(1.0, 3), rng)
        assert (choice.token_id, hexbits(choice.unit_draw), rng.state) == (token_id, draw, state)
        assert tuple(map(hexbits, choice.interval)) == intervals[token_id]
    assert [hexbits(p) for p in found.probabilities.tolist()] == [
        "0000000000000000", "3fcb20e6a55078a4", "3fcb20e6a55078a4", "3fe26f8cad57c3ae",
    ]  # fmt: skip


def test_greedy_draws_nothing() -> None:
    rng = SplitMix64(7)
    for logits, token_id in (([1.0, 3.0, 3.0], 1), ([-0.0, 0.0], 0), ([5.0], 0)):
        choice, found = sample_traced(logits, Greedy(), rng)
        assert (choice.token_id, choice.unit_draw, choice.interval) == (token_id, None, (0.0, 1.0))
        assert found.retained == found.positive_support == (token_id,)
        assert found.probabilities[token_id] == found.probability_sum == 1.0
        assert sample(logits, Greedy()) == choice
    assert rng.state == 7


def test_top_1_draws_once() -> None:
    rng, other = SplitMix64(7), SplitMix64(7)
    choice = sample([1.0, 3.0, 3.0], TemperatureTopK(1.0, 1), rng)
    assert choice.token_id == 1
    assert choice.unit_draw == other.unit()
    assert rng.state == other.state


def test_an_rng_is_needed_to_draw() -> None:
    with pytest.raises(TypeError):
        sample(LOGITS, TemperatureTopK(1.0, 2))


FINITE = st.floats(-1e3, 1e3) | st.floats(allow_nan=False, allow_infinity=False)
TEMPERATURES = st.floats(1e-2, 1e2) | st.floats(
    0.0, 1.7e308, exclude_min=True, allow_subnormal=True
)


@given(st.data())
def test_against_the_oracle(data: st.DataObject) -> None:
    """Random logits with many ties, temperatures from subnormal to huge, every top-k."""
    few = data.draw(st.lists(FINITE, min_size=1, max_size=4))
    logits = data.draw(st.lists(st.sampled_from(few) | FINITE, min_size=1, max_size=24))
    temperature = data.draw(TEMPERATURES)
    top_k = data.draw(st.integers(1, len(logits)))
    ranked, probabilities, total = oracle.distribution(logits, temperature, top_k)
    rng = SplitMix64(data.draw(st.integers(0, 2**64 - 1)))
    draw = SplitMix64(rng.state).unit()
    choice, found = sample_traced(logits, TemperatureTopK(temperature, top_k), rng)
    assert list(found.retained) == ranked
    assert found.probabilities.tolist() == probabilities
    assert found.probability_sum == total
    assert (choice.token_id, *choice.interval) == oracle.choose(probabilities, draw)
    assert choice.unit_draw == draw
    assert choice.interval[0] <= draw < choice.interval[1]


def test_a_long_row_with_few_survivors_sums_like_every_term_visited() -> None:
    rng = np.random.default_rng(5)
    for _ in range(60):
        logits = rng.standard_normal(400) * 3.0
        found = distribution(logits, TemperatureTopK(0.7, int(rng.integers(1, 12))))
        assert found.probability_sum == oracle.kahan(found.probabilities.tolist())


def test_float32_logits_are_converted_exactly() -> None:
    narrow = np.random.default_rng(6).standard_normal(50).astype(np.float32)
    mode = TemperatureTopK(0.8, 20)
    one, other = distribution(narrow, mode), distribution(narrow.astype(np.float64), mode)
    assert one.probabilities.tobytes() == other.probabilities.tobytes()


@pytest.mark.parametrize("mode", [TemperatureTopK(1.0, 3), Greedy()])
def test_every_processor_gives_the_same_bits(isa: str, mode: object) -> None:
    logits = np.random.default_rng(8).standard_normal(500) * 4.0
    found = distribution(logits, TemperatureTopK(0.9, 500))
    ranked, probabilities, _ = oracle.distribution(logits.tolist(), 0.9, 500)
    assert list(found.retained) == ranked
    assert found.probabilities.tolist() == probabilities


@pytest.mark.parametrize(
    ("kind", "fields", "logits", "mode"),
    [
        ("EmptyLogits", {}, [], TemperatureTopK(-1.0, 0)),
        ("NonFiniteLogit", {"token_id": 1}, [0.0, math.nan, math.inf], TemperatureTopK(-1.0, 0)),
        ("NonFiniteLogit", {"token_id": 2, "value": -math.inf}, [0.0, 1.0, -math.inf], Greedy()),
        ("InvalidTemperature", {"value": 0.0}, [0.0, 1.0], TemperatureTopK(0.0, 0)),
        ("InvalidTemperature", {"value": -1.0}, [0.0, 1.0], TemperatureTopK(-1.0, 1)),
        ("InvalidTemperature", {"value": math.inf}, [0.0, 1.0], TemperatureTopK(math.inf, 1)),
        ("InvalidTemperature", {}, [0.0, 1.0], TemperatureTopK(math.nan, 1)),
        ("InvalidTopK", {"top_k": 0, "vocabulary_size": 2}, [0.0, 1.0], TemperatureTopK(1.0, 0)),
        ("InvalidTopK", {"top_k": 3, "vocabulary_size": 2}, [0.0, 1.0], TemperatureTopK(1.0, 3)),
    ],
)
def test_a_bad_request_draws_nothing(
    kind: str, fields: dict[str, object], logits: list[float], mode: Greedy | TemperatureTopK
) -> None:
    rng = SplitMix64(9)
    for call in (sample, sample_traced):
        with pytest.raises(SamplingError) as caught:
            call(logits, mode, rng)
        assert caught.value.kind == kind
        for name, value in fields.items():
            assert getattr(caught.value, name) == value
    assert rng.state == 9


def test_more_classes_than_token_ids() -> None:
    row = np.lib.stride_tricks.as_strided(np.zeros(1), (2**32 + 1,), (0,))  # 8 bytes long
    with pytest.raises(SamplingError) as caught:
        distribution(row, Greedy())
    assert (caught.value.kind, caught.value.vocabulary_size) == ("VocabularyTooLarge", 2**32 + 1)


def test_probabilities_that_do_not_sum_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from llmcy.generate import sampling

    monkeypatch.setattr(sampling.kernels, "exp", lambda x: np.full_like(x, np.inf))
    rng = SplitMix64(3)
    with pytest.raises(SamplingError) as caught:
        sample(LOGITS, TemperatureTopK(1.0, 4), rng)
    assert caught.value.kind == "InvalidProbabilitySum"
    assert rng.state == 3


@pytest.mark.parametrize("vocab_size", [4097, 50_000])
def test_large_vocabularies(vocab_size: int) -> None:
    """Many tokens, many of them equal, all of them kept: the same bits as one at a time."""
    logits = np.round(np.random.default_rng(vocab_size).normal(size=vocab_size) * 40) / 8
    exponentials = {}

    def weight(value: float) -> float:
        gap = value / 1.25 - logits.max() / 1.25
        return exponentials.setdefault(gap, oracle.exp(gap))

    ranked = sorted(range(vocab_size), key=lambda i: (-logits[i], i))
    for top_k in (vocab_size, vocab_size - 1, 700, 3):
        found, rng = distribution(logits, TemperatureTopK(1.25, top_k)), SplitMix64(top_k)
        kept = ranked[:top_k]
        assert list(found.retained) == kept
        assert list(found.ranking) == ranked
        weights = [weight(float(logits[i])) for i in kept]
        total = oracle.kahan(weights)
        expected = np.zeros(vocab_size)
        expected[kept] = [w / total for w in weights]
        assert found.probabilities.tobytes() == expected.tobytes()
        assert found.probability_sum == oracle.kahan(expected.tolist())
        for _ in range(20):
            draw = rng.unit()
            assert found.interval(draw) == oracle.choose(expected.tolist(), draw)


def test_intervals_cover_everything() -> None:
    found = distribution(LOGITS, TemperatureTopK(1.0, 3))
    places = [found.interval(draw) for draw in (0.0, *np.linspace(0.001, 0.999, 97), 1.0)]
    assert [token_id for token_id, _, _ in places] == sorted(token_id for token_id, _, _ in places)
    assert (places[0][1], places[-1][2]) == (0.0, 1.0)
    for draw in (0.0, math.nextafter(1.0, 0.0)):
        token_id, start, end = found.interval(draw)
        assert start <= draw < end
        assert found.interval(start) == (token_id, start, end)  # a start belongs to its interval
