"""Splitting by hash: the stated rule, duplicates, the written record and checking it again."""

import hashlib
import json
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcy.data import Partition, SplitRecord, SplitRule, TextDocument, split_documents
from llmcy.errors import ConfigError, DataError

TRAIN, VALIDATION, TEST = Partition
MANY = [TextDocument(f"d{i}", f"document number {i}".encode()) for i in range(400)]


def by_the_rule(content, validation, test, salt=b""):
    digest = hashlib.sha256(content).digest()
    if salt:
        digest = hashlib.sha256(salt + digest).digest()
    position = Fraction(int.from_bytes(digest[:8], "big"), 1 << 64)
    if position < test:
        return TEST
    return VALIDATION if position < test + validation else TRAIN


@given(
    contents=st.lists(st.binary(max_size=6), max_size=12, unique=True),
    parts=st.tuples(st.integers(1, 50), st.integers(0, 25), st.integers(0, 25)),
    salt=st.text(st.characters(exclude_categories=["Cs"]), max_size=3),
)
def test_partitions_follow_the_rule(contents, parts, salt):
    whole = sum(parts)
    validation, test = Fraction(parts[1], whole), Fraction(parts[2], whole)
    rule = SplitRule(validation, test, salt)
    for content in contents:
        expected = by_the_rule(content, validation, test, salt.encode())
        assert rule.partition_of(hashlib.sha256(content).digest()) is expected


def test_thresholds_are_exact():
    rule = SplitRule(validation="1/4", test="1/2")
    digest = {
        "below half": (2**63 - 1).to_bytes(8, "big"),
        "half": (2**63).to_bytes(8, "big"),
        "below three quarters": (3 * 2**62 - 1).to_bytes(8, "big"),
        "three quarters": (3 * 2**62).to_bytes(8, "big"),
    }
    found = [rule.partition_of(d + bytes(24)) for d in digest.values()]
    assert found == [TEST, VALIDATION, VALIDATION, TRAIN]


def test_shares_are_the_decimals_that_were_written():
    for tenth in (0.1, "0.1", "1/10", Fraction(1, 10)):
        rule = SplitRule(validation=tenth, test=0.25)
        assert [rule.fraction(p) for p in Partition] == [
            Fraction(13, 20),
            Fraction(1, 10),
            Fraction(1, 4),
        ]
    assert SplitRule() == SplitRule(0.1, 0.1)
    # ten tenths are one, not 0.9999999999999999
    with pytest.raises(DataError):
        SplitRule(0.9, 0.1)


@pytest.mark.parametrize("bad", [-0.1, 1, 1.5, float("nan"), float("inf"), "x", "1/0", None, True])
@pytest.mark.parametrize("name", ["validation", "test"])
def test_bad_shares(name, bad):
    with pytest.raises(DataError) as caught:
        SplitRule(**{name: bad})
    assert (caught.value.kind, caught.value.name) == ("InvalidFraction", name)


@pytest.mark.parametrize(("name", "bad"), [("duplicates", "merge"), ("salt", "\ud800")])
def test_bad_settings(name, bad):
    with pytest.raises(ConfigError) as caught:
        SplitRule(**{name: bad})
    assert (caught.value.kind, caught.value.name, caught.value.value) == (
        "InvalidSetting",
        name,
        bad,
    )


def test_shares_come_out_roughly():
    record = split_documents(MANY, SplitRule(0.2, 0.1), {})
    totals = record.totals()
    assert sum(t["documents"] for t in totals.values()) == 400
    assert 50 < totals["validation"]["documents"] < 110
    assert 20 < totals["test"]["documents"] < 60


def places(documents, rule):
    return {d.id: d.partition for d in split_documents(documents, rule, {}).documents}


def test_a_place_depends_on_the_bytes_alone():
    rule = SplitRule(0.3, 0.3)
    everyone = places(MANY, rule)
    assert {k: everyone[k] for k in places(MANY[::-2], rule)} == places(MANY[::-2], rule)
    renamed = [TextDocument(f"x{d.id}", d.content) for d in MANY]
    assert list(places(renamed, rule).values()) == list(everyone.values())
    assert places(MANY, SplitRule(0.3, 0.3, salt="again")) != everyone


@pytest.mark.parametrize("choice", ["drop", "keep"])
def test_duplicates_share_a_partition(choice):
    documents = MANY[:60] + [TextDocument(f"copy-of-{d.id}", d.content) for d in MANY[:20]]
    record = split_documents(documents, SplitRule(0.3, 0.3, duplicates=choice), {})
    by_id = {d.id: d for d in record.documents}
    for original in MANY[:20]:
        copy = by_id[f"copy-of-{original.id}"]
        assert copy.duplicate_of == original.id
        expected = None if choice == "drop" else by_id[original.id].partition
        assert copy.partition is expected
    assert all(by_id[d.id].duplicate_of is None for d in MANY[:60])
    assert record.totals()["dropped"]["documents"] == (20 if choice == "drop" else 0)


@pytest.mark.parametrize(
    ("rule", "missing"),
    [
        (SplitRule("1e-9", 0.3), VALIDATION),
        (SplitRule(0.3, "1e-9"), TEST),
        (SplitRule("0.9999999998", "1e-10"), TRAIN),
    ],
)
def test_an_empty_partition_is_an_error_that_says_what_to_do(rule, missing):
    with pytest.raises(DataError) as caught:
        split_documents(MANY[:50], rule, {})
    assert (caught.value.kind, caught.value.partition) == ("EmptyPartition", missing)
    for word in (missing.label, "50", "share", "salt"):
        assert word in str(caught.value)


def test_no_share_means_no_partition_and_no_error():
    record = split_documents(MANY[:50], SplitRule(0, 0), {})
    assert record.totals()["train"]["documents"] == 50


def record():
    documents = [*MANY[:30], TextDocument("copy", MANY[3].content)]
    return documents, split_documents(documents, SplitRule(0.3, 0.3, salt="s"), {"kind": "made up"})


def test_the_record_comes_back_from_json():
    documents, written = record()
    text = written.to_json()
    again = SplitRecord.from_json(text)
    assert again == written
    assert again.to_json() == text
    fields = json.loads(text)
    assert fields["rule"] == {
        "name": "sha256-threshold-v1",
        "fractions": {"train": "2/5", "validation": "3/10", "test": "3/10"},
        "salt": "s",
        "duplicates": "drop",
    }
    assert fields["source"] == {"kind": "made up"}
    first = fields["documents"][0]
    assert first["bytes"] == len(documents[0].content)
    assert first["sha256"] == hashlib.sha256(documents[0].content).hexdigest()
    assert fields["documents"][-1]["duplicate_of"] == "d3"
    lines = "".join(f"{d['sha256']} {d['bytes']} {d['id']}\n" for d in fields["documents"])
    assert fields["corpus_digest"] == hashlib.sha256(lines.encode()).hexdigest()
    again.check(documents)


def other_partition(label):
    return "train" if label != "train" else "test"


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        (lambda f: f["documents"].pop(), "corpus_digest"),
        (lambda f: f["documents"][0].update(bytes=1), "corpus_digest"),
        (lambda f: f["documents"][0].update(id="other"), "corpus_digest"),
        (lambda f: f.update(corpus_digest="0" * 64), "corpus_digest"),
        (lambda f: f["totals"]["train"].update(bytes=1), "totals"),
        (lambda f: f["rule"].update(salt=""), "partition of "),
        (lambda f: f["documents"][-1].pop("duplicate_of"), "duplicate_of of copy"),
    ],
)
def test_an_edited_record_is_noticed(edit, field):
    fields = json.loads(record()[1].to_json())
    edit(fields)
    with pytest.raises(DataError) as caught:
        SplitRecord.from_json(json.dumps(fields))
    assert caught.value.kind == "SplitRecordMismatch"
    assert caught.value.field.startswith(field)


def test_a_document_moved_by_hand_is_noticed():
    fields = json.loads(record()[1].to_json())
    a, b = (next(d for d in fields["documents"] if d["partition"] == p) for p in ("train", "test"))
    a["partition"], b["partition"] = "test", "train"
    for total in fields["totals"].values():
        total["bytes"] = sum(
            d["bytes"] for d in fields["documents"] if fields["totals"].get(d["partition"]) is total
        )
    fields["totals"]["dropped"]["bytes"] = len(MANY[3].content)
    with pytest.raises(DataError) as caught:
        SplitRecord.from_json(json.dumps(fields))
    assert caught.value.field.startswith("partition of ")


@pytest.mark.parametrize(
    "edit",
    [
        lambda f: f.update(format="other"),
        lambda f: f.pop("rule"),
        lambda f: f["rule"].update(fractions={"validation": "2", "test": "0"}),
        lambda f: f["documents"][0].update(partition="val"),
        lambda f: f["documents"][0].update(sha256="xyz"),
        lambda f: f.update(documents=5),
    ],
)
def test_what_is_no_record(edit):
    fields = json.loads(record()[1].to_json())
    edit(fields)
    for text in (json.dumps(fields), "[]", "{", "null"):
        with pytest.raises(DataError) as caught:
            SplitRecord.from_json(text)
        assert caught.value.kind == "InvalidJson"


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        (lambda d: d[:-1], "number of documents"),
        (lambda d: [TextDocument("new", d[0].content), *d[1:]], "id"),
        (lambda d: [TextDocument("d0", d[0].content + b"!"), *d[1:]], "bytes of d0"),
        (lambda d: [TextDocument("d0", d[0].content.upper()), *d[1:]], "sha256 of d0"),
    ],
)
def test_changed_text_is_noticed(edit, field):
    documents, written = record()
    with pytest.raises(DataError) as caught:
        written.check(edit(documents))
    assert (caught.value.kind, caught.value.field) == ("SplitRecordMismatch", field)
