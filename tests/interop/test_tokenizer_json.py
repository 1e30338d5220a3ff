"""``tokenizer.json``: equal ids through the ``tokenizers`` library, and the way back."""

import json
import random

import pytest

from llmcy.errors import InteropError
from llmcy.interop import byte_pair_from_json, byte_pair_to_json, export_hf
from llmcy.interop.vocabulary import Vocabulary
from llmcy.tokenizer import BytePairTokenizer, learn_bpe
from llmcy.tokenizer.byte_alphabet import CHAR_OF_BYTE, as_bytes, as_text
from tests.interop.models import TEXT, byte_pair, config, state

PIECES = [
    "the ", "fox", " dog", "\r\n", "\n", "\r", "\0", "\t", "  ", "é", "e\u0301", "ß", "東",
    "京", "日本", "🙂", "🙃", "👩‍👩‍👧", "\U0001f1e9\U0001f1ea", "\ufeff", "\u2028",
    "\ufffd", "\ud7ff", "\ue000", "\U0010ffff",
    "1", "12345", "<s>", "<|bos|>", "<|eos|>", "'s", "Ġ", "ÿ", "\x7f", "\x80", "\xa0", "\xad",
]  # fmt: skip


def random_text(draw: random.Random) -> str:
    kind = draw.randrange(4)
    length = draw.choice([0, 1, 2, 3, 5, 8, 13, 40])
    if kind == 0:
        return "".join(draw.choice(PIECES) for _ in range(length))
    if kind == 1:
        start = draw.randrange(len(TEXT))
        return TEXT[start : start + 2 * length]
    if kind == 2:  # any characters at all
        points = (draw.randrange(0x110000) for _ in range(length))
        return "".join(chr(p) for p in points if not 0xD800 <= p < 0xE000)
    return "".join(chr(draw.randrange(256)) for _ in range(length))


# --------------------------------------------------------------------------- without the library
def test_the_alphabet_is_one_printable_character_a_byte():
    assert len(set(CHAR_OF_BYTE)) == 256
    assert as_text(b" \n\0aZ~\xff") == "ĠĊĀaZ~ÿ"
    every = bytes(range(256))
    assert as_bytes(as_text(every)) == every
    assert as_bytes("a b") is None


def test_the_way_back(tmp_path):
    for tokenizer in (byte_pair(), BytePairTokenizer.from_pairs([])):
        assert byte_pair_from_json(byte_pair_to_json(tokenizer)) == tokenizer


def altered(**changes):
    described = json.loads(byte_pair_to_json(byte_pair()))
    for name, value in changes.items():
        part, _, key = name.partition("__")
        if key:
            described[part][key] = value
        else:
            described[part] = value
    return json.dumps(described).encode()


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": {"type": "NFC"}},
        {"pre_tokenizer__use_regex": True},
        {"pre_tokenizer": None},
        {"model__type": "Unigram"},
        {"model__ignore_merges": True},
        {"model__merges": [["a", "b"]]},
        {"model__merges": "ab"},
        {"added_tokens": []},
        {"model": None},
        {"novelty": {"type": "Unknown"}},
    ],
    ids=str,
)
def test_a_file_that_says_anything_else_is_not_ours(changes):
    assert byte_pair_from_json(altered(**changes)) is None


def test_a_file_that_says_more_of_nothing_is():
    assert byte_pair_from_json(altered(novelty=None, model__novelty=False)) == byte_pair()


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b"\xff", b"null"])
def test_other_bytes_are_not_ours(data):
    assert byte_pair_from_json(data) is None


def test_two_ids_of_the_same_bytes_cannot_be_told_apart(tmp_path):
    a, b, c = b"abc"
    twice = BytePairTokenizer.from_pairs([(a, b), (b, c), (256, c), (a, 257)])
    with pytest.raises(InteropError) as caught:
        byte_pair_to_json(twice)
    error = caught.value
    assert (error.kind, error.first, error.token_id) == ("DuplicateToken", 260, 261)
    model = state(config(vocab_size=twice.vocab_size))
    with pytest.raises(InteropError):
        export_hf(model, twice, tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_text_that_spells_a_control_token():
    """Rules may make the seven characters of a control token's name: refused as well."""
    text = b"<|bos|><|bos|><|bos|>"
    tokenizer = BytePairTokenizer.from_learned(learn_bpe([text], 20))
    with pytest.raises(InteropError) as caught:
        Vocabulary.of(tokenizer)
    assert caught.value.first == 0


# --------------------------------------------------------------------------- with the library
@pytest.fixture
def library():
    tokenizers = pytest.importorskip("tokenizers")

    def load(tokenizer, *, special_is_text=True):
        loaded = tokenizers.Tokenizer.from_str(byte_pair_to_json(tokenizer).decode())
        loaded.encode_special_tokens = special_is_text
        return loaded

    return load


def test_ids_of_ten_thousand_strings_are_equal(library):
    ours, theirs = byte_pair(), library(byte_pair())
    draw = random.Random(20)
    texts: set[str] = set()
    while len(texts) < 10_000:
        texts.add(random_text(draw))
    merged = 0
    for text in texts:
        ids = ours.encode(text).tolist()
        assert theirs.encode(text, add_special_tokens=False).ids == ids, repr(text)
        assert theirs.decode(ids) == text
        merged += len(ids) < len(text.encode())
    assert merged > 3000


def test_ids_of_bytes_that_are_no_text_are_equal(library):
    """The library takes text only; its merging model also takes the byte alphabet directly."""
    ours, theirs = byte_pair(), library(byte_pair())
    theirs.pre_tokenizer = pytest.importorskip("tokenizers").pre_tokenizers.Sequence([])
    draw = random.Random(21)
    whole = TEXT.encode()
    cut_in_characters = 0
    for _ in range(2000):
        start = draw.randrange(len(whole))
        data = whole[start : start + draw.randrange(30)]
        if draw.random() < 0.3:
            data = bytes(draw.choices(range(256), k=draw.randrange(20)))
        cut_in_characters += data.decode(errors="replace").encode() != data
        ids = theirs.encode(as_text(data), add_special_tokens=False).ids
        assert ids == ours.encode(data).tolist(), data
    assert cut_in_characters > 200


def test_decoding_replaces_what_is_no_text_in_the_same_way(library):
    ours, theirs = byte_pair(), library(byte_pair())
    draw = random.Random(22)
    for _ in range(2000):
        ids = [draw.randrange(2, ours.vocab_size) for _ in range(draw.randrange(12))]
        assert theirs.decode(ids) == ours.decode(ids).decode("utf-8", "replace")


def test_control_tokens(library):
    theirs = library(byte_pair(), special_is_text=False)
    assert theirs.encode("fox").ids == [0, *byte_pair().encode("fox").tolist()]
    assert theirs.encode("<|bos|>x<|eos|>", add_special_tokens=False).ids == [0, ord("x") + 2, 1]
    assert theirs.decode([0, ord("x") + 2, 1]) == "x"
    assert theirs.get_vocab_size() == byte_pair().vocab_size


def test_what_the_library_writes_again_is_still_ours(library):
    theirs = library(byte_pair())
    assert byte_pair_from_json(theirs.to_str().encode()) == byte_pair()


def test_rules_written_by_hand(library):
    """Overlapping, nested and unused rules, in every order that rules can have."""
    draw = random.Random(23)
    for _ in range(150):
        pairs, strings = [], [bytes([b]) for b in range(256)]
        alphabet = list(b"ab")
        for _ in range(draw.randrange(1, 9)):
            left, right = draw.choice(alphabet), draw.choice(alphabet)
            if (left, right) in pairs or strings[left] + strings[right] in strings:
                continue
            pairs.append((left, right))
            strings.append(strings[left] + strings[right])
            alphabet.append(255 + len(pairs))
        ours = BytePairTokenizer.from_pairs(pairs)
        theirs = library(ours)
        for _ in range(40):
            text = "".join(draw.choices("ab", weights=(2, 1), k=draw.randrange(24)))
            ids = theirs.encode(text, add_special_tokens=False).ids
            assert ids == ours.encode(text).tolist(), (pairs, text)
