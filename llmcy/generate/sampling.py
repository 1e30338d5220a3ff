"""Choosing a token from one row of logits.

Every rounding is fixed: correctly rounded exponentials, sums compensated in a stated order, one
draw of the caller's stream a token.  The same logits and the same state give the same token on
every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmcy import kernels
from llmcy.errors import SamplingError
from llmcy.generate.modes import (
    Greedy,
    SamplingMode,
    TemperatureSampling,
    check_mode,
    repetition_penalty,
)
from llmcy.rng import SplitMix64

__all__ = [
    "Candidate",
    "Distribution",
    "Sample",
    "distribution",
    "sample",
    "sample_traced",
]

MAX_VOCABULARY = 2**32
SUM_TOLERANCE = 1e-12


@dataclass(frozen=True)
class Candidate:
    """One token of a distribution: its logit, 1-based rank, and what is left of it."""

    token_id: int
    logit: float
    rank: int
    retained: bool
    probability: float


class Distribution:
    """Which tokens can follow, and with what probability.

    Attributes
    ----------
    logits
        Float64, (V,).
    probabilities
        Float64, (V,), in id order; exactly 0 for tokens that are not kept.  A kept token's may be
        0 too, by underflow.
    probability_sum
        Compensated sum of ``probabilities`` in id order.
    """

    __slots__ = ("__dict__", "_retained", "logits", "probabilities", "probability_sum")

    def __init__(
        self,
        logits: NDArray[np.float64],
        retained: NDArray[np.int64],
        probabilities: NDArray[np.float64],
        probability_sum: float,
    ) -> None:
        self.logits = logits
        self._retained = retained
        self.probabilities = probabilities
        self.probability_sum = probability_sum

    @cached_property
    def retained(self) -> tuple[int, ...]:
        """Ids of the kept tokens in rank order: logit descending, lower id first among equals."""
        return tuple(self._retained.tolist())

    @cached_property
    def ranking(self) -> tuple[int, ...]:
        """Every id in rank order."""
        return tuple(_ranked(self.logits).tolist())

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        """Every token in id order."""
        rank = {token_id: position for position, token_id in enumerate(self.ranking, start=1)}
        kept = set(self.retained)
        return tuple(
            Candidate(token_id, logit, rank[token_id], token_id in kept, probability)
            for token_id, (logit, probability) in enumerate(
                zip(self.logits.tolist(), self.probabilities.tolist(), strict=True)
            )
        )

    @cached_property
    def positive_support(self) -> tuple[int, ...]:
        """Ids with a probability above 0, ascending."""
        return tuple(np.flatnonzero(self.probabilities > 0.0).tolist())

    def interval(self, draw: float) -> tuple[int, float, float]:
        """The token whose half-open interval of [0, 1) holds ``draw``, and the interval's ends.

        Tokens of the positive support are laid side by side in ascending id; the last one ends
        at 1 whatever the rounded sum says.
        """
        support = np.flatnonzero(self.probabilities > 0.0)
        # accumulate adds one after the other; beyond 1 no draw comes, so ends are cut last
        ends = np.minimum(np.add.accumulate(self.probabilities[support]), 1.0)
        ends[-1] = 1.0
        place = int(np.searchsorted(ends[:-1], draw, side="right"))  # the first end above the draw
        start = float(ends[place - 1]) if place else 0.0
        return int(support[place]), start, float(ends[place])


@dataclass(frozen=True)
class Sample:
    """A chosen token.

    Attributes
    ----------
    token_id
        The choice.
    unit_draw
        The draw in [0, 1) that made it; nothing for a greedy choice.
    interval
        The half-open interval [start, end) that held the draw; (0.0, 1.0) for a greedy choice.
    """

    token_id: int
    unit_draw: float | None
    interval: tuple[float, float]


def distribution(
    logits: ArrayLike, mode: SamplingMode, history: Sequence[int] = ()
) -> Distribution:
    """The distribution over next tokens; draws nothing.

    Parameters
    ----------
    logits
        One row, (V,); float32 values are converted exactly.
    mode
        ``Greedy()``, ``TemperatureTopK(temperature, top_k)`` or ``TemperatureSampling(...)``.
    history
        Tokens of the text so far; only a repetition penalty looks at them.

    Raises
    ------
    SamplingError
        The first of ``EmptyLogits``, ``VocabularyTooLarge``, ``NonFiniteLogit``,
        ``InvalidTemperature``, ``InvalidTopK``, ``InvalidTopP``, ``InvalidMinP``,
        ``InvalidRepetitionPenalty``, ``InvalidProbabilitySum``.

    Notes
    -----
    With x the logits, M their maximum and t the temperature, a kept token weighs exp(gap): the
    first in rank order exactly 1; the others with gap (x - M) / t for t < 1 and x / t - M / t
    otherwise.  A probability is a weight over the compensated sum of weights in rank order.
    """
    x = _checked_logits(logits)
    check_mode(mode, x.size)
    if repetition_penalty(mode) != 1.0:
        x = _penalised(x, repetition_penalty(mode), history)
    if isinstance(mode, Greedy):
        retained = np.array([np.argmax(x)])  # the first of equals
        weights = np.ones(1)
    else:
        retained = _largest(x, x.size if mode.top_k is None else mode.top_k)
        weights = _weights(x[retained], mode.temperature)
        if isinstance(mode, TemperatureSampling):
            weights = weights[: _kept_count(weights, mode.top_p, mode.min_p)]
            retained = retained[: weights.size]
    total = kernels.compensated_sum(weights)
    probabilities = np.zeros(x.size)
    if math.isfinite(total) and total > 0.0:
        probabilities[retained] = weights / total
    probability_sum = kernels.compensated_sum(probabilities)
    if not (math.isfinite(total) and abs(probability_sum - 1.0) <= SUM_TOLERANCE):
        raise SamplingError(
            "InvalidProbabilitySum",
            f"probabilities sum to {probability_sum!r} (weights to {total!r}), not to 1",
            value=probability_sum,
        )
    return Distribution(x, retained, probabilities, probability_sum)


def sample(
    logits: ArrayLike,
    mode: SamplingMode,
    rng: SplitMix64 | None = None,
    history: Sequence[int] = (),
) -> Sample:
    """Choose a token; consumes one draw of ``rng`` unless greedy.

    Parameters
    ----------
    logits, mode, history
        As for :func:`distribution`.
    rng
        The caller's stream; not needed for a greedy choice.

    Raises
    ------
    SamplingError
        As :func:`distribution`; ``rng`` has not moved then.
    """
    return sample_traced(logits, mode, rng, history)[0]


def sample_traced(
    logits: ArrayLike,
    mode: SamplingMode,
    rng: SplitMix64 | None = None,
    history: Sequence[int] = (),
) -> tuple[Sample, Distribution]:
    """As :func:`sample`, with the distribution the choice was made from.

    The distribution is complete before the draw, so a failure cannot advance the stream.
    """
    found = distribution(logits, mode, history)
    if isinstance(mode, Greedy):
        return Sample(found.retained[0], None, (0.0, 1.0)), found
    if rng is None:
        raise TypeError("sample: temperature sampling needs an rng")
    draw = rng.unit()
    token_id, start, end = found.interval(draw)
    return Sample(token_id, draw, (start, end)), found


# --------------------------------------------------------------------------- pieces
def _checked_logits(logits: ArrayLike) -> NDArray[np.float64]:
    given: NDArray[Any] = np.asarray(logits)
    if given.size == 0:
        raise SamplingError("EmptyLogits", "there is no logit to choose from")
    if given.size > MAX_VOCABULARY:
        raise SamplingError(
            "VocabularyTooLarge",
            f"{given.size} logits are more than 32-bit token ids can name",
            vocabulary_size=int(given.size),
        )
    x = np.ascontiguousarray(given, np.float64).reshape(-1)
    _check_finite(x)
    return x


def _check_finite(x: NDArray[np.float64]) -> None:
    finite = np.isfinite(x)
    if not finite.all():
        token_id = int(np.argmin(finite))
        value = float(x[token_id])
        raise SamplingError(
            "NonFiniteLogit",
            f"the logit of token {token_id} is {value!r}",
            token_id=token_id,
            value=value,
        )


def _penalised(
    x: NDArray[np.float64], penalty: float, history: Sequence[int]
) -> NDArray[np.float64]:
    """The logits with those of tokens in ``history`` pushed down, each one once."""
    x = x.copy()
    for token_id in sorted(set(history)):
        value = float(x[token_id])
        x[token_id] = value / penalty if value > 0.0 else value * penalty
    _check_finite(x)
    return x


def _kept_count(weights: NDArray[np.float64], top_p: float, min_p: float) -> int:
    """How many of the ranked weights, the first of which is 1, pass both conditions."""
    count = weights.size
    if top_p < 1.0:  # the one that reaches the share is kept, and so is the first
        count = kernels.compensated_reach(weights, kernels.compensated_sum(weights), top_p)
    below = weights[:count] < min_p  # in rank order they are the last ones
    return count - int(np.count_nonzero(below))


def _largest(x: NDArray[np.float64], k: int) -> NDArray[np.int64]:
    """Ids of the k largest values in rank order, without sorting the rest."""
    if k == x.size:
        return _ranked(x)
    threshold = np.partition(x, x.size - k)[x.size - k]
    above = np.flatnonzero(x > threshold)
    equal = np.flatnonzero(x == threshold)[: k - above.size]  # lowest ids first
    kept = np.sort(np.concatenate([above, equal]))
    return kept[_ranked(x[kept])]


def _ranked(x: NDArray[np.float64]) -> NDArray[np.int64]:
    """Indices by value descending, equal values by index: what a stable sort gives, sooner."""
    order = np.argsort(-x)
    values = x[order]
    run = np.zeros(x.size, np.int64)  # equal values have equal numbers
    np.cumsum(values[1:] != values[:-1], out=run[1:])
    ranked: NDArray[np.int64] = np.sort(run * x.size + order) % x.size
    return ranked


def _weights(ranked: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    top = ranked[0]
    with np.errstate(over="ignore"):  # a gap beyond the range is -inf, whose exponential is 0
        if temperature < 1.0:
            gaps = (ranked - top) / temperature
        else:
            gaps = ranked / temperature - top / temperature
    weights = kernels.exp(gaps)
    weights[0] = 1.0
    return weights
