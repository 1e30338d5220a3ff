"""Cutting one text at blank lines."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcy.data.paragraphs import cut_paragraphs, default_min_bytes
from llmcy.errors import DataError


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        (b"", []),
        (b"one line", [b"one line"]),
        (b"one\ntwo\n", [b"one\ntwo\n"]),
        (b"one\n\ntwo\n", [b"one\n\n", b"two\n"]),
        (b"one\r\n\r\ntwo", [b"one\r\n\r\n", b"two"]),
        (b"one\n \t\n\n\ntwo\n\nthree", [b"one\n \t\n\n\n", b"two\n\n", b"three"]),
        (b"\n \n\none\n\ntwo", [b"\n \n\none\n\n", b"two"]),
        (b" \n\n\t", [b" \n\n\t"]),
        (b"one\n\n\n", [b"one\n\n\n"]),
        (b"one\n\n  \t", [b"one\n\n  \t"]),
        (b"one\n\n  two", [b"one\n\n", b"  two"]),
    ],
)
def test_every_paragraph_is_a_document_when_one_byte_is_enough(text, pieces):
    assert cut_paragraphs(text, 1) == pieces


def test_paragraphs_are_gathered_up_to_the_minimum():
    text = b"aa\n\nbb\n\ncccccc\n\nd\n\ne"
    assert cut_paragraphs(text, 8) == [b"aa\n\nbb\n\n", b"cccccc\n\nd\n\ne"]
    assert cut_paragraphs(text, 5) == [b"aa\n\nbb\n\n", b"cccccc\n\nd\n\ne"]
    assert cut_paragraphs(text, 4) == [b"aa\n\n", b"bb\n\n", b"cccccc\n\n", b"d\n\ne"]
    assert cut_paragraphs(text, 0) == cut_paragraphs(text, 1)
    assert cut_paragraphs(text, 1000) == [text]


def test_the_minimum_must_be_a_size():
    with pytest.raises(DataError) as caught:
        cut_paragraphs(b"x", -1)
    assert caught.value.fields == {"name": "min_document_bytes", "value": -1}


@pytest.mark.parametrize(
    ("n_bytes", "least"),
    [(0, 1024), (262_143, 1024), (262_400, 1025), (4_194_304, 16384), (10**9, 16384)],
)
def test_default_minimum(n_bytes, least):
    assert default_min_bytes(n_bytes) == least


def starts_of_paragraphs(text):
    """Line by line: text after a blank line after text starts a paragraph."""
    starts, at, blank_before, seen_text = [], 0, False, False
    for line in re.findall(rb"[^\n]*\n|[^\n]+", text):
        blank = not line.strip(b" \t\r\n")
        if seen_text and blank_before and not blank:
            starts.append(at)
        seen_text = seen_text or not blank
        blank_before = blank
        at += len(line)
    return starts


@given(
    text=st.lists(
        st.sampled_from([b"a", b"bc", b" ", b"\t", b"\r\n", b"\n", b"\n\n"]), max_size=40
    ),
    least=st.integers(1, 12),
)
def test_pieces_follow_the_rule(text, least):
    text = b"".join(text)
    pieces = cut_paragraphs(text, least)
    assert b"".join(pieces) == text
    expected, start = [], 0
    for boundary in starts_of_paragraphs(text):
        if boundary - start >= least:
            expected.append(text[start:boundary])
            start = boundary
    rest = text[start:]
    if expected and len(rest) < least:
        expected[-1] += rest
    elif rest:
        expected.append(rest)
    assert pieces == expected
