"""From sources to a dataset: the tokenizer's training text, epochs, and clear refusals."""

import json

import pytest

from llmcy.checksum import fnv1a64
from llmcy.data import (
    Partition,
    SplitRecord,
    SplitRule,
    TextDocument,
    TextSource,
    builtin_corpus,
    load_dataset,
    prepare_dataset,
    target_byte_count,
)
from llmcy.errors import DataError, TokenizerError
from llmcy.tokenizer import learn_bpe

TRAIN, VALIDATION, TEST = Partition
WORDS = ["river", "clock", "garden", "rain", "night", "window", "bee", "station"]


def texts(n=60):
    return [
        TextDocument(f"t{i}", " ".join(WORDS[(i * k + k * k) % 8] for k in range(1, 30)).encode())
        for i in range(n)
    ]


def made(documents=None, rule=None, merges=40):
    return prepare_dataset(
        TextSource(tuple(documents or texts()), {"kind": "test"}),
        rule or SplitRule(0.25, 0.25, duplicates="keep"),
        merges,
    )


def test_documents_are_split_encoded_and_counted():
    dataset = made()
    by_id = {d.id: d for d in texts()}
    placed = {d.id: d.partition for d in dataset.split.documents}
    for partition in Partition:
        encoded = dataset.documents.of(partition)
        assert [d.id for d in encoded] == [i for i in by_id if placed[i] is partition]
        for document in encoded:
            content = dataset.tokenizer.decode_document(document.token_ids)
            assert content == by_id[document.id].content
        sizes = [len(by_id[d.id].content) for d in encoded]
        assert dataset.byte_count(partition) == sum(sizes)
        assert dataset.token_count(partition) == sum(len(d.token_ids) for d in encoded)
        assert dataset.longest(partition) == max(len(d.token_ids) for d in encoded)


def test_the_tokenizer_learns_from_training_text_only():
    dataset = made()
    by_id = {d.id: d.content for d in texts()}
    train = [d.id for d in dataset.documents.train]
    assert dataset.learned.document_ids == tuple(train)
    alone = learn_bpe([by_id[i] for i in train], 40)
    assert dataset.learned.rules == alone.rules
    assert dataset.tokenizer.pairs == alone.pairs


def test_update_epochs_are_shuffled_and_evaluation_epochs_are_not():
    dataset = made()
    update = dataset.update_epoch(8, 4, seed=5, stride=3)
    assert (update.partition, update.context_length) == (TRAIN, 8)
    assert update.window_config.stride == 3
    assert update.shuffle_state_after is not None
    order = [tuple(row) for row in update.windows.tolist()]
    assert order != sorted(order)
    for partition in Partition:
        e = dataset.evaluation_epoch(partition, 8, 4)
        assert (e.partition, e.window_config.stride, e.shuffle_state_after) == (partition, 8, None)
        assert e.windows.tolist() == sorted(e.windows.tolist())
    assert dataset.update_epoch(8, 4, seed=5).window_config.stride == 8


@pytest.mark.parametrize("stride", [1, 3, 8])
def test_bytes_behind_the_targets(stride):
    dataset = made()
    for e in (
        dataset.update_epoch(8, 4, seed=5, stride=stride),
        dataset.evaluation_epoch(TEST, 8, 4, stride=stride),
    ):
        expected = sum(
            len(dataset.tokenizer.token_bytes(token) or b"")
            for batch in e.batches
            for token in batch.targets.reshape(-1).tolist()
        )
        assert target_byte_count(e, dataset.tokenizer) == expected


def test_a_context_longer_than_every_document():
    dataset = made()
    longest = dataset.longest(VALIDATION)
    assert dataset.evaluation_epoch(VALIDATION, longest - 1, 1).window_count >= 1
    with pytest.raises(DataError) as caught:
        dataset.evaluation_epoch(VALIDATION, longest, 1)
    assert caught.value.kind == "NoWindows"
    assert caught.value.fields == {
        "partition": VALIDATION,
        "context_length": longest,
        "longest": longest,
    }
    assert str(longest + 1) in str(caught.value)
    with pytest.raises(DataError) as caught:
        dataset.update_epoch(10_000, 1, seed=0)
    assert (caught.value.kind, caught.value.partition) == ("NoWindows", TRAIN)


def test_dropped_duplicates_are_neither_learned_nor_seen():
    plain = made(rule=SplitRule(0.25, 0.25))
    copies = [TextDocument(f"copy{i}", d.content) for i, d in enumerate(texts())]
    doubled = made(documents=texts() + copies, rule=SplitRule(0.25, 0.25))
    assert doubled.tokenizer == plain.tokenizer
    assert doubled.byte_count(TRAIN) == plain.byte_count(TRAIN)
    dropped = doubled.split.totals()["dropped"]["documents"]
    assert dropped == plain.split.totals()["dropped"]["documents"] + 60


def test_an_empty_partition_stops_before_the_tokenizer():
    with pytest.raises(DataError) as caught:
        made(documents=texts(1), merges=-1)
    assert caught.value.kind == "EmptyPartition"
    with pytest.raises(TokenizerError):
        made(merges=-1)


def test_load_reads_files(tmp_path):
    for document in texts():
        (tmp_path / f"{document.id}.txt").write_bytes(document.content)
    seen = []
    dataset = load_dataset(
        [tmp_path],
        max_merges=10,
        rule=SplitRule(0.25, 0.25, duplicates="keep"),
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen[-1] == (10, 10)
    assert dataset.tokenizer.vocab_size == 268
    assert len(dataset.split.documents) == 60
    assert SplitRecord.from_json(dataset.split.to_json()) == dataset.split


def test_load_without_sources_takes_the_built_in_text():
    dataset = load_dataset(max_merges=16)
    dataset.split.check(builtin_corpus().documents)
    assert all(dataset.token_count(partition) > 1000 for partition in Partition)


def json_corpus(folder):
    groups = {"a": "g", "b": "g", "c": "h", "d": "i"}
    corpus = json.dumps(
        [
            {"id": i, "language": "en", "provenance_group": g, "text": f"text of {i}"}
            for i, g in groups.items()
        ]
    )
    manifest = {
        "schema_version": 1,
        "corpus_checksum": f"fnv1a64:{fnv1a64(corpus.encode()):016x}",
        "strategy": "fixed-paired-document-holdout-v1",
        "train": ["a", "b"],
        "validation": ["c"],
        "test": ["d"],
    }
    (folder / "corpus.json").write_text(corpus)
    (folder / "split.json").write_text(json.dumps(manifest))
    return folder / "corpus.json", folder / "split.json", manifest


def test_load_applies_a_split_manifest(tmp_path):
    corpus, split, manifest = json_corpus(tmp_path)
    dataset = load_dataset([corpus], split_manifest=split, max_merges=5)
    found = {p.label: [d.id for d in dataset.documents.of(p)] for p in Partition}
    assert found == {k: manifest[k] for k in ("train", "validation", "test")}
    record = SplitRecord.from_json(dataset.split.to_json())
    assert record == dataset.split
    assert record.rule == {
        "name": "fixed-paired-document-holdout-v1",
        "corpus_checksum": manifest["corpus_checksum"],
    }
    assert dataset.byte_count(TRAIN) == 2 * len("text of a")


def test_load_refuses_a_manifest_without_its_corpus(tmp_path):
    corpus, split, _ = json_corpus(tmp_path)
    for sources in ([], [corpus, corpus]):
        with pytest.raises(DataError) as caught:
            load_dataset(sources, split_manifest=split, max_merges=5)
        assert (caught.value.kind, caught.value.sources) == ("ManifestNeedsOneCorpus", len(sources))
    with pytest.raises(DataError) as caught:
        load_dataset([corpus], split_manifest=tmp_path / "none.json", max_merges=5)
    assert caught.value.kind == "UnreadableSource"
    # the corpus is judged before the manifest
    corpus.write_text("[]")
    split.write_text("{")
    with pytest.raises(DataError) as caught:
        load_dataset([corpus], split_manifest=split, max_merges=5)
    assert caught.value.kind == "Empty"
