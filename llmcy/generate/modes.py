"""How the next token is chosen: the modes, their numbers, and what is refused."""

from __future__ import annotations

import math
from dataclasses import dataclass

from llmcy.errors import SamplingError

__all__ = [
    "Greedy",
    "SamplingMode",
    "TemperatureSampling",
    "TemperatureTopK",
    "check_mode",
    "repetition_penalty",
]


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
    penalty = repetition_penalty(mode)
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


def repetition_penalty(mode: SamplingMode) -> float:
    """The mode's penalty; 1, which does nothing, where it has none."""
    return 1.0 if isinstance(mode, TemperatureTopK) else mode.repetition_penalty
