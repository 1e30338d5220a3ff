"""JSON corpora: what is accepted, what is refused, and which fault is reported first."""

import json

import pytest

from llmcy.checksum import fnv1a64
from llmcy.data import Corpus
from llmcy.errors import DataError


def document(id="a", language="en", group="g", text="Some text."):
    return {"id": id, "language": language, "provenance_group": group, "text": text}


def refuse(text):
    with pytest.raises(DataError) as caught:
        Corpus.from_json(text)
    return caught.value


def test_documents_keep_their_order():
    text = json.dumps([document("b", text="B"), document("a2-x", "ru", "g-1", "\u042f")])
    corpus = Corpus.from_json(text)
    assert [d.id for d in corpus] == ["b", "a2-x"]
    assert len(corpus) == 2
    second = corpus.documents[1]
    assert (second.language, second.provenance_group, second.text) == ("ru", "g-1", "\u042f")
    assert second.content == b"\xd0\xaf"
    assert corpus.document("a2-x") is second
    assert corpus.document("c") is None
    assert corpus.position("a2-x") == 1


def test_the_checksum_covers_the_bytes_as_given():
    compact = json.dumps([document()], separators=(",", ":"))
    spaced = " \t\r\n" + json.dumps([document()], indent=2) + "\n"
    for text in (compact, spaced):
        expected = f"fnv1a64:{fnv1a64(text.encode()):016x}"
        assert Corpus.from_json(text).checksum == expected
        assert Corpus.from_json(text.encode()).checksum == expected
    assert Corpus.from_json(compact).checksum != Corpus.from_json(spaced).checksum


def test_escapes_are_read():
    corpus = Corpus.from_json(
        '[{"\\u0069d":"a","language":"en","provenance_group":"g",'
        '"text":"\\"\\\\\\/\\b\\f\\n\\r\\t\\ud83e\\udd80"}]'
    )
    assert corpus.documents[0].text == '"\\/\b\f\n\r\t\U0001f980'


GOOD = json.dumps(document())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "{}",
        "null",
        '"text"',
        "[1]",
        "[null]",
        "[[]]",
        '[["a","en","g","T"]]',
        f"[{GOOD},]",
        f"[{GOOD}] x",
        f"[{GOOD}][]",
        f"\ufeff[{GOOD}]",
        f"\u00a0[{GOOD}]",
        f"\f[{GOOD}]",
        "[" + GOOD.replace('"id"', '"name"') + "]",
        "[" + GOOD.replace('"id": "a", ', "") + "]",
        "[" + GOOD.replace("{", '{"id": "a", ') + "]",
        "[" + GOOD.replace("{", '{"extra": "a", ') + "]",
        "[" + GOOD.replace('"a"', "1") + "]",
        "[" + GOOD.replace('"a"', "NaN") + "]",
        "[" + GOOD.replace('"a"', "-Infinity") + "]",
        "[" + GOOD.replace('"a"', "null") + "]",
        "[" + GOOD.replace('"a"', "true") + "]",
        "[" + GOOD.replace('"a"', "9" * 5000) + "]",
        "[" + GOOD.replace("Some text.", "line\nbreak") + "]",
        "[" + GOOD.replace("Some text.", "tab\there") + "]",
        "[" + GOOD.replace("Some text.", "\x1f") + "]",
        "[" + GOOD.replace("Some text.", "\\ud800") + "]",
        "[" + GOOD.replace("Some text.", "\\udc00\\ud800") + "]",
        "[" + GOOD.replace("Some text.", "\ud800") + "]",
        "[" + GOOD.replace("Some text.", "\\x41") + "]",
        "[" * 100_000,
        b"[" + GOOD.encode().replace(b"Some", b"\xff") + b"]",
        f"[{GOOD}]".encode("utf-16"),
    ],
)
def test_invalid_json(text):
    assert refuse(text).kind == "InvalidJson"


def test_empty():
    assert refuse(" [ ] ").kind == "Empty"


@pytest.mark.parametrize("bad", ["", "A", "1a", "-a", "a-", "a--b", "a_b", "a b", "\u00e9", "a\n"])
@pytest.mark.parametrize("field", ["id", "language", "provenance_group"])
def test_identifiers(field, bad):
    second = document("b", text="other") | {field: bad}
    error = refuse(json.dumps([document(), second]))
    assert (error.kind, error.fields) == ("BadIdentifier", {"position": 2, "field": field})


@pytest.mark.parametrize("good", ["a", "a1", "a-1", "abc-de-f0"])
def test_good_identifiers(good):
    assert Corpus.from_json(json.dumps([document(good, good, good)])).documents[0].id == good


BLANK = [9, 10, 11, 12, 13, 32, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B)]
BLANK += [0x2028, 0x2029, 0x202F, 0x205F, 0x3000]


@pytest.mark.parametrize("text", ["", *(chr(c) * 2 for c in BLANK), " \u3000\n"])
def test_blank_text(text):
    error = refuse(json.dumps([document(text=text)]))
    assert (error.kind, error.fields) == ("EmptyText", {"position": 1})


@pytest.mark.parametrize("text", ["\x1c", "\x1d", "\x1e", "\x1f", "\u200b", "\u180e", "\ufeff"])
def test_text_of_these_characters_is_not_blank(text):
    assert Corpus.from_json(json.dumps([document(text=text)])).documents[0].text == text


def test_duplicates():
    error = refuse(json.dumps([document(), document("b", text="x"), document(text="y")]))
    assert (error.kind, error.fields) == ("DuplicateId", {"id": "a", "first": 1, "position": 3})
    error = refuse(json.dumps([document(), document("b", text="x"), document("c", text="x")]))
    assert (error.kind, error.fields) == ("DuplicateText", {"first": 2, "position": 3})
    near = [document(), document("b", text="Some text"), document("c", text="some text.")]
    assert len(Corpus.from_json(json.dumps(near))) == 3


def test_which_fault_comes_first():
    # types everywhere before contents anywhere
    assert refuse(json.dumps([document("A"), {"id": 1}])).kind == "InvalidJson"
    # identifiers in field order, then the text, then repetitions, document by document
    everything = document("A", "B", "C", "")
    assert refuse(json.dumps([everything])).field == "id"
    assert refuse(json.dumps([document("a", "B", "C", "")])).field == "language"
    assert refuse(json.dumps([document("a", "b", "C", "")])).field == "provenance_group"
    assert refuse(json.dumps([document(), document(text="")])).kind == "EmptyText"
    assert refuse(json.dumps([document(), document()])).kind == "DuplicateId"
    assert refuse(json.dumps([document(), document(), document("A")])).kind == "DuplicateId"
