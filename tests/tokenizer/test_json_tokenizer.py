"""Tokenizers of other people's files, trained here by the library that runs them."""

import json
import pickle

import numpy as np
import pytest

from llmcy.errors import TokenizerError
from llmcy.tokenizer import JsonTokenizer

TEXT = "The quick brown fox doesn't jump; naïve größe 東京 🙂🙂 1234 \r\n\t x" * 3


@pytest.fixture(scope="module")
def library():
    return pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def byte_level(library):
    """GPT-2's kind: cuts words, then merges bytes."""
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<|endoftext|>", "<s>"],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.enable_truncation(4)
    return tokenizer.to_str()


@pytest.fixture(scope="module")
def metaspace(library):
    """Llama 2's kind: a sign for the space, and bytes for what is unknown."""
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    tokenizer = library.Tokenizer(library.models.BPE(byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = library.pre_tokenizers.Metaspace()
    tokenizer.decoder = library.decoders.Sequence(
        [
            library.decoders.Replace("\u2581", " "),
            library.decoders.ByteFallback(),
            library.decoders.Fuse(),
            library.decoders.Strip(" ", 1, 0),
        ]
    )
    trainer = library.trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>", "<s>", "</s>", *bytes_], show_progress=False
    )
    tokenizer.train_from_iterator(["the quick brown fox"], trainer)
    return tokenizer.to_str()


def test_bytes_go_there_and_back(byte_level):
    tokenizer = JsonTokenizer(byte_level, 1, 0)
    ids = tokenizer.encode(TEXT)
    assert ids.dtype == np.int64
    assert len(ids) > 4  # the file's own limit is not applied
    assert tokenizer.decode(ids) == TEXT.encode()
    assert tokenizer.decode_text(ids) == TEXT
    assert b"".join(tokenizer.token_bytes(i) for i in ids.tolist()) == TEXT.encode()
    assert tokenizer.token_lengths[ids].sum() == len(TEXT.encode())
    assert tokenizer.encode_document("fox").tolist() == [1, *tokenizer.encode("fox").tolist(), 0]
    assert tokenizer.encode(TEXT.encode()).tolist() == ids.tolist()
    assert tokenizer.encode("").tolist() == []


def test_text_does_not_become_a_control_token_unless_asked(byte_level):
    tokenizer = JsonTokenizer(byte_level, 1, 0)
    ids = tokenizer.encode("a<s>b")
    assert 1 not in ids
    assert tokenizer.decode(ids) == b"a<s>b"
    assert 1 in tokenizer.encode("a<s>b", parse_special=True)
    assert 1 not in tokenizer.encode("a<s>b")


def test_the_other_kind_decodes_through_the_library(metaspace):
    tokenizer = JsonTokenizer(metaspace, 1, 2)
    ids = tokenizer.encode("the fox é")
    assert tokenizer.decode(ids) == "the fox é".encode()
    assert not tokenizer.byte_level
    assert tokenizer.token_bytes(3 + 0x41) == b"A"
    joined = b"".join(tokenizer.token_bytes(i) for i in ids.tolist())
    assert joined == b" the fox \xc3\xa9"
    assert tokenizer.token_lengths[:3].tolist() == [5, 0, 0]


def test_a_sign_inside_words_stands_for_nothing(library):
    """BERT's kind: whole words, and pieces that begin with two signs."""
    tokenizer = library.Tokenizer(library.models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = library.pre_tokenizers.Whitespace()
    tokenizer.decoder = library.decoders.WordPiece()
    trainer = library.trainers.WordPieceTrainer(
        vocab_size=60, special_tokens=["[UNK]", "[CLS]"], show_progress=False
    )
    tokenizer.train_from_iterator(["sleep sleeping sleeper walk walking walker"] * 3, trainer)
    ours = JsonTokenizer(tokenizer.to_str())
    ids = ours.encode("walk sleepking")
    assert len(ids) > 2
    assert ours.decode(ids) == b"walk sleepking"
    assert b"".join(ours.token_bytes(i) for i in ids.tolist()) == b" walk sleepking"
    assert ours.token_lengths[ids].sum() == 1 + len("walk sleepking")


def test_surplus_ids_of_the_model_stand_for_nothing(byte_level):
    used = JsonTokenizer(byte_level).vocab_size
    tokenizer = JsonTokenizer(byte_level, vocab_size=used + 6)
    assert tokenizer.vocab_size == used + 6
    assert tokenizer.decode([used + 5]) == b""
    assert tokenizer.token_lengths[-6:].tolist() == [0] * 6
    assert tokenizer.token_bytes(used + 6) is None


def test_it_survives_pickling_and_compares_by_content(byte_level):
    tokenizer = JsonTokenizer(byte_level, 1, 0)
    again = pickle.loads(pickle.dumps(tokenizer))
    assert again == tokenizer
    assert hash(again) == hash(tokenizer)
    assert again.encode("fox").tolist() == tokenizer.encode("fox").tolist()
    assert tokenizer != JsonTokenizer(byte_level, None, 0)


def test_control_tokens_of_a_folder(byte_level, tmp_path):
    (tmp_path / "tokenizer.json").write_text(byte_level)
    known = JsonTokenizer.from_file(tmp_path)
    assert (known.bos_id, known.eos_id) == (1, 0)
    config = {"bos_token": None, "eos_token": {"content": "<s>"}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    named = JsonTokenizer.from_file(tmp_path / "tokenizer.json")
    assert (named.bos_id, named.eos_id) == (None, 1)
    assert named.encode_document("fox").tolist() == [*named.encode("fox").tolist(), 1]


def error_of(call, *arguments, **named):
    with pytest.raises(TokenizerError) as caught:
        call(*arguments, **named)
    return caught.value


def test_refusals(byte_level, tmp_path):
    tokenizer = JsonTokenizer(byte_level, 1, 0)
    assert error_of(tokenizer.decode, [5, 0]).kind == "ControlTokenInContent"
    error = error_of(tokenizer.decode, [5, 10_000])
    assert (error.kind, error.position, error.token_id) == ("UnknownToken", 1, 10_000)
    assert error_of(tokenizer.decode, [0.5]).kind == "InvalidTokenIds"
    assert error_of(tokenizer.encode, b"ab\xff").valid_up_to == 2
    assert error_of(tokenizer.encode, "a\ud800").position == 1
    assert error_of(JsonTokenizer, "{}").kind == "InvalidTokenizerFile"
    assert error_of(JsonTokenizer, byte_level, 400).kind == "InvalidTokenizerFile"
    assert error_of(JsonTokenizer, byte_level, vocab_size=3).kind == "InvalidTokenizerFile"
    assert error_of(JsonTokenizer.from_file, tmp_path / "none.json").kind == "Io"
    (tmp_path / "tokenizer.json").write_bytes(b"\xff")
    assert error_of(JsonTokenizer.from_file, tmp_path).kind == "InvalidTokenizerFile"


def test_without_the_library_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    error = error_of(JsonTokenizer, "{}")
    assert (error.kind, error.package, error.extra) == ("MissingPackage", "tokenizers", "hf")
    assert "pip install 'llmcy[hf]'" in str(error)
