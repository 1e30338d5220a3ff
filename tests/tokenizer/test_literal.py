"""The literal tokenizer, and strict text."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcy.errors import TokenizerError
from llmcy.tokenizer import BytePairTokenizer, LiteralTokenizer
from tests.oracle.utf8 import first_fault

DIGITS = LiteralTokenizer([b"0", b"1", b"2", b"3", b"4"])


def test_ids_are_positions():
    assert DIGITS.vocab_size == 5
    assert DIGITS.pieces == (b"0", b"1", b"2", b"3", b"4")
    assert DIGITS.decode([4, 4, 0]) == b"440"
    assert DIGITS.decode_text(np.array([3, 1])) == "31"
    assert DIGITS.decode([]) == b""
    assert [DIGITS.token_bytes(i) for i in (0, 4, 5, -1)] == [b"0", b"4", None, None]


@pytest.mark.feature("M11")
def test_nothing_can_be_changed():
    for name in ("vocab_size", "pieces", "anything"):
        with pytest.raises(AttributeError):
            setattr(DIGITS, name, 1)
    source = [b"a", b"b"]
    tokenizer = LiteralTokenizer(source)
    source.append(b"c")
    assert tokenizer.vocab_size == 2
    assert tokenizer == LiteralTokenizer([b"a", b"b"])
    assert tokenizer != DIGITS


@pytest.mark.parametrize(
    ("pieces", "kind", "fields"),
    [
        ([], "EmptyVocabulary", {}),
        ([b"a", b"", b"a"], "EmptyPiece", {"token_id": 1}),
        ([b"a", b"b", b"a", b""], "DuplicatePiece", {"token_id": 2, "first": 0}),
    ],
)
@pytest.mark.feature("M09")
def test_pieces_must_be_distinct_and_nonempty(pieces, kind, fields):
    with pytest.raises(TokenizerError) as caught:
        LiteralTokenizer(pieces)
    assert (caught.value.kind, caught.value.fields) == (kind, fields)


@pytest.mark.parametrize(
    ("ids", "kind", "fields"),
    [
        ([1, 5, -1], "UnknownToken", {"position": 1, "token_id": 5}),
        ([-1], "UnknownToken", {"position": 0, "token_id": -1}),
        ([[1]], "InvalidTokenIds", {}),
        (["1"], "InvalidTokenIds", {}),
    ],
)
def test_ids_that_cannot_be_decoded(ids, kind, fields):
    with pytest.raises(TokenizerError) as caught:
        DIGITS.decode(ids)
    assert (caught.value.kind, caught.value.fields) == (kind, fields)


def test_pieces_need_not_be_text():
    tokenizer = LiteralTokenizer([b"\xd0", b"\xb0"])
    assert tokenizer.decode_text([0, 1]) == "\u0430"
    with pytest.raises(TokenizerError) as caught:
        tokenizer.decode_text([1])
    assert (caught.value.valid_up_to, caught.value.error_len) == (0, 1)


TRICKY = [0x00, 0x41, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC2, 0xDF, 0xE0]
TRICKY += [0xE1, 0xED, 0xEE, 0xEF, 0xF0, 0xF1, 0xF3, 0xF4, 0xF5, 0xFF]


@given(data=st.lists(st.sampled_from(TRICKY), max_size=8).map(bytes) | st.binary(max_size=12))
def test_where_text_stops_being_utf8(data):
    tokenizer = BytePairTokenizer.from_pairs([])
    ids = tokenizer.encode(data)
    fault = first_fault(data)
    if fault is None:
        assert tokenizer.decode_text(ids) == data.decode()
    else:
        with pytest.raises(TokenizerError) as caught:
            tokenizer.decode_text(ids)
        assert caught.value.kind == "InvalidUtf8"
        assert (caught.value.valid_up_to, caught.value.error_len) == fault
