"""The smoothed bigram model: what a decoder must beat to have learned more than neighbours.

p(b | a) = (count(a, b) + alpha) / (total(a) + alpha * V), with counts over the adjacent pairs of
each training document; documents are never joined.  Of the V x V table only the pairs that occur
are kept, so that a vocabulary may be large.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from llmcy import kernels
from llmcy.data import EncodedPartitions, Partition
from llmcy.errors import MetricError

__all__ = ["BigramModel", "ProbabilityScore", "score_probabilities"]

MAX_COUNT = 2**63 - 1  # of documents, and of transitions: a count is a 64-bit word
MAX_TABLE = 2**63 - 1  # entries of the V x V table, which are numbered in 64 bits
MERGE_AT = 2**22  # pairs that are held before they are added up


class BigramModel:
    """Counts of adjacent token pairs with additive smoothing.

    Parameters
    ----------
    vocab_size
        Number of token ids, V.
    alpha
        Added to every count; finite, > 0.
    documents
        Token ids of each document, in order.

    Raises
    ------
    MetricError
        ``EmptyVocabulary``, ``InvalidAlpha``, ``TableTooLarge``; then, document by document,
        ``TooManyDocuments``, ``TokenOutOfRange``, ``TooManyTransitions``.
    """

    def __init__(
        self,
        vocab_size: int,
        alpha: float,
        documents: Iterable[Sequence[int] | NDArray[np.integer]],
    ) -> None:
        if vocab_size <= 0:
            raise MetricError("EmptyVocabulary", "bigram: vocab_size must be at least 1")
        if not math.isfinite(alpha) or alpha <= 0.0 or not math.isfinite(alpha * vocab_size):
            raise MetricError(
                "InvalidAlpha", f"bigram: alpha must be finite and > 0, got {alpha!r}", value=alpha
            )
        if vocab_size * vocab_size > MAX_TABLE:
            raise MetricError(
                "TableTooLarge",
                f"bigram: the entries of a table of {vocab_size} x {vocab_size} cannot be numbered",
                vocab_size=vocab_size,
            )
        self.vocab_size = vocab_size
        self.alpha = alpha
        self.document_count = 0
        self.transition_count = 0
        self._counts = _PairCounts()
        for document in documents:
            self._add(document)
        self._counts.merge()
        self._totals = _PairCounts()  # of rows, under the number of the row
        self._totals.add(self._counts.pairs // vocab_size, self._counts.counts)
        self._totals.merge()

    @classmethod
    def fit_training_partition(
        cls, vocab_size: int, alpha: float, documents: EncodedPartitions
    ) -> BigramModel:
        """Fit on the training documents of ``documents``; the others are not touched."""
        training = (document.token_ids for document in documents.of(Partition.TRAIN))
        return cls(vocab_size, alpha, training)

    def _add(self, document: Sequence[int] | NDArray[np.integer]) -> None:
        """Add one document; nothing is counted when it is refused."""
        if self.document_count == MAX_COUNT:
            raise MetricError(
                "TooManyDocuments",
                f"bigram: more than {MAX_COUNT} documents cannot be counted",
                maximum=MAX_COUNT,
            )
        ids = np.asarray(document, np.int64)
        self._check(ids, self.document_count)
        transitions = max(0, len(ids) - 1)
        if transitions > MAX_COUNT - self.transition_count:  # an entry is at most their sum
            raise MetricError(
                "TooManyTransitions",
                f"bigram: with document {self.document_count} there would be more than "
                f"{MAX_COUNT} transitions to count",
                document=self.document_count,
                maximum=MAX_COUNT,
            )
        self._counts.add(self._pair(ids[:-1], ids[1:]))
        self.document_count += 1
        self.transition_count += transitions

    def _check(self, ids: NDArray[np.int64], document: int) -> None:
        outside = np.flatnonzero((ids < 0) | (ids >= self.vocab_size))
        if outside.size:
            position = int(outside[0])
            raise MetricError(
                "TokenOutOfRange",
                f"bigram: token {int(ids[position])} at position {position} of document {document} "
                f"is outside the vocabulary of {self.vocab_size}",
                document=document,
                position=position,
                token_id=int(ids[position]),
                vocab_size=self.vocab_size,
            )

    def _pair(self, first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.int64]:
        """Numbers of entries of the table, row after row."""
        pair: NDArray[np.int64] = first * self.vocab_size + second
        return pair

    def _row(self, first: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The ids that follow ``first``, ascending, and how often."""
        bounds = [first * self.vocab_size, (first + 1) * self.vocab_size - 1]
        pairs = self._counts.pairs
        inside = slice(
            int(np.searchsorted(pairs, bounds[0])), int(np.searchsorted(pairs, bounds[1], "right"))
        )
        return pairs[inside] - bounds[0], self._counts.counts[inside]

    def count(self, first: int, second: int) -> int:
        """How often ``second`` directly follows ``first``."""
        return int(self._counts.of(self._pair(np.array([first]), np.array([second])))[0])

    def probability(self, first: int, second: int) -> float:
        """Smoothed p(second | first)."""
        numerator = float(self.count(first, second)) + self.alpha
        total = float(self._totals.of(np.array([first]))[0])
        return numerator / (total + self.alpha * float(self.vocab_size))

    def maximum_likelihood(self, first: int) -> list[float] | None:
        """Unsmoothed probabilities of every successor; None when ``first`` was never followed."""
        followers, counts = self._row(first)
        if followers.size == 0:
            return None
        row = np.zeros(self.vocab_size)
        row[followers] = counts.astype(np.float64) / float(counts.sum())
        return [float(p) for p in row]

    def most_likely(self, first: int) -> list[int]:
        """All ids whose count after ``first`` is the largest, ascending."""
        followers, counts = self._row(first)
        if followers.size == 0:
            return list(range(self.vocab_size))  # all counts are 0
        return [int(i) for i in followers[counts == counts.max()]]

    def probabilities(
        self, inputs: NDArray[np.int64], targets: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Smoothed probability of every target given its input, same shape as ``inputs``."""
        # one IEEE sum and one quotient an element: the same bits as `probability`
        counts = self._counts.of(self._pair(inputs, targets))
        totals = self._totals.of(inputs)
        numerator = counts.astype(np.float64) + self.alpha
        denominator = totals.astype(np.float64) + self.alpha * float(self.vocab_size)
        quotient: NDArray[np.float64] = numerator / denominator
        return quotient


class _PairCounts:
    """How often each number occurs; ``pairs`` ascending and ``counts`` beside it, once merged."""

    def __init__(self) -> None:
        self.pairs = np.zeros(0, np.int64)
        self.counts = np.zeros(0, np.int64)
        self._waiting: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        self._held = 0

    def add(self, pairs: NDArray[np.int64], counts: NDArray[np.int64] | None = None) -> None:
        """Count ``pairs``, once each unless told otherwise."""
        self._waiting.append((pairs, np.ones(pairs.size, np.int64) if counts is None else counts))
        self._held += pairs.size
        if self._held > MERGE_AT:
            self.merge()

    def merge(self) -> None:
        """Bring everything that was added into one ascending list."""
        parts = [(self.pairs, self.counts), *self._waiting]
        pairs = np.concatenate([part[0] for part in parts])
        counts = np.concatenate([part[1] for part in parts])
        self._waiting, self._held = [], 0
        order = np.argsort(pairs, kind="stable")
        pairs, counts = pairs[order], counts[order]
        starts = np.flatnonzero(np.diff(pairs, prepend=-1))  # numbers are not negative
        self.pairs = pairs[starts]
        self.counts = np.add.reduceat(counts, starts) if starts.size else counts[:0]

    def of(self, pairs: NDArray[np.integer]) -> NDArray[np.int64]:
        """The count of each, 0 for those that never came."""
        found = np.zeros(pairs.shape, np.int64)
        if self.pairs.size:
            place = np.minimum(np.searchsorted(self.pairs, pairs), self.pairs.size - 1)
            there = self.pairs[place] == pairs
            found[there] = self.counts[place[there]]
        return found


class ProbabilityScore:
    """Negative log-likelihood of assigned probabilities.

    Attributes
    ----------
    total_nll, mean_nll
        In nats; -ln p summed in order, and divided once by the count.
    perplexity
        exp(mean_nll).
    target_count
        Number of probabilities.
    """

    def __init__(self, total_nll: float, target_count: int) -> None:
        self.total_nll = total_nll
        self.target_count = target_count
        self.mean_nll = total_nll / float(target_count)
        self.perplexity = float(kernels.exp(np.array([self.mean_nll]))[0])


def score_probabilities(probabilities: NDArray[np.float64]) -> ProbabilityScore:
    """Score probabilities given to the targets that came, in flat order.

    Raises
    ------
    MetricError
        ``EmptyTargets``, or ``InvalidProbability`` naming the first one outside [0, 1].
    """
    flat = np.ascontiguousarray(probabilities, np.float64).reshape(-1)
    if flat.size == 0:
        raise MetricError("EmptyTargets", "there is no target to score")
    bad = np.flatnonzero(~((flat >= 0.0) & (flat <= 1.0)))
    if bad.size:
        index = int(bad[0])
        raise MetricError(
            "InvalidProbability",
            f"probability {float(flat[index])!r} at index {index} is not in [0, 1]",
            index=index,
            probability=float(flat[index]),
        )
    total = 0.0
    for value in kernels.log(flat).tolist():
        total = total + (-value if value != 0.0 else 0.0)
    return ProbabilityScore(total, int(flat.size))
