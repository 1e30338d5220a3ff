"""Continuing a prompt, one full forward pass a token: the slow and obvious way.

What makes a request valid, how a token is chosen and when to stop are defined here for every way of
generating; :mod:`llmcy.generate.cached` has the fast one.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmcy import kernels
from llmcy.errors import AutodiffError, GenerationError, ModelError, SamplingError
from llmcy.generate.modes import SamplingMode, check_mode
from llmcy.generate.sampling import sample
from llmcy.model import Decoder
from llmcy.rng import SplitMix64
from llmcy.tape import no_grad

__all__ = [
    "GenerationConfig",
    "GenerationResult",
    "GenerationStep",
    "StopReason",
    "Writer",
    "check_request",
    "generate_uncached",
]


class StopReason(enum.Enum):
    """Why no further token was generated."""

    EOS = "eos"
    TOKEN_LIMIT = "token_limit"
    CONTEXT_LIMIT = "context_limit"


@dataclass(frozen=True)
class GenerationConfig:
    """How to continue.

    Parameters
    ----------
    mode
        ``Greedy()``, ``TemperatureTopK(temperature, top_k)`` or ``TemperatureSampling(...)``.
    eos
        Token id that ends the text, or nothing.
    max_new_tokens
        Tokens to generate at most; 0 computes nothing.
    log_probabilities
        Note the log-probability that the model, before any sampling mode, gave to each choice.

    Raises
    ------
    GenerationError
        ``InvalidMaxNewTokens`` for what is not a whole number >= 0.
    """

    mode: SamplingMode
    eos: int | None
    max_new_tokens: int
    log_probabilities: bool = False

    def __post_init__(self) -> None:
        limit = self.max_new_tokens
        if isinstance(limit, bool) or not isinstance(limit, (int, np.integer)) or limit < 0:
            raise GenerationError(
                "InvalidMaxNewTokens",
                f"max_new_tokens must be a whole number >= 0, got {limit!r}",
                value=limit,
            )


@dataclass(frozen=True)
class GenerationStep:
    """One generated token.

    Attributes
    ----------
    prefix_length
        Tokens the choice was made from.
    token_id
        The choice.
    unit_draw, interval
        The draw and the interval that held it, as in
        :class:`~llmcy.generate.sampling.Sample`.
    log_probability
        Natural logarithm of the model's own probability of the token, if asked for.
    """

    prefix_length: int
    token_id: int
    unit_draw: float | None
    interval: tuple[float, float]
    log_probability: float | None = None


@dataclass(frozen=True)
class GenerationResult:
    """A continued prompt.

    Attributes
    ----------
    prompt, generated
        Token ids; an end-of-text token that was chosen is the last of ``generated``.
    steps
        One record a generated token.
    stop
        Why generation ended.
    full_prefix_calls
        Forward passes made.
    """

    prompt: tuple[int, ...]
    generated: tuple[int, ...]
    steps: tuple[GenerationStep, ...]
    stop: StopReason
    full_prefix_calls: int


def check_request(
    prompt: Sequence[int] | NDArray[np.int64],
    config: GenerationConfig,
    vocab_size: int,
    max_seq_len: int,
    error_class: type[GenerationError] = GenerationError,
) -> list[int]:
    """Check a request before anything is computed or drawn; returns the prompt's ids.

    Raises
    ------
    GenerationError
        The first of ``EmptyPrompt``, ``PromptTooLong``, ``PromptTokenOutOfBounds``,
        ``EosTokenOutOfBounds``, ``Sampling`` (temperature, then top-k).
    """
    ids = [int(token_id) for token_id in prompt]
    if not ids:
        raise error_class("EmptyPrompt", "the prompt has no token")
    if len(ids) > max_seq_len:
        raise error_class(
            "PromptTooLong",
            f"the prompt has {len(ids)} tokens, the model holds {max_seq_len} positions",
            tokens=len(ids),
            max_positions=max_seq_len,
        )
    for position, token_id in enumerate(ids):
        if not 0 <= token_id < vocab_size:
            raise error_class(
                "PromptTokenOutOfBounds",
                f"prompt token {token_id} at position {position} is outside the vocabulary of "
                f"{vocab_size}",
                position=position,
                token_id=token_id,
                vocabulary_size=vocab_size,
            )
    if config.eos is not None and not 0 <= config.eos < vocab_size:
        raise error_class(
            "EosTokenOutOfBounds",
            f"end-of-text token {config.eos} is outside the vocabulary of {vocab_size}",
            token_id=config.eos,
            vocabulary_size=vocab_size,
        )
    try:
        check_mode(config.mode, vocab_size)
    except SamplingError as error:
        raise error_class("Sampling", str(error), cause=error) from error
    return ids


class Writer:
    """One text being written: what it holds, and the choice of its next token.

    Parameters
    ----------
    prompt
        Checked token ids.
    config
        Mode, end-of-text token, limit.
    rng
        The stream draws come from.
    vocab_size, max_seq_len
        Of the model.
    error_class
        What to raise.
    """

    def __init__(
        self,
        prompt: list[int],
        config: GenerationConfig,
        rng: SplitMix64,
        vocab_size: int,
        max_seq_len: int,
        error_class: type[GenerationError] = GenerationError,
    ) -> None:
        self.prompt = tuple(prompt)
        self.prefix = list(prompt)
        self.steps: list[GenerationStep] = []
        self.stop = StopReason.TOKEN_LIMIT if config.max_new_tokens == 0 else None
        self._config = config
        self._rng = rng
        self._vocab_size = vocab_size
        self._max_seq_len = max_seq_len
        self._error_class = error_class

    def choose(self, logits: NDArray[Any]) -> GenerationStep:
        """Choose the next token from the logits behind the prefix; sets ``stop`` when it was last.

        Raises
        ------
        GenerationError
            ``LogitCountMismatch``, or ``Sampling`` with its cause.
        """
        if logits.size != self._vocab_size:
            raise self._error_class(
                "LogitCountMismatch",
                f"the model gave {logits.size} logits for a vocabulary of {self._vocab_size}",
                expected=self._vocab_size,
                actual=int(logits.size),
            )
        try:
            choice = sample(logits, self._config.mode, self._rng, self.prefix)
        except SamplingError as error:
            raise self._error_class("Sampling", str(error), cause=error) from error
        log_probability = None
        if self._config.log_probabilities:
            row = np.ascontiguousarray(logits, np.float64).reshape(-1)
            log_probability = float(kernels.log_softmax(row)[choice.token_id])
        step = GenerationStep(
            len(self.prefix), choice.token_id, choice.unit_draw, choice.interval, log_probability
        )
        self.prefix.append(choice.token_id)
        self.steps.append(step)
        self.stop = self._stop_reason(choice.token_id)
        return step

    def _stop_reason(self, token_id: int) -> StopReason | None:
        if token_id == self._config.eos:
            return StopReason.EOS
        if len(self.steps) == self._config.max_new_tokens:
            return StopReason.TOKEN_LIMIT
        if len(self.prefix) > self._max_seq_len:
            return StopReason.CONTEXT_LIMIT
        return None

    @property
    def generated(self) -> tuple[int, ...]:
        """The tokens chosen so far."""
        return tuple(step.token_id for step in self.steps)


def generate_uncached(
    model: Decoder,
    prompt: Sequence[int] | NDArray[np.int64],
    config: GenerationConfig,
    rng: SplitMix64,
    *,
    on_token: Callable[[GenerationStep], None] | None = None,
) -> GenerationResult:
    """Continue ``prompt`` with tokens chosen from full forward passes.

    Parameters
    ----------
    model
        The decoder; not changed.
    prompt
        Token ids, at least one and at most as many as the model has positions.
    config
        Mode, end-of-text token, limit.
    rng
        The caller's stream; one draw a token unless greedy.
    on_token
        Called with each step as soon as it is chosen.

    Returns
    -------
    GenerationResult
        Generation stops, tested in this order after each token, when the end-of-text token was
        chosen, when the limit is reached, or when the prefix no longer fits the positions (so a
        prompt that fills them still gives one token).

    Raises
    ------
    GenerationError
        As :func:`check_request`; ``Model`` or ``Autodiff`` with its cause when a forward pass
        fails; ``LogitCountMismatch``.  Draws made before a failure stay made.
    """
    vocab_size, max_seq_len = model.config.vocab_size, model.config.max_seq_len
    ids = check_request(prompt, config, vocab_size, max_seq_len)
    writer = Writer(ids, config, rng, vocab_size, max_seq_len)
    while writer.stop is None:
        step = writer.choose(_last_logits(model, writer.prefix))
        if on_token is not None:
            on_token(step)
    steps = tuple(writer.steps)
    return GenerationResult(writer.prompt, writer.generated, steps, writer.stop, len(steps))


def _last_logits(model: Decoder, prefix: list[int]) -> NDArray[np.float64]:
    try:
        with no_grad():
            logits = model.forward(np.array([prefix], np.int64)).data
    except (ModelError, AutodiffError) as error:
        kind = "Model" if isinstance(error, ModelError) else "Autodiff"
        raise GenerationError(kind, f"forward pass: {error}", cause=error) from error
    last: NDArray[np.float64] = logits[0, -1].astype(np.float64)
    return last

