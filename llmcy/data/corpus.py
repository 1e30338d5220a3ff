"""A corpus in its JSON form: one array of documents, in the order that counts.

Each document is an object with exactly four strings: ``id``, ``language``, ``provenance_group``
(documents that share a group must share a partition) and ``text``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass

from llmcy.checksum import fnv1a64, label
from llmcy.data._json import checked_object, checked_string, invalid_json, parse_strict, parse_text
from llmcy.data._read import read_file
from llmcy.errors import DataError

__all__ = ["Corpus", "Document"]

IDENTIFIER = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
# the Unicode property White_Space; str.strip() would also take U+001C..U+001F
WHITE_SPACE = (
    "\t\n\x0b\x0c\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009"
    "\u200a\u2028\u2029\u202f\u205f\u3000"
)


@dataclass(frozen=True)
class Document:
    """One text with its name, language and group."""

    id: str
    language: str
    provenance_group: str
    text: str

    @property
    def content(self) -> bytes:
        """The text as UTF-8."""
        return self.text.encode("utf-8")


class Corpus:
    """Documents in order, found by id; make it with `from_json`."""

    __slots__ = ("_by_id", "_checksum", "_documents")

    def __init__(self, documents: tuple[Document, ...], checksum: str) -> None:
        self._documents = documents
        self._checksum = checksum
        self._by_id = {document.id: position for position, document in enumerate(documents)}

    @classmethod
    def from_json(cls, text: str | bytes) -> Corpus:
        """Read and check a corpus.

        Parameters
        ----------
        text
            The JSON text or its UTF-8 bytes; the checksum covers these bytes as they are.

        Raises
        ------
        DataError
            The first of: ``InvalidJson`` anywhere; ``Empty``; then document by document
            ``BadIdentifier``, ``EmptyText``, ``DuplicateId``, ``DuplicateText``.  Positions count
            from 1.
        """
        decoded, data = parse_text("corpus", text)
        documents = _typed(parse_strict("corpus", decoded))
        if not documents:
            raise DataError("Empty", "corpus: the array has no document")
        _check(documents)
        return cls(documents, label(fnv1a64(data)))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Corpus:
        """`from_json` of a file's bytes; ``UnreadableSource`` when it cannot be read."""
        return cls.from_json(read_file(path))

    @property
    def documents(self) -> tuple[Document, ...]:
        """All documents in corpus order."""
        return self._documents

    @property
    def checksum(self) -> str:
        """``fnv1a64:`` and 16 digits, over the bytes of the JSON text."""
        return self._checksum

    def document(self, id: str) -> Document | None:
        """The document of that id, or None."""
        position = self._by_id.get(id)
        return None if position is None else self._documents[position]

    def position(self, id: str) -> int | None:
        """Where the document of that id stands, from 0, or None."""
        return self._by_id.get(id)

    def __len__(self) -> int:
        return len(self._documents)

    def __iter__(self) -> Iterator[Document]:
        return iter(self._documents)


def _typed(value: object) -> tuple[Document, ...]:
    if not isinstance(value, list):
        raise invalid_json("corpus", "expected an array of documents")
    keys = ("id", "language", "provenance_group", "text")
    documents = []
    for position, item in enumerate(value, start=1):
        what = f"corpus document {position}"
        fields = checked_object(what, item, keys)
        documents.append(Document(**{key: checked_string(what, key, fields[key]) for key in keys}))
    return tuple(documents)


def _check(documents: tuple[Document, ...]) -> None:
    first_id: dict[str, int] = {}
    first_text: dict[str, int] = {}
    for position, document in enumerate(documents, start=1):
        for field in ("id", "language", "provenance_group"):
            value = getattr(document, field)
            if not IDENTIFIER.fullmatch(value):
                raise DataError(
                    "BadIdentifier",
                    f"corpus document {position}: {field} must be words of a-z and 0-9 joined by "
                    f"single hyphens, starting with a letter, got {value!r}",
                    position=position,
                    field=field,
                )
        if not document.text.strip(WHITE_SPACE):
            raise DataError(
                "EmptyText",
                f"corpus document {position} ({document.id}): the text is blank",
                position=position,
            )
        if first_id.setdefault(document.id, position) != position:
            raise DataError(
                "DuplicateId",
                f"corpus documents {first_id[document.id]} and {position} have the same id "
                f"{document.id!r}",
                id=document.id,
                first=first_id[document.id],
                position=position,
            )
        if first_text.setdefault(document.text, position) != position:
            raise DataError(
                "DuplicateText",
                f"corpus documents {first_text[document.text]} and {position} have the same text",
                first=first_text[document.text],
                position=position,
            )
