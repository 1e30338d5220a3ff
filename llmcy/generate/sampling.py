"""Choosing a token from one row of logits.

Every rounding is fixed: correctly rounded exponentials, sums compensated in a stated order, one
draw of the caller's stream a token.  The same logits and the same state give the same token on
every machine.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmcy import kernels
from llmcy.errors import SamplingError
from llmcy.rng import SplitMix64

__all__ = [
    "Candidate",
    "Distribution",
    "Greedy",
    "Sample",
    "SamplingMode",
    "TemperatureSampling",
    "TemperatureTopK",
    "check_mode",
    "distribution",
    "sample",
    "sample_traced",
]

MAX_VOCABULARY = 2**32
SUM_TOLERANCE = 1e-12


@dataclass(frozen=True)
class Greedy:
    """Take the largest logit, the lowest id among equals; no draw is consumed.

    ``repetition_penalty`` is as in :class:`TemperatureSampling`; 1 leaves the logits alone.
    """

    repetition_penalty: float = 1.0


@dataclass(frozen=True)
class TemperatureTopK:
    """Draw from the softmax of the ``top_k`` largest logits divided by ``temperature``.

    Both numbers are checked when a token is chosen, against the vocabulary at hand.
    """

    temperature: float
    top_k: int


@dataclass(frozen=True)
class TemperatureSampling:
    """Draw from a softmax that is cut down in a stated order.

    1. ``repetition_penalty`` r: a logit of a token that the text already holds becomes ``x / r``
       if it is above 0, else ``x * r`` (Keskar et al., "CTRL", 2019).
    2. ``top_k``: the k largest logits stay, ties going to the lower id; nothing means all.
    3. ``temperature`` t: weights exp(x / t) below the largest, which weighs exactly 1.
    4. ``top_p`` (Holtzman et al., "The curious case of neural text degeneration", 2020): a token
       stays when the probabilities of those ranked before it sum to less than p.
    5. ``min_p``: a token stays when it weighs at least ``min_p`` of the largest.
    6. What stays is divided by its sum, and one draw chooses.

    All numbers are checked when a token is chosen, against the vocabulary at hand.
    """

    temperature: float
    top_k: int | None = None
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0


SamplingMode = Greedy | TemperatureTopK | TemperatureSampling


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
    retained
        Ids of the kept tokens in rank order: logit descending, lower id first among equals.
    probabilities
        Float64, (V,), in id order; exactly 0 for tokens that are not kept.  A kept token's may be
        0 too, by underflow.
    probability_sum
        Compensated sum of ``probabilities`` in id order.
    """

    __slots__ = ("__dict__", "logits", "probabilities", "probability_sum", "retained")

    def __init__(
        self,
        logits: NDArray[np.float64],
        retained: tuple[int, ...],
        probabilities: NDArray[np.float64],
        probability_sum: float,
    ) -> None:
        self.logits = logits
        self.retained = retained
        self.probabilities = probabilities
        self.probability_sum = probability_sum

    @cached_property
    def ranking(self) -> tuple[int, ...]:
        """Every id in rank order."""
        return tuple(np.argsort(-self.logits, kind="stable").tolist())

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
        support = self.positive_support
        start = 0.0
        for token_id, probability in zip(
            support[:-1], self.probabilities[list(support[:-1])].tolist(), strict=True
        ):
            end = min(start + probability, 1.0)
            if draw < end:
                return token_id, start, end
            start = end
        return support[-1], start, 1.0


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


def check_mode(mode: SamplingMode, vocab_size: int) -> None:
    """Check a mode against a vocabulary.

    Raises
    ------
    SamplingError
        The first of ``InvalidTemperature``, ``InvalidTopK``, ``InvalidTopP``, ``InvalidMinP``,
        ``InvalidRepetitionPenalty``.
    """
    if not isinstance(mode, Greedy):
        _check_drawn(mode, vocab_size)
    penalty = _penalty(mode)
    if not math.isfinite(penalty) or penalty <= 0.0:
        raise SamplingError(
            "InvalidRepetitionPenalty",
            f"repetition_penalty must be finite and > 0, got {penalty!r}",
            value=penalty,
        )


def _check_drawn(mode: TemperatureTopK | TemperatureSampling, vocab_size: int) -> None:
    if not math.isfinite(mode.temperature) or mode.temperature <= 0.0:
        raise SamplingError(
            "InvalidTemperature",
            f"temperature must be finite and > 0, got {mode.temperature!r}",
            value=mode.temperature,
        )
    if mode.top_k is not None and not 1 <= mode.top_k <= vocab_size:
        raise SamplingError(
            "InvalidTopK",
            f"top_k must be from 1 to the vocabulary size {vocab_size}, got {mode.top_k}",
            top_k=mode.top_k,
            vocabulary_size=vocab_size,
        )
    if isinstance(mode, TemperatureTopK):
        return
    if not 0.0 < mode.top_p <= 1.0:
        raise SamplingError(
            "InvalidTopP", f"top_p must be above 0 and at most 1, got {mode.top_p!r}",
            value=mode.top_p,
        )  # fmt: skip
    if not 0.0 <= mode.min_p <= 1.0:
        raise SamplingError(
            "InvalidMinP", f"min_p must be from 0 to 1, got {mode.min_p!r}", value=mode.min_p
        )


def _penalty(mode: SamplingMode) -> float:
    return 1.0 if isinstance(mode, TemperatureTopK) else mode.repetition_penalty


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
    if _penalty(mode) != 1.0:
        x = _penalised(x, _penalty(mode), history)
    if isinstance(mode, Greedy):
        retained = [int(np.argmax(x))]  # the first of equals
        weights = [1.0]
    else:
        retained = _largest(x, x.size if mode.top_k is None else mode.top_k)
        weights = _weights(x[retained], mode.temperature)
        if isinstance(mode, TemperatureSampling):
            weights = weights[: _kept_count(weights, mode.top_p, mode.min_p)]
            retained = retained[: len(weights)]
    total = _compensated_sum(weights)
    probabilities = np.zeros(x.size)
    if math.isfinite(total) and total > 0.0:
        probabilities[retained] = [weight / total for weight in weights]
    probability_sum = _compensated_sum_of_row(probabilities)
    if not (math.isfinite(total) and abs(probability_sum - 1.0) <= SUM_TOLERANCE):
        raise SamplingError(
            "InvalidProbabilitySum",
            f"probabilities sum to {probability_sum!r} (weights to {total!r}), not to 1",
            value=probability_sum,
        )
    return Distribution(x, tuple(retained), probabilities, probability_sum)


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


def _kept_count(weights: list[float], top_p: float, min_p: float) -> int:
    """How many of the ranked weights, the first of which is 1, pass both conditions."""
    count = len(weights)
    if top_p < 1.0:
        total = _compensated_sum(weights)
        before, lost = 0.0, 0.0
        for rank, weight in enumerate(weights):
            if rank and before >= top_p:
                count = rank
                break
            before, lost = _continue_sum(before, lost, (weight / total,))
    while weights[count - 1] < min_p:
        count -= 1
    return count


def _largest(x: NDArray[np.float64], k: int) -> list[int]:
    """Ids of the k largest values in rank order, without sorting the rest."""
    if k < x.size:
        threshold = np.partition(x, x.size - k)[x.size - k]
        above = np.flatnonzero(x > threshold)
        equal = np.flatnonzero(x == threshold)[: k - above.size]  # lowest ids first
        kept = np.sort(np.concatenate([above, equal]))
    else:
        kept = np.arange(x.size)
    order: list[int] = kept[np.argsort(-x[kept], kind="stable")].tolist()
    return order


def _weights(ranked: NDArray[np.float64], temperature: float) -> list[float]:
    values = ranked.tolist()
    top = values[0]
    if temperature < 1.0:
        # a difference or quotient beyond the range is -inf, whose exponential is 0
        gaps = [(value - top) / temperature for value in values[1:]]
    else:
        scaled_top = top / temperature
        gaps = [value / temperature - scaled_top for value in values[1:]]
    return [1.0, *(kernels.exp(np.array(gaps)).tolist() if gaps else [])]


def _compensated_sum(values: Iterable[float]) -> float:
    """Kahan's sum in the order given."""
    return _continue_sum(0.0, 0.0, values)[0]


def _continue_sum(total: float, lost: float, values: Iterable[float]) -> tuple[float, float]:
    for value in values:
        y = value - lost
        t = total + y
        lost = (t - total) - y
        total = t
    return total, lost


def _compensated_sum_of_row(row: NDArray[np.float64]) -> float:
    """Kahan's sum over a row that may be mostly zeros, with the bits of visiting every one.

    A zero can change the running pair only until the pair repeats itself, so a run of zeros is
    left as soon as it does.
    """
    support = np.flatnonzero(row)
    if 2 * support.size > row.size:
        return _compensated_sum(row.tolist())
    total, lost = 0.0, 0.0
    after_previous = 0
    for index, value in zip(support.tolist(), row[support].tolist(), strict=True):
        total, lost = _continue_zeros(total, lost, index - after_previous)
        total, lost = _continue_sum(total, lost, (value,))
        after_previous = index + 1
    return _continue_zeros(total, lost, row.size - after_previous)[0]


def _continue_zeros(total: float, lost: float, count: int) -> tuple[float, float]:
    for _ in range(count):
        pair = _continue_sum(total, lost, (0.0,))
        if pair == (total, lost):
            break
        total, lost = pair
    return total, lost
