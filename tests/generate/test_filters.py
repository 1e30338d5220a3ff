"""Top-p, min-p and the repetition penalty: their order, their limits, their bits."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcy.errors import SamplingError
from llmcy.generate import (
    Greedy,
    SamplingMode,
    TemperatureSampling,
    TemperatureTopK,
    distribution,
    sample,
)
from llmcy.rng import SplitMix64
from tests.oracle import sampling as oracle

# probabilities 1/2, 1/4, 1/8, 1/8 up to rounding, not in rank order
LOGITS = [math.log(1.0), math.log(4.0), math.log(2.0), math.log(1.0)]


@given(
    logits=st.lists(st.floats(-30, 30), min_size=1, max_size=20),
    temperature=st.floats(0.05, 5.0),
    top_p=st.floats(0.001, 1.0),
    min_p=st.floats(0.0, 1.0),
    penalty=st.floats(0.1, 10.0),
    data=st.data(),
)
def test_filters_equal_the_obvious_form(
    logits: list[float],
    temperature: float,
    top_p: float,
    min_p: float,
    penalty: float,
    data: st.DataObject,
) -> None:
    top_k = data.draw(st.integers(1, len(logits)))
    history = data.draw(st.lists(st.integers(0, len(logits) - 1), max_size=5))
    mode = TemperatureSampling(temperature, top_k, top_p, min_p, penalty)
    found = distribution(logits, mode, history)
    kept, probabilities = oracle.filtered(
        logits, temperature, top_k, top_p, min_p, penalty, history
    )
    assert list(found.retained) == kept
    assert found.probabilities.tolist() == probabilities
    rng, other = SplitMix64(9), SplitMix64(9)
    choice = sample(logits, mode, rng, history)
    assert (choice.token_id, *choice.interval) == oracle.choose(probabilities, other.unit())
    assert rng.state == other.state


@given(
    logits=st.lists(st.floats(-30, 30), min_size=1, max_size=20),
    temperature=st.floats(0.05, 5.0),
    data=st.data(),
)
def test_without_filters_it_is_temperature_and_top_k(
    logits: list[float], temperature: float, data: st.DataObject
) -> None:
    top_k = data.draw(st.integers(1, len(logits)))
    plain = distribution(logits, TemperatureTopK(temperature, top_k))
    filtered = distribution(logits, TemperatureSampling(temperature, top_k), [0])
    assert filtered.retained == plain.retained
    assert filtered.probabilities.tolist() == plain.probabilities.tolist()
    everything = distribution(logits, TemperatureSampling(temperature))
    whole = distribution(logits, TemperatureTopK(temperature, len(logits)))
    assert everything.probabilities.tolist() == whole.probabilities.tolist()


@pytest.mark.parametrize(
    ("top_p", "kept"), [(1e-9, 1), (0.5, 1), (0.501, 2), (0.75, 2), (0.751, 3), (0.9, 4), (1.0, 4)]
)
def test_top_p_keeps_the_smallest_nucleus_that_reaches_it(top_p: float, kept: int) -> None:
    found = distribution(LOGITS, TemperatureSampling(1.0, top_p=top_p))
    # 0.875 is reached by three, but their rounded sum may fall short: 0.9 needs the fourth
    assert found.retained == (1, 2, 0, 3)[:kept]


@pytest.mark.parametrize(("min_p", "kept"), [(0.0, 4), (0.2, 4), (0.3, 2), (0.6, 1), (1.0, 1)])
def test_min_p_is_a_share_of_the_largest(min_p: float, kept: int) -> None:
    assert len(distribution(LOGITS, TemperatureSampling(1.0, min_p=min_p)).retained) == kept


def test_min_p_of_one_keeps_equals() -> None:
    assert distribution([1.0, 1.0, 0.0], TemperatureSampling(1.0, min_p=1.0)).retained == (0, 1)


def test_top_k_comes_before_top_p() -> None:
    # of the two kept by top_k the first holds 2/3: alone it reaches 0.6, not among all four
    assert distribution(LOGITS, TemperatureSampling(1.0, 2, top_p=0.6)).retained == (1,)
    assert distribution(LOGITS, TemperatureSampling(1.0, top_p=0.6)).retained == (1, 2)


def test_the_temperature_comes_before_top_p() -> None:
    assert distribution(LOGITS, TemperatureSampling(0.5, top_p=0.7)).retained == (1,)


def test_the_penalty_comes_before_top_k() -> None:
    mode = TemperatureSampling(1.0, 1, repetition_penalty=4.0)
    assert distribution(LOGITS, mode, [1]).retained == (2,)
    assert distribution([-1.0, -2.0], mode, [0, 0]).retained == (1,)  # once, and away from zero
    assert distribution([-1.0, -5.0], mode, [0]).retained == (0,)
    assert sample([3.0, 2.0], Greedy(2.0), None, [0]).token_id == 1
    assert sample([3.0, 2.0], Greedy(), None, [0]).token_id == 0


BAD: list[tuple[SamplingMode, str]] = [
    (TemperatureSampling(0.0, 0, 0.0, -1.0, 0.0), "InvalidTemperature"),
    (TemperatureSampling(1.0, 0, 0.0, -1.0, 0.0), "InvalidTopK"),
    (TemperatureSampling(1.0, 4, 0.0, -1.0, 0.0), "InvalidTopK"),
    (TemperatureSampling(1.0, None, 0.0, -1.0, 0.0), "InvalidTopP"),
    (TemperatureSampling(1.0, None, 1.5), "InvalidTopP"),
    (TemperatureSampling(1.0, None, math.nan), "InvalidTopP"),
    (TemperatureSampling(1.0, None, 1.0, -0.1, 0.0), "InvalidMinP"),
    (TemperatureSampling(1.0, None, 1.0, 1.1), "InvalidMinP"),
    (TemperatureSampling(1.0, None, 1.0, math.nan), "InvalidMinP"),
    (TemperatureSampling(1.0, repetition_penalty=0.0), "InvalidRepetitionPenalty"),
    (TemperatureSampling(1.0, repetition_penalty=math.inf), "InvalidRepetitionPenalty"),
    (Greedy(math.nan), "InvalidRepetitionPenalty"),
]


@pytest.mark.parametrize(("mode", "kind"), BAD)
def test_bad_numbers_are_refused_in_order(mode: SamplingMode, kind: str) -> None:
    rng = SplitMix64(3)
    with pytest.raises(SamplingError) as caught:
        sample([1.0, 2.0, 3.0], mode, rng, [0])
    assert (caught.value.kind, rng.state) == (kind, 3)


def test_a_penalised_logit_must_stay_finite() -> None:
    with pytest.raises(SamplingError) as caught:
        sample([1.0, -1e308], Greedy(10.0), None, [1])
    assert (caught.value.kind, caught.value.token_id) == ("NonFiniteLogit", 1)
