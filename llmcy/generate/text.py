"""From text to text: prompts, streams of whole characters, and several samples at once."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from llmcy.errors import ConfigError, RangeError
from llmcy.generate.cached import generate_batch
from llmcy.generate.generate import GenerationConfig, GenerationStep, StopReason
from llmcy.generate.modes import Greedy, SamplingMode, TemperatureSampling
from llmcy.model import Decoder
from llmcy.rng import SplitMix64

__all__ = [
    "DEFAULT_TOP_K",
    "GeneratedText",
    "TextGenerator",
    "TextStream",
    "Tokenizer",
    "generate_texts",
    "prompt_ids",
    "sample_seeds",
    "sampling_mode",
]

TopK = int | Literal["all"] | None
DEFAULT_TOP_K = 40
DEFAULT_TEMPERATURE = 0.8
DEFAULT_TOKENS = 200


class Tokenizer(Protocol):
    """What generation needs of a tokenizer; one that can encode has ``encode`` as well.

    Optional attributes: ``bos_id`` and ``eos_id`` begin and end a document (absent or None: there
    is no such token); ``byte_level`` False says that the bytes of a token depend on its neighbours.
    """

    @property
    def vocab_size(self) -> int: ...

    def token_bytes(self, token_id: int, /) -> bytes | None: ...

    def decode(self, token_ids: Any, /) -> bytes: ...


class TextStream:
    """Turns tokens into text as they come, never half a character.

    What follows the last whole character waits for the next token; :meth:`finish` gives out what
    is left.  Bytes that are not UTF-8 become U+FFFD.

    Parameters
    ----------
    tokenizer
        The model's.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._by_token = getattr(tokenizer, "byte_level", True)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._ids: list[int] = []
        self._given = 0  # bytes of the whole text that have been passed on

    def feed(self, token_id: int) -> str:
        """The characters that became whole with this token; often none."""
        if self._by_token:
            return self._decoder.decode(self._tokenizer.token_bytes(token_id) or b"")
        if self._tokenizer.token_bytes(token_id) is None:
            return ""  # a control token
        self._ids.append(token_id)
        data = self._tokenizer.decode(self._ids)
        # a library that decodes to text marks unfinished characters; they come with a later token
        whole = data.removesuffix("\ufffd".encode())
        fresh, self._given = whole[self._given :], max(self._given, len(whole))
        return self._decoder.decode(fresh)

    def finish(self) -> str:
        """What is left at the end: an unfinished character as U+FFFD."""
        rest = self._tokenizer.decode(self._ids)[self._given :] if self._ids else b""
        return self._decoder.decode(rest, final=True)


@dataclass(frozen=True)
class GeneratedText:
    """A text written by a model.

    Attributes
    ----------
    prompt_ids, token_ids
        Tokens it was given, and tokens it chose.
    text
        What the chosen tokens say; bytes that are not UTF-8 are U+FFFD.
    log_probabilities
        The model's own log-probability of each choice, before temperature and filters.
    stop
        Why it ended.
    seed, rng_state
        State of the sampling stream before the first draw and after the last.
    """

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    text: str
    log_probabilities: tuple[float, ...]
    stop: StopReason
    seed: int
    rng_state: int


def sampling_mode(
    vocab_size: int,
    temperature: float = DEFAULT_TEMPERATURE,
    top_k: TopK = None,
    top_p: float = 1.0,
    min_p: float = 0.0,
    repetition_penalty: float = 1.0,
) -> SamplingMode:
    """The mode that plain numbers ask for.

    ``temperature`` 0 is greedy by convention.  ``top_k`` None is 40, or the vocabulary if that is
    smaller; "all" keeps every token.
    """
    if temperature == 0.0:
        return Greedy(repetition_penalty)
    kept = min(DEFAULT_TOP_K, vocab_size) if top_k is None else None if top_k == "all" else top_k
    return TemperatureSampling(temperature, kept, top_p, min_p, repetition_penalty)


def prompt_ids(tokenizer: Tokenizer, prompt: str | bytes | Sequence[int]) -> list[int]:
    """Token ids of a prompt: text goes behind the token that begins a document; ids stay.

    Raises
    ------
    ConfigError
        ``InvalidSetting`` for text when the tokenizer has no encoder.
    TokenizerError
        As the tokenizer's ``encode``.
    """
    if not isinstance(prompt, (str, bytes)):
        return [int(token_id) for token_id in prompt]
    encode: Callable[[str | bytes], NDArray[np.int64]] | None = getattr(tokenizer, "encode", None)
    if encode is None:
        raise ConfigError(
            "InvalidSetting",
            "this model's tokenizer is a list of pieces and has no encoder; give token ids",
            name="prompt",
            value=prompt,
        )
    bos = getattr(tokenizer, "bos_id", None)
    return [*([] if bos is None else [bos]), *encode(prompt).tolist()]


def generate_texts(
    model: Decoder,
    tokenizer: Tokenizer,
    prompts: Sequence[Sequence[int]],
    mode: SamplingMode,
    max_new_tokens: int,
    seeds: Sequence[int],
    *,
    on_text: Callable[[int, str], object] | None = None,
) -> list[GeneratedText]:
    """Continue prompts side by side, each with a stream of its own.

    Parameters
    ----------
    model, tokenizer
        Belong together.
    prompts
        Token ids of each prompt, see :func:`prompt_ids`.
    mode, max_new_tokens
        See :class:`~llmcy.generate.generate.GenerationConfig`; a text also ends at the tokenizer's
        end token, if it has one.
    seeds
        State of each prompt's sampling stream.
    on_text
        Called with the prompt's index and new whole characters, also at the end of each text.

    Raises
    ------
    CachedGenerationError
        As :func:`~llmcy.generate.cached.generate_batch`.
    """
    config = GenerationConfig(
        mode, getattr(tokenizer, "eos_id", None), max_new_tokens, log_probabilities=True
    )
    rngs = [SplitMix64(seed) for seed in seeds]
    streams = [TextStream(tokenizer) for _ in prompts]
    pieces: list[list[str]] = [[] for _ in prompts]

    def give(index: int, text: str) -> None:
        pieces[index].append(text)
        if text and on_text is not None:
            on_text(index, text)

    def chosen(index: int, step: GenerationStep) -> None:
        give(index, streams[index].feed(step.token_id))

    results = generate_batch(model, prompts, config, rngs, on_token=chosen)
    texts = []
    for index, (result, rng) in enumerate(zip(results, rngs, strict=True)):
        give(index, streams[index].finish())
        texts.append(
            GeneratedText(
                result.prompt,
                result.generated,
                "".join(pieces[index]),
                tuple(step.log_probability or 0.0 for step in result.steps),
                result.stop,
                seeds[index],
                rng.state,
            )
        )
    return texts


class TextGenerator:
    """Something that has a model and its tokenizer, and can therefore continue text."""

    model: Decoder
    tokenizer: Any

    def generate(
        self,
        prompt: str | bytes | Sequence[int] = "",
        *,
        max_new_tokens: int = DEFAULT_TOKENS,
        temperature: float = DEFAULT_TEMPERATURE,
        top_k: TopK = None,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
        on_text: Callable[[str], object] | None = None,
    ) -> GeneratedText:
        """Continue a prompt.

        Parameters
        ----------
        prompt
            Text, or token ids.
        max_new_tokens
            Tokens to generate at most.
        temperature, top_k, top_p, min_p, repetition_penalty
            See :func:`sampling_mode` and :class:`~llmcy.generate.sampling.TemperatureSampling`.
        seed
            State of the sampling stream: equal arguments give equal texts.
        on_text
            Called with every piece of text as soon as its characters are whole.

        Raises
        ------
        CachedGenerationError, ConfigError, TokenizerError
            When the prompt or a number cannot be used.
        """

        def show(_: int, text: str) -> None:
            if on_text is not None:
                on_text(text)

        mode = sampling_mode(
            self.model.config.vocab_size, temperature, top_k, top_p, min_p, repetition_penalty
        )
        ids = prompt_ids(self.tokenizer, prompt)
        return generate_texts(
            self.model, self.tokenizer, [ids], mode, max_new_tokens, [seed], on_text=show
        )[0]

    def generate_many(
        self,
        prompts: Sequence[str | bytes | Sequence[int]],
        *,
        max_new_tokens: int = DEFAULT_TOKENS,
        temperature: float = DEFAULT_TEMPERATURE,
        top_k: TopK = None,
        top_p: float = 1.0,
        min_p: float = 0.0,
        repetition_penalty: float = 1.0,
        seed: int = 0,
    ) -> list[GeneratedText]:
        """Continue several prompts side by side; the i-th as :meth:`generate` with ``seed + i``."""
        mode = sampling_mode(
            self.model.config.vocab_size, temperature, top_k, top_p, min_p, repetition_penalty
        )
        ids = [prompt_ids(self.tokenizer, prompt) for prompt in prompts]
        seeds = sample_seeds(seed, len(ids))
        return generate_texts(self.model, self.tokenizer, ids, mode, max_new_tokens, seeds)


def sample_seeds(seed: int, count: int) -> list[int]:
    """Seeds of ``count`` samples: ``seed``, ``seed + 1``, ..., modulo 2**64."""
    if not 0 <= seed < 2**64:
        raise RangeError(
            "OutOfRange",
            f"seed must be a whole number from 0 to 2**64 - 1, got {seed!r}",
            name="seed",
            value=seed,
            expected="0 <= seed < 2**64",
        )
    return [(seed + index) % 2**64 for index in range(count)]
