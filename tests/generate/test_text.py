"""Text in, whole characters out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcy.config import ModelConfig
from llmcy.errors import ConfigError, RangeError
from llmcy.generate import (
    GenerationConfig,
    Greedy,
    TemperatureSampling,
    generate_cached,
)
from llmcy.generate.text import TextGenerator, TextStream, prompt_ids, sample_seeds, sampling_mode
from llmcy.model import Decoder
from llmcy.rng import SplitMix64
from llmcy.tokenizer import BytePairTokenizer, LiteralTokenizer

BYTES = BytePairTokenizer.from_pairs([])


def token_ids(data: bytes) -> list[int]:
    return [byte + 2 for byte in data]


@given(st.text(max_size=30))
def test_a_stream_gives_whole_characters_and_all_of_them(text: str) -> None:
    stream = TextStream(BYTES)
    pieces = []
    for size, token in enumerate(token_ids(text.encode()), start=1):
        pieces.append(stream.feed(token))
        # exactly the characters that are whole by now
        assert "".join(pieces) == text.encode()[:size].decode("utf-8", "ignore")
    assert stream.finish() == ""
    assert "".join(pieces) == text


@given(st.binary(max_size=30))
def test_a_stream_of_any_bytes_ends_as_one_decoding(data: bytes) -> None:
    stream = TextStream(BYTES)
    pieces = [stream.feed(token) for token in token_ids(data)] + [stream.finish()]
    assert "".join(pieces) == data.decode("utf-8", "replace")


def test_an_unfinished_character_waits_and_is_given_out_at_the_end() -> None:
    stream = TextStream(BYTES)
    face = "\U0001f642".encode()
    assert [stream.feed(token) for token in token_ids(face[:3])] == ["", "", ""]
    assert stream.finish() == "\ufffd"
    stream = TextStream(BYTES)
    assert [stream.feed(token) for token in token_ids(face)] == ["", "", "", face.decode()]
    assert stream.feed(BYTES.eos_id) == ""  # a control token says nothing


class Contextual:
    """A tokenizer whose tokens have no bytes of their own: the first one loses its space."""

    byte_level = False
    vocab_size = 4
    words = (b"", b" a", b" \xf0\x9f", b"\x99\x82")

    def token_bytes(self, token_id: int) -> bytes | None:
        return self.words[token_id] or None

    def decode(self, ids: list[int]) -> bytes:
        return b"".join(self.words[i] for i in ids).decode("utf-8", "replace").lstrip(" ").encode()


def test_a_tokenizer_that_needs_context_is_asked_for_the_whole_text() -> None:
    stream = TextStream(Contextual())
    pieces = [stream.feed(token) for token in (1, 1, 0, 2, 3, 1, 2)] + [stream.finish()]
    assert "".join(pieces) == "a a \U0001f642 a \ufffd"
    assert pieces[:2] == ["a", " a"]
    assert not any("\ufffd" in piece for piece in pieces[:-1])


def test_prompts_become_ids() -> None:
    assert prompt_ids(BYTES, "ab") == prompt_ids(BYTES, b"ab") == [0, 99, 100]
    assert prompt_ids(BYTES, "") == [0]
    assert prompt_ids(BYTES, [5, 6]) == [5, 6]
    with pytest.raises(ConfigError) as caught:
        prompt_ids(LiteralTokenizer([b"a"]), "a")
    assert "give token ids" in str(caught.value)


def test_plain_numbers_become_a_mode() -> None:
    assert sampling_mode(100, 0.0) == Greedy()
    assert sampling_mode(100, 0.0, repetition_penalty=1.5) == Greedy(1.5)
    assert sampling_mode(100) == TemperatureSampling(0.8, 40)
    assert sampling_mode(7) == TemperatureSampling(0.8, 7)
    assert sampling_mode(7, top_k="all") == TemperatureSampling(0.8, None)
    assert sampling_mode(7, 1.0, 0, 0.5, 0.1, 2.0) == TemperatureSampling(1.0, 0, 0.5, 0.1, 2.0)


def test_seeds_follow_one_another() -> None:
    assert sample_seeds(2**64 - 1, 3) == [2**64 - 1, 0, 1]
    for bad in (-1, 2**64):
        with pytest.raises(RangeError):
            sample_seeds(bad, 1)


class Loaded(TextGenerator):
    tokenizer = BYTES
    model = Decoder.initialize(ModelConfig(258, 8, 2, 1, 8, 24), 3)


def test_a_generator_gives_text_and_everything_behind_it() -> None:
    seen: list[str] = []
    found = Loaded().generate("hi", max_new_tokens=9, seed=4, on_text=seen.append)
    rng = SplitMix64(4)
    config = GenerationConfig(TemperatureSampling(0.8, 40), 1, 9, log_probabilities=True)
    expected = generate_cached(Loaded.model, [0, *token_ids(b"hi")], config, rng)
    assert found.token_ids == expected.generated
    assert found.prompt_ids == expected.prompt
    assert found.log_probabilities == tuple(step.log_probability for step in expected.steps)
    assert (found.stop, found.seed, found.rng_state) == (expected.stop, 4, rng.state)
    data = b"".join(BYTES.token_bytes(token) or b"" for token in found.token_ids)
    assert found.text == "".join(seen) == data.decode("utf-8", "replace")
    assert all(seen)


def test_many_prompts_are_as_each_alone() -> None:
    prompts = ["a", "a", "longer text", [5, 6]]
    settings = {"max_new_tokens": 8, "temperature": 1.2, "top_p": 0.9}
    together = Loaded().generate_many(prompts, seed=7, **settings)
    assert together == [
        Loaded().generate(prompt, seed=7 + i, **settings) for i, prompt in enumerate(prompts)
    ]
    assert together[0].token_ids != together[1].token_ids
