"""The frozen byte-pair tokenizer: published encodings, round trips, every refusal."""

import copy
import pickle
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcy.errors import TokenizerError
from llmcy.tokenizer import BytePairTokenizer, byte_pair
from tests.oracle import bpe

# the eight rules of the published bilingual corpus
PUBLISHED = BytePairTokenizer.from_pairs(
    [(32, 208), (208, 176), (209, 130), (208, 181), (208, 190), (208, 184), (209, 128), (101, 32)]
)
CHAIN = BytePairTokenizer.from_pairs([(97, 98), (256, 99)])
EMPTY = BytePairTokenizer.from_pairs([])


@pytest.mark.parametrize(
    ("content", "ids"),
    [
        ("bee ", [100, 103, 265]),
        (" \u0430", [258, 178]),
        ("река", [264, 261, 210, 188, 259]),
        ("🦀", [242, 161, 168, 130]),
        (b"\xff\xfe", [257, 256]),
        ("A", [67]),
        ("At", [67, 118]),
        ("", []),
    ],
)
def test_published_encodings(content, ids):
    assert PUBLISHED.encode(content).tolist() == ids
    assert PUBLISHED.encode_document(content).tolist() == [0, *ids, 1]
    data = content.encode() if isinstance(content, str) else content
    assert PUBLISHED.decode(ids) == data
    assert PUBLISHED.decode_document([0, *ids, 1]) == data
    if isinstance(content, str):
        assert PUBLISHED.decode_text(ids) == content
        assert PUBLISHED.decode_document_text([0, *ids, 1]) == content


def test_non_canonical_ids_decode_exactly():
    assert PUBLISHED.decode([34, 259]) == " \u0430".encode()
    assert PUBLISHED.encode(PUBLISHED.decode([34, 259])).tolist() == [258, 178]


def test_bytes_that_are_not_text():
    assert PUBLISHED.decode([257, 256]) == b"\xff\xfe"
    with pytest.raises(TokenizerError) as caught:
        PUBLISHED.decode_text([257, 256])
    assert caught.value.kind == "InvalidUtf8"
    assert caught.value.fields == {"valid_up_to": 0, "error_len": 1}


def test_chained_rules_step_by_step():
    trace = CHAIN.encode_traced(b"abc")
    assert trace.initial_ids == (99, 100, 101)
    assert [(s.rank, s.replacement_count, s.before, s.after) for s in trace.steps] == [
        (0, 1, (99, 100, 101), (258, 101)),
        (1, 1, (258, 101), (259,)),
    ]
    assert trace.token_ids == (259,)
    assert CHAIN.encode(b"abc").tolist() == [259]


def test_without_rules_ids_are_bytes_plus_two():
    assert EMPTY.encode(b"\x00\xff").tolist() == [2, 257]
    assert EMPTY.vocab_size == 258


@pytest.mark.feature("M11")
def test_the_vocabulary_size_follows_the_rules_and_nothing_can_change_them():
    assert PUBLISHED.vocab_size == 266
    assert CHAIN.vocab_size == 260
    for name in ("vocab_size", "pairs", "merge_count", "token_lengths", "bos_id", "anything"):
        with pytest.raises(AttributeError):
            setattr(CHAIN, name, 1)
    with pytest.raises(ValueError, match="read-only"):
        CHAIN.token_lengths[0] = 5
    source = [(97, 98)]
    tokenizer = BytePairTokenizer.from_pairs(source)
    source.append((256, 99))
    assert (tokenizer.vocab_size, tokenizer.pairs) == (259, ((97, 98),))


def test_token_bytes():
    assert [CHAIN.token_bytes(i) for i in (0, 1, 260, -1, 2**40)] == [None] * 5
    assert [CHAIN.token_bytes(i) for i in (2, 257, 258, 259)] == [b"\0", b"\xff", b"ab", b"abc"]
    assert CHAIN.token_lengths.tolist() == [0, 0, *[1] * 256, 2, 3]


def test_copies_are_equal():
    for twin in (pickle.loads(pickle.dumps(CHAIN)), copy.deepcopy(CHAIN)):
        assert twin == CHAIN
        assert hash(twin) == hash(CHAIN)
        assert twin.encode(b"abc").tolist() == [259]
    assert CHAIN != EMPTY


DOUBLING = [(97, 97)] + [(256 + r, 256 + r) for r in range(79)]


def test_tokens_longer_than_memory_cost_nothing_until_they_are_decoded():
    tokenizer = BytePairTokenizer.from_pairs(DOUBLING)
    assert tokenizer.encode(b"a" * 11).tolist() == [260, 258, 99]
    assert tokenizer.decode([258 + 9]) == b"a" * 1024
    assert tokenizer.token_lengths[-1] == 2**62
    for ids in ([258 + 79], [258 + 79] * 9, [258 + 50]):
        with pytest.raises(TokenizerError) as caught:
            tokenizer.decode(ids)
        assert caught.value.kind == "AllocationFailed"


@pytest.mark.parametrize(
    ("make", "kind", "fields"),
    [
        (
            lambda: BytePairTokenizer.from_pairs(range(2**32 - 257)),
            "LayoutOverflow",
            {"merge_count": 2**32 - 257},
        ),
        (
            lambda: BytePairTokenizer.from_pairs([(97, 98), (257, 258)]),
            "UnknownMergeOperand",
            {"rank": 1, "token_id": 257},
        ),
        (
            lambda: BytePairTokenizer.from_pairs([(97, 256)]),
            "UnknownMergeOperand",
            {"rank": 0, "token_id": 256},
        ),
        (
            lambda: BytePairTokenizer.from_pairs([(-1, 97)]),
            "UnknownMergeOperand",
            {"rank": 0, "token_id": -1},
        ),
        (
            lambda: BytePairTokenizer.from_pairs([(97, 98), (97, 98), (999, 1)]),
            "DuplicateMergePair",
            {"rank": 1, "left": 97, "right": 98},
        ),
        (lambda: BytePairTokenizer.from_pairs([(97, 98, 99)]), "InvalidPair", {"rank": 0}),
        (lambda: BytePairTokenizer.from_pairs([(97, 98), 5]), "InvalidPair", {"rank": 1}),
        (lambda: BytePairTokenizer.from_pairs([(97, 1.0)]), "InvalidPair", {"rank": 0}),
        (lambda: PUBLISHED.encode("ok\ud800"), "InvalidText", {"position": 2}),
        (lambda: PUBLISHED.decode([[2, 3]]), "InvalidTokenIds", {}),
        (lambda: PUBLISHED.decode([2.0]), "InvalidTokenIds", {}),
        (lambda: PUBLISHED.decode([True, False]), "InvalidTokenIds", {}),
        # controls are looked for in the whole list before anything else
        (
            lambda: PUBLISHED.decode([999, 3, 1]),
            "ControlTokenInContent",
            {"position": 2, "token_id": 1},
        ),
        (lambda: PUBLISHED.decode([0]), "ControlTokenInContent", {"position": 0, "token_id": 0}),
        (lambda: PUBLISHED.decode([3, 266]), "UnknownToken", {"position": 1, "token_id": 266}),
        (lambda: PUBLISHED.decode([-3]), "UnknownToken", {"position": 0, "token_id": -3}),
        (
            lambda: PUBLISHED.decode(np.array([2**64 - 1], np.uint64)),
            "UnknownToken",
            {"position": 0, "token_id": 2**64 - 1},
        ),
        (lambda: PUBLISHED.decode_document([]), "DocumentTooShort", {"length": 0}),
        (lambda: PUBLISHED.decode_document([0]), "DocumentTooShort", {"length": 1}),
        (lambda: PUBLISHED.decode_document([5, 7]), "ExpectedBos", {"found": 5}),
        (lambda: PUBLISHED.decode_document([0, 7]), "ExpectedEos", {"found": 7}),
        (
            lambda: PUBLISHED.decode_document([0, 999, 0, 1]),
            "InteriorControlToken",
            {"position": 2, "token_id": 0},
        ),
        (
            lambda: PUBLISHED.decode_document([0, 5, 999, 1]),
            "UnknownToken",
            {"position": 2, "token_id": 999},
        ),
        (
            lambda: PUBLISHED.decode_text([67, 228, 132]),
            "InvalidUtf8",
            {"valid_up_to": 1, "error_len": None},
        ),
        (
            lambda: PUBLISHED.decode_document_text([0, 67, 228, 132, 67, 1]),
            "InvalidUtf8",
            {"valid_up_to": 1, "error_len": 2},
        ),
    ],
)
def test_errors(make, kind, fields):
    with pytest.raises(TokenizerError) as caught:
        make()
    assert (caught.value.kind, caught.value.fields) == (kind, fields)


def test_documents_beyond_the_limit(monkeypatch):
    monkeypatch.setattr(byte_pair, "MAX_BYTES", 4)
    assert len(EMPTY.encode(b"abcd")) == 4
    with pytest.raises(TokenizerError) as caught:
        EMPTY.encode(b"abcde")
    assert (caught.value.kind, caught.value.n_bytes, caught.value.maximum) == ("TextTooLarge", 5, 4)


def test_encodings_are_int64_rows():
    for ids in (PUBLISHED.encode(b""), PUBLISHED.encode_document(bytearray(b"x"))):
        assert ids.dtype == np.int64
        assert ids.ndim == 1


@st.composite
def rules(draw, letters=3, most=25):
    """Any valid list of pairs over a few bytes, useful rules or not."""
    pairs = []
    for rank in range(draw(st.integers(0, most))):
        operand = st.sampled_from([*range(97, 97 + letters), *range(256, 256 + rank)])
        pairs.append(draw(st.tuples(operand, operand).filter(lambda p: p not in pairs)))
    return pairs


@given(pairs=rules(), contents=st.lists(st.text("abc", max_size=80).map(str.encode), max_size=3))
def test_encoding_equals_one_pass_per_rule(pairs, contents):
    tokenizer = BytePairTokenizer.from_pairs(pairs)
    for content in contents:
        ids = tokenizer.encode(content).tolist()
        assert ids == [t + 2 for t in bpe.encode(content, pairs)]
        trace = tokenizer.encode_traced(content)
        assert list(trace.token_ids) == ids
        assert [s.replacement_count for s in trace.steps] == [
            len(s.before) - len(s.after) for s in trace.steps
        ]
        assert tokenizer.decode(ids) == content


@given(pairs=rules(letters=2, most=12))
def test_every_token_has_the_bytes_of_its_halves(pairs):
    tokenizer = BytePairTokenizer.from_pairs(pairs)
    for token in range(256 + len(pairs)):
        expected = bpe.token_bytes(token, pairs)
        if len(expected) < 10_000:
            assert tokenizer.token_bytes(token + 2) == expected
        assert tokenizer.token_lengths[token + 2] == len(expected)


@given(content=st.binary(max_size=200))
def test_every_byte_string_comes_back(content):
    for tokenizer in (PUBLISHED, CHAIN, EMPTY):
        ids = tokenizer.encode(content)
        assert tokenizer.decode(ids) == content
        assert tokenizer.decode_document(tokenizer.encode_document(content)) == content
        assert ids.tolist() == tokenizer.encode(content).tolist()


def test_encoding_equals_one_pass_per_rule_on_longer_text():
    rng = random.Random(11)
    words = ["".join(rng.choices("etaoinshrdlu", k=rng.randrange(1, 8))) for _ in range(60)]
    text = " ".join(rng.choices(words, k=3000)).encode()
    learned, final = bpe.learn([text], 120)
    tokenizer = BytePairTokenizer.from_pairs([pair for pair, *_ in learned])
    assert (tokenizer.encode(text) - 2).tolist() == final[0]
    other = " ".join(rng.choices(words, k=2000)).encode() + bytes(range(256))
    assert (tokenizer.encode(other) - 2).tolist() == bpe.encode(other, tokenizer.pairs)
