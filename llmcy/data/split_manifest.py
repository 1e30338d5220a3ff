"""A fixed split of a JSON corpus, and applying it.

Reading a manifest checks its JSON only; everything that needs the corpus is checked when the two
meet in `partition_corpus`, before any tokenizer is learned.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from llmcy.data._json import checked_object, checked_string, invalid_json, parse_strict, parse_text
from llmcy.data._read import read_file
from llmcy.data.corpus import Corpus, Document
from llmcy.data.partition import Partition
from llmcy.errors import DataError

__all__ = ["SPLIT_STRATEGY", "CorpusPartitions", "SplitManifest", "partition_corpus"]

SCHEMA_VERSION = 1
SPLIT_STRATEGY = "fixed-paired-document-holdout-v1"
KEYS = ("schema_version", "corpus_checksum", "strategy", "train", "validation", "test")


@dataclass(frozen=True)
class SplitManifest:
    """Which documents of which corpus serve which partition; make it with `from_json`."""

    schema_version: int
    corpus_checksum: str
    strategy: str
    train: tuple[str, ...]
    validation: tuple[str, ...]
    test: tuple[str, ...]

    @classmethod
    def from_json(cls, text: str | bytes) -> SplitManifest:
        """Read a manifest; ``InvalidJson`` unless it has exactly the six keys with their types.

        ``schema_version`` is a JSON integer from 0 to 2**32 - 1 (1.0, 1e0 and true are not).
        """
        what = "split manifest"
        decoded, _ = parse_text(what, text)
        fields = checked_object(what, parse_strict(what, decoded), KEYS)
        version = fields["schema_version"]
        if type(version) is not int or version >= 2**32:
            raise invalid_json(what, "schema_version must be an integer from 0 to 2**32 - 1")
        return cls(
            version,
            checked_string(what, "corpus_checksum", fields["corpus_checksum"]),
            checked_string(what, "strategy", fields["strategy"]),
            *(_identifiers(what, partition.label, fields) for partition in Partition),
        )

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SplitManifest:
        """`from_json` of a file's bytes; ``UnreadableSource`` when it cannot be read."""
        return cls.from_json(read_file(path))

    def listed(self, partition: Partition) -> tuple[str, ...]:
        """Ids listed for one partition."""
        ids: tuple[str, ...] = getattr(self, partition.label)
        return ids


def _identifiers(what: str, name: str, fields: dict[str, object]) -> tuple[str, ...]:
    value = fields[name]
    if not isinstance(value, list):
        raise invalid_json(what, f"{name} must be an array of ids")
    return tuple(checked_string(what, f"{name}[{i}]", item) for i, item in enumerate(value))


@dataclass(frozen=True)
class CorpusPartitions:
    """The documents of each partition, in corpus order."""

    train: tuple[Document, ...]
    validation: tuple[Document, ...]
    test: tuple[Document, ...]

    def of(self, partition: Partition) -> tuple[Document, ...]:
        """Documents of one partition."""
        documents: tuple[Document, ...] = getattr(self, partition.label)
        return documents


def partition_corpus(corpus: Corpus, manifest: SplitManifest) -> CorpusPartitions:
    """Give every document of ``corpus`` to the partition that ``manifest`` names.

    Raises
    ------
    DataError
        The first of: ``UnsupportedSchemaVersion``; ``UnknownStrategy``;
        ``CorpusChecksumMismatch``; for train, validation, test in turn ``EmptyPartition`` or
        ``PartitionOrder`` (known ids must follow corpus order, each once); for every listed id
        ``UnknownDocument`` or ``RepeatedDocument``; ``UnlistedDocument``; ``GroupSplit``.
    """
    _check_header(corpus, manifest)
    for partition in Partition:
        _check_order(corpus, partition, manifest.listed(partition))
    places = _place(corpus, manifest)
    for document in corpus:
        if document.id not in places:
            raise DataError(
                "UnlistedDocument",
                f"split manifest: document {document.id!r} is in no partition",
                id=document.id,
            )
    _check_groups(corpus, places)
    return CorpusPartitions(
        *(tuple(d for d in corpus if places[d.id] is partition) for partition in Partition)
    )


def _check_header(corpus: Corpus, manifest: SplitManifest) -> None:
    if manifest.schema_version != SCHEMA_VERSION:
        raise DataError(
            "UnsupportedSchemaVersion",
            f"split manifest: schema_version must be {SCHEMA_VERSION}, "
            f"got {manifest.schema_version}",
            found=manifest.schema_version,
        )
    if manifest.strategy != SPLIT_STRATEGY:
        raise DataError(
            "UnknownStrategy",
            f"split manifest: strategy must be {SPLIT_STRATEGY!r}, got {manifest.strategy!r}",
            found=manifest.strategy,
        )
    if manifest.corpus_checksum != corpus.checksum:
        raise DataError(
            "CorpusChecksumMismatch",
            f"split manifest: made for a corpus with checksum {manifest.corpus_checksum}, "
            f"this one has {corpus.checksum}",
            expected=manifest.corpus_checksum,
            actual=corpus.checksum,
        )


def _check_order(corpus: Corpus, partition: Partition, ids: tuple[str, ...]) -> None:
    if not ids:
        raise DataError(
            "EmptyPartition", f"split manifest: {partition} lists no document", partition=partition
        )
    last = -1
    for id in ids:
        position = corpus.position(id)
        if position is None:
            continue
        if position <= last:
            raise DataError(
                "PartitionOrder",
                f"split manifest: {id!r} in {partition} is repeated or out of corpus order",
                partition=partition,
                id=id,
            )
        last = position


def _place(corpus: Corpus, manifest: SplitManifest) -> dict[str, Partition]:
    places: dict[str, Partition] = {}
    for partition in Partition:
        for id in manifest.listed(partition):
            if corpus.position(id) is None:
                raise DataError(
                    "UnknownDocument",
                    f"split manifest: {id!r} in {partition} is not in the corpus",
                    partition=partition,
                    id=id,
                )
            if id in places:
                raise DataError(
                    "RepeatedDocument",
                    f"split manifest: {id!r} is in {places[id]} and again in {partition}",
                    partition=partition,
                    id=id,
                )
            places[id] = partition
    return places


def _check_groups(corpus: Corpus, places: dict[str, Partition]) -> None:
    first: dict[str, Document] = {}
    for document in corpus:
        earlier = first.setdefault(document.provenance_group, document)
        if places[earlier.id] is not places[document.id]:
            raise DataError(
                "GroupSplit",
                f"split manifest: {earlier.id!r} ({places[earlier.id]}) and {document.id!r} "
                f"({places[document.id]}) share the group {document.provenance_group!r}",
                group=document.provenance_group,
                first=earlier.id,
                id=document.id,
            )
