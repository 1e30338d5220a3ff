"""A split written down: every document with its size, digest and partition.

The record needs no text to be checked against itself, and tells from the text read again whether
anything has changed since.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from llmcy.data.partition import Partition
from llmcy.data.sources import TextDocument
from llmcy.data.split import RULE_NAME, SplitRule
from llmcy.errors import DataError, LlmcyError

__all__ = ["DocumentRecord", "SplitRecord", "manifest_record", "split_documents"]

RECORD_FORMAT = "llmcy-split-record-v1"


@dataclass(frozen=True)
class DocumentRecord:
    """One document as it was split.

    Attributes
    ----------
    id, n_bytes, sha256
        Its name, size and digest (64 hexadecimal digits).
    partition
        Where it went; None when it was dropped as a duplicate.
    duplicate_of
        Id of the first document with the same bytes, or None.
    """

    id: str
    n_bytes: int
    sha256: str
    partition: Partition | None
    duplicate_of: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """JSON-able values; ``duplicate_of`` only where it says something."""
        fields: dict[str, Any] = {
            "id": self.id,
            "bytes": self.n_bytes,
            "sha256": self.sha256,
            "partition": None if self.partition is None else self.partition.label,
        }
        if self.duplicate_of is not None:
            fields["duplicate_of"] = self.duplicate_of
        return fields

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> DocumentRecord:
        """The record that `to_dict` wrote."""
        label = fields["partition"]
        return cls(
            fields["id"],
            fields["bytes"],
            fields["sha256"],
            None if label is None else Partition(label),
            fields.get("duplicate_of"),
        )


@dataclass(frozen=True)
class SplitRecord:
    """A split, written down so that it can be checked again.

    Attributes
    ----------
    rule
        `SplitRule.to_dict`, or the strategy and corpus checksum of a split manifest.
    source
        What was read (`TextSource.description`).
    documents
        Every document in reading order, dropped ones too.
    corpus_digest
        SHA-256 over one line ``sha256 bytes id`` for each document, each ended by a line feed.
    """

    rule: Mapping[str, Any]
    source: Mapping[str, Any]
    documents: tuple[DocumentRecord, ...]
    corpus_digest: str

    def totals(self) -> dict[str, dict[str, int]]:
        """Documents and bytes of each partition, and of what was dropped."""
        sums = {name: {"documents": 0, "bytes": 0} for name in [*map(str, Partition), "dropped"]}
        for document in self.documents:
            name = "dropped" if document.partition is None else document.partition.label
            sums[name]["documents"] += 1
            sums[name]["bytes"] += document.n_bytes
        return sums

    def to_dict(self) -> dict[str, Any]:
        """JSON-able values."""
        return {
            "format": RECORD_FORMAT,
            "rule": dict(self.rule),
            "source": dict(self.source),
            "corpus_digest": self.corpus_digest,
            "totals": self.totals(),
            "documents": [document.to_dict() for document in self.documents],
        }

    def to_json(self) -> str:
        """Text for a file; equal records give equal texts."""
        return json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> SplitRecord:
        """Read what `to_json` wrote and check that it agrees with itself.

        Raises
        ------
        DataError
            ``InvalidJson`` when it is not such a record; ``SplitRecordMismatch`` when digest,
            totals or a partition do not follow from the documents listed.
        """
        try:
            fields = json.loads(text)
            if fields["format"] != RECORD_FORMAT:
                raise ValueError(f"format {fields['format']!r} is not {RECORD_FORMAT!r}")
            record = cls(
                fields["rule"],
                fields["source"],
                tuple(DocumentRecord.from_dict(d) for d in fields["documents"]),
                fields["corpus_digest"],
            )
            totals = fields["totals"]
            by_hash = record.rule["name"] == RULE_NAME
            rule = SplitRule.from_dict(record.rule) if by_hash else None
            contents = [(d.id, d.n_bytes, bytes.fromhex(d.sha256)) for d in record.documents]
        except (
            ValueError,
            KeyError,
            TypeError,
            AttributeError,
            RecursionError,
            LlmcyError,
        ) as error:
            raise DataError(
                "InvalidJson",
                f"split record: {error!r}",
                cause=error,
                document="split record",
                problem=str(error),
            ) from error
        _match("corpus_digest", record.corpus_digest, _corpus_digest(record.documents))
        _match("totals", totals, record.totals())
        if rule is not None:
            for written, placed in zip(record.documents, _place(contents, rule), strict=True):
                _match(f"partition of {written.id}", written.partition, placed.partition)
                _match(f"duplicate_of of {written.id}", written.duplicate_of, placed.duplicate_of)
        return record

    def check(self, documents: Sequence[TextDocument]) -> None:
        """Compare the record with documents read again.

        Raises
        ------
        DataError
            ``SplitRecordMismatch`` naming the first difference.
        """
        _match("number of documents", len(self.documents), len(documents))
        for recorded, document in zip(self.documents, documents, strict=True):
            _match("id", recorded.id, document.id)
            _match(f"bytes of {recorded.id}", recorded.n_bytes, len(document.content))
            _match(f"sha256 of {recorded.id}", recorded.sha256, _sha256(document).hex())


def _match(field: str, expected: Any, actual: Any) -> None:
    if expected != actual:
        raise DataError(
            "SplitRecordMismatch",
            f"split record: {field} is written as {expected}, found {actual}",
            field=field,
            expected=expected,
            actual=actual,
        )


def _sha256(document: TextDocument) -> bytes:
    return hashlib.sha256(document.content).digest()


def _corpus_digest(documents: Sequence[DocumentRecord]) -> str:
    digest = hashlib.sha256()
    for document in documents:
        line = f"{document.sha256} {document.n_bytes} {document.id}\n"
        digest.update(line.encode("utf-8", "surrogatepass"))
    return digest.hexdigest()


def _place(contents: Iterable[tuple[str, int, bytes]], rule: SplitRule) -> list[DocumentRecord]:
    """Partitions for documents given as (id, size, digest)."""
    first: dict[bytes, str] = {}
    records = []
    for id, n_bytes, digest in contents:
        original = first.setdefault(digest, id)
        duplicate_of = None if original == id else original
        dropped = duplicate_of is not None and rule.duplicates == "drop"
        partition = None if dropped else rule.partition_of(digest)
        records.append(DocumentRecord(id, n_bytes, digest.hex(), partition, duplicate_of))
    return records


def split_documents(
    documents: Sequence[TextDocument], rule: SplitRule, source: Mapping[str, Any]
) -> SplitRecord:
    """Give every document a partition.

    Parameters
    ----------
    documents
        With distinct ids.
    rule
        Shares, salt, and what happens to duplicates.
    source
        What was read, for the record.

    Raises
    ------
    DataError
        ``EmptyPartition`` when a partition with a share above 0 got no document.
    """
    records = _place(((d.id, len(d.content), _sha256(d)) for d in documents), rule)
    used = {record.partition for record in records}
    for partition in Partition:
        if rule.fraction(partition) > 0 and partition not in used:
            different = len({record.sha256 for record in records})
            raise DataError(
                "EmptyPartition",
                f"no document fell to {partition}: its share is "
                f"{float(rule.fraction(partition)):g} of {different} different documents; give "
                "more or smaller documents (or a smaller minimum size when one text is cut at "
                "blank lines), a larger share, or another salt",
                partition=partition,
            )
    return SplitRecord(rule.to_dict(), source, tuple(records), _corpus_digest(records))


def manifest_record(
    rule: Mapping[str, Any],
    source: Mapping[str, Any],
    placed: Iterable[tuple[TextDocument, Partition]],
) -> SplitRecord:
    """The record of a split that a manifest fixed."""
    records = tuple(
        DocumentRecord(document.id, len(document.content), _sha256(document).hex(), partition)
        for document, partition in placed
    )
    return SplitRecord(rule, source, records, _corpus_digest(records))
