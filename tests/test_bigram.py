"""The bigram model: counts, smoothed probabilities, scores, and everything it refuses."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcy import bigram
from llmcy.bigram import BigramModel, score_probabilities
from llmcy.errors import MetricError

DOCUMENTS = [[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1], [2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3]]


def counted(documents: list[list[int]]) -> dict[tuple[int, int], int]:
    """Adjacent pairs, one after the other."""
    counts: dict[tuple[int, int], int] = {}
    for document in documents:
        for place in range(len(document) - 1):
            pair = document[place], document[place + 1]
            counts[pair] = counts.get(pair, 0) + 1
    return counts


@settings(max_examples=50, deadline=None)
@given(
    st.integers(1, 6).flatmap(
        lambda v: st.tuples(
            st.just(v), st.lists(st.lists(st.integers(0, v - 1), max_size=12), max_size=5)
        )
    ),
    st.floats(1e-300, 1e300),
)
def test_counts_and_probabilities(case: tuple[int, list[list[int]]], alpha: float) -> None:
    vocab_size, documents = case
    model = BigramModel(vocab_size, alpha, documents)
    counts = counted(documents)
    assert model.document_count == len(documents)
    assert model.transition_count == sum(counts.values())
    for first in range(vocab_size):
        row = [counts.get((first, second), 0) for second in range(vocab_size)]
        for second, count in enumerate(row):
            assert model.count(first, second) == count
            expected = (float(count) + alpha) / (float(sum(row)) + alpha * float(vocab_size))
            assert model.probability(first, second) == expected
            pair = np.array([first]), np.array([second])
            assert model.probabilities(*pair).tolist() == [expected]
        assert model.most_likely(first) == [b for b in range(vocab_size) if row[b] == max(row)]
        likelihood = [count / sum(row) for count in row] if any(row) else None
        assert model.maximum_likelihood(first) == likelihood


def test_documents_are_never_joined() -> None:
    assert BigramModel(3, 1.0, [[0, 1], [2, 0]]).count(1, 2) == 0
    assert BigramModel(3, 1.0, [[0], [], [2]]).transition_count == 0


def refused(vocab_size: int, alpha: float, documents: Any = DOCUMENTS) -> MetricError:
    with pytest.raises(MetricError) as caught:
        BigramModel(vocab_size, alpha, documents)
    return caught.value


def test_sizes_and_smoothing() -> None:
    assert refused(0, -1.0).kind == "EmptyVocabulary"
    for alpha in (0.0, -0.5, math.inf, math.nan, 1e308):
        error = refused(5, alpha)
        assert error.kind == "InvalidAlpha"
        assert math.isnan(alpha) or error.value == alpha
    error = refused(2**32, 1.0)
    assert (error.kind, error.vocab_size) == ("TableTooLarge", 2**32)


def test_a_large_vocabulary_takes_no_large_table() -> None:
    """A table of all pairs would have 10**16 entries."""
    size = 10**8
    tokens = [0, size - 1, 0, size - 1, 7, size - 1, size - 1]
    model = BigramModel(size, 0.5, [tokens])
    assert model.count(0, size - 1) == 2
    assert model.count(size - 1, 0) == model.count(size - 1, size - 1) == 1
    assert model.count(7, 0) == 0
    assert model.most_likely(size - 1) == [0, 7, size - 1]
    assert model.probability(0, size - 1) == 2.5 / (2.0 + 0.5 * size)
    assert model.maximum_likelihood(5) is None


def test_counts_are_added_up_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = BigramModel(5, 1.0, DOCUMENTS * 3)
    monkeypatch.setattr(bigram, "MERGE_AT", 4)
    pieces = BigramModel(5, 1.0, DOCUMENTS * 3)
    for first in range(5):
        for second in range(5):
            assert pieces.count(first, second) == whole.count(first, second)


@pytest.mark.parametrize("token", [-1, 5])
def test_a_token_outside_the_vocabulary(token: int) -> None:
    error = refused(5, 1.0, [[0, 1], [2, 3, token, 9]])
    assert error.kind == "TokenOutOfRange"
    assert (error.document, error.position, error.token_id, error.vocab_size) == (1, 2, token, 5)


def test_counters_have_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert np.iinfo(np.int64).max == bigram.MAX_COUNT
    monkeypatch.setattr(bigram, "MAX_COUNT", 3)
    assert BigramModel(5, 1.0, [[0, 1, 2, 3], [4], []]).transition_count == 3
    error = refused(5, 1.0, [[0, 1, 2], [1, 2], [3, 4]])
    assert (error.kind, error.document, error.maximum) == ("TooManyTransitions", 2, 3)
    error = refused(5, 1.0, [[0], [], [1], [2]])
    assert (error.kind, error.maximum) == ("TooManyDocuments", 3)
    # the counter of documents comes first, then the tokens, then the transitions
    assert refused(5, 1.0, [[0], [], [1], [9, 9]]).kind == "TooManyDocuments"
    assert refused(5, 1.0, [[0, 1, 2, 3, 9]]).kind == "TokenOutOfRange"


def test_documents_are_read_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bigram, "MAX_COUNT", 2)
    read = []

    def documents() -> Iterator[list[int]]:
        for n in range(9):
            read.append(n)
            yield [0]

    assert refused(5, 1.0, documents()).kind == "TooManyDocuments"
    assert read == [0, 1, 2]


def test_scores() -> None:
    score = score_probabilities(np.array([0.5, 1.0, 0.25]))
    assert score.total_nll == -math.log(0.5) + 0.0 + -math.log(0.25)
    assert score.mean_nll == score.total_nll / 3.0
    assert score.perplexity == pytest.approx(2.0, rel=1e-15)
    assert math.copysign(1.0, score_probabilities(np.array([1.0])).total_nll) == 1.0
    assert score_probabilities(np.array([0.5, 0.0])).total_nll == math.inf
    assert score_probabilities(np.array([0.5, 0.0])).perplexity == math.inf


@pytest.mark.parametrize("wrong", [-0.1, 1.5, math.nan, math.inf])
def test_what_is_no_probability(wrong: float) -> None:
    with pytest.raises(MetricError) as caught:
        score_probabilities(np.array([[0.5, 1.0], [wrong, 2.0]]))
    assert (caught.value.kind, caught.value.index) == ("InvalidProbability", 2)
    with pytest.raises(MetricError) as caught:
        score_probabilities(np.array([]))
    assert caught.value.kind == "EmptyTargets"
