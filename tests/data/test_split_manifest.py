"""Fixed splits: JSON rules, and every refusal in the order of the checks."""

import json

import pytest

from llmcy.data import (
    Corpus,
    Partition,
    SplitManifest,
    encode_partitions,
    learn_from_train,
    partition_corpus,
)
from llmcy.errors import DataError
from llmcy.tokenizer import BytePairTokenizer

STRATEGY = "fixed-paired-document-holdout-v1"
GROUPS = {"a": "g", "b": "g", "c": "h", "d": "i", "e": "j"}


def corpus_text(**texts):
    return json.dumps(
        [
            {
                "id": id,
                "language": "en",
                "provenance_group": group,
                "text": texts.get(id, f"text of {id}"),
            }
            for id, group in GROUPS.items()
        ]
    )


CORPUS = Corpus.from_json(corpus_text())


def manifest_fields(corpus=CORPUS, **changes):
    fields = {
        "schema_version": 1,
        "corpus_checksum": corpus.checksum,
        "strategy": STRATEGY,
        "train": ["a", "b", "c"],
        "validation": ["d"],
        "test": ["e"],
    }
    return fields | changes


def manifest(**changes):
    return SplitManifest.from_json(json.dumps(manifest_fields(**changes)))


def refuse(**changes):
    with pytest.raises(DataError) as caught:
        partition_corpus(CORPUS, manifest(**changes))
    return caught.value.kind, caught.value.fields


def test_partitions_follow_corpus_order():
    parts = partition_corpus(CORPUS, manifest())
    assert [[d.id for d in parts.of(p)] for p in Partition] == [["a", "b", "c"], ["d"], ["e"]]
    assert parts.train[0] is CORPUS.documents[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        json.dumps(manifest_fields()) + "x",
        json.dumps(manifest_fields(extra=1)),
        json.dumps({k: v for k, v in manifest_fields().items() if k != "test"}),
        json.dumps(manifest_fields()).replace("{", '{"test": [], '),
        json.dumps(manifest_fields(strategy=None)),
        json.dumps(manifest_fields(corpus_checksum=5)),
        json.dumps(manifest_fields(train="a")),
        json.dumps(manifest_fields(train={"a": 1})),
        json.dumps(manifest_fields(test=["e", 1])),
        json.dumps(manifest_fields(test=["\ud800"])),
        *(
            json.dumps(manifest_fields()).replace('"schema_version": 1', f'"schema_version": {v}')
            for v in ("1.0", "1e0", "true", "-1", "-0", "4294967296", '"1"', "null", "[1]", "01")
        ),
    ],
)
def test_invalid_json(text):
    with pytest.raises(DataError) as caught:
        SplitManifest.from_json(text)
    assert caught.value.kind == "InvalidJson"


@pytest.mark.parametrize("version", [0, 2, 4294967295])
def test_other_versions_are_read_and_then_refused(version):
    assert manifest(schema_version=version).schema_version == version
    assert refuse(schema_version=version) == ("UnsupportedSchemaVersion", {"found": version})


TRAIN, VALIDATION, TEST = Partition


@pytest.mark.parametrize(
    ("changes", "kind", "fields"),
    [
        (
            {"schema_version": 2, "strategy": "x", "corpus_checksum": "y", "train": []},
            "UnsupportedSchemaVersion",
            {"found": 2},
        ),
        (
            {"strategy": "x", "corpus_checksum": "y", "train": []},
            "UnknownStrategy",
            {"found": "x"},
        ),
        (
            {"corpus_checksum": "y", "train": []},
            "CorpusChecksumMismatch",
            {"expected": "y", "actual": CORPUS.checksum},
        ),
        ({"train": [], "validation": []}, "EmptyPartition", {"partition": TRAIN}),
        ({"train": ["zz", "a"], "test": []}, "EmptyPartition", {"partition": TEST}),
        (
            {"train": ["b", "zz", "a"], "test": []},
            "PartitionOrder",
            {"partition": TRAIN, "id": "a"},
        ),
        ({"train": ["zz", "a", "a"]}, "PartitionOrder", {"partition": TRAIN, "id": "a"}),
        (
            {"train": ["a", "b", "zz", "c"], "test": ["e", "yy"]},
            "UnknownDocument",
            {"partition": TRAIN, "id": "zz"},
        ),
        (
            {"validation": ["a", "d"], "test": ["yy", "e"]},
            "RepeatedDocument",
            {"partition": VALIDATION, "id": "a"},
        ),
        # a repetition comes before a document that nobody lists and before a split group
        ({"train": ["a"], "test": ["a", "e"]}, "RepeatedDocument", {"partition": TEST, "id": "a"}),
        ({"train": ["a"], "validation": ["b"]}, "UnlistedDocument", {"id": "c"}),
        (
            {"train": ["a", "c"], "validation": ["b", "d"]},
            "GroupSplit",
            {"group": "g", "first": "a", "id": "b"},
        ),
    ],
)
def test_refusals_in_order(changes, kind, fields):
    assert refuse(**changes) == (kind, fields)


def test_corpus_and_split_faults_fire_before_the_tokenizer_learns():
    """Nothing can be learned without partitions, and partitions exist only after all checks."""
    with pytest.raises(DataError):
        Corpus.from_json("[]")
    with pytest.raises(DataError):
        learn_from_train(partition_corpus(CORPUS, manifest(test=[])), 5)


def learned_rules(**texts):
    corpus = Corpus.from_json(corpus_text(**texts))
    fields = manifest_fields(corpus=corpus)
    parts = partition_corpus(corpus, SplitManifest.from_json(json.dumps(fields)))
    return learn_from_train(parts, 20)


def test_held_out_text_never_reaches_the_tokenizer():
    base = learned_rules()
    assert base.document_ids == ("a", "b", "c")
    for held_out in ("d", "e"):
        changed = learned_rules(**{held_out: "zzzz zzzz zzzz zzzz zzzz zzzz text of"})
        assert changed.rules == base.rules
    assert learned_rules(c="zzzz zzzz zzzz zzzz zzzz zzzz").rules != base.rules


def test_documents_are_encoded_one_by_one():
    parts = partition_corpus(CORPUS, manifest())
    tokenizer = BytePairTokenizer.from_learned(learn_from_train(parts, 20))
    encoded = encode_partitions(tokenizer, parts)
    for partition in Partition:
        assert [d.id for d in encoded.of(partition)] == [d.id for d in parts.of(partition)]
        for document, source in zip(encoded.of(partition), parts.of(partition), strict=True):
            assert document.partition is partition
            assert document.token_ids[0] == 0
            assert document.token_ids[-1] == 1
            assert not set(document.token_ids[1:-1].tolist()) & {0, 1}
            assert tokenizer.decode_document(document.token_ids) == source.content
