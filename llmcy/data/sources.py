"""Text where people keep it: files, patterns, directory trees, JSON lines.

What is read, and in which order:

- arguments in the order given; a file that was read before is not read again;
- a directory stands for every file below it whose name ends in one of `TEXT_SUFFIXES` (with or
  without ``.gz``), sorted by the bytes of the path below the directory; names that start with a dot
  are left out, links to directories are not followed;
- an argument that is no existing path but has ``*``, ``?`` or ``[`` is a pattern (``**`` crosses
  directories); the files it matches are sorted by the bytes of their paths;
- ``.jsonl`` and ``.ndjson`` files hold one JSON object a line, each a document: the string under
  ``text_field``, as UTF-8; blank lines are skipped;
- every other file is one document, its bytes as they are: no decoding, no change of line ends;
- ``.gz`` files are decompressed first.

A document's id is the path of its file below the deepest directory that holds all files read; a
document from JSON lines adds ``#`` and the line number, a piece of a cut text ``#`` and its number,
both from 1.  Documents without a byte are left out.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from llmcy.data._read import read_file, unreadable
from llmcy.data.paragraphs import cut_paragraphs, default_min_bytes
from llmcy.errors import ConfigError, DataError

__all__ = [
    "CUT_CHOICES",
    "TEXT_SUFFIXES",
    "TextDocument",
    "TextSource",
    "builtin_corpus",
    "read_sources",
]

TEXT_SUFFIXES = (".txt", ".text", ".md", ".rst", ".jsonl", ".ndjson")
RECORD_SUFFIXES = (".jsonl", ".ndjson")
CUT_CHOICES = ("auto", "always", "never")


@dataclass(frozen=True)
class TextDocument:
    """A name and bytes."""

    id: str
    content: bytes


@dataclass(frozen=True)
class TextSource:
    """Documents read, and how.

    Attributes
    ----------
    documents
        In reading order, none empty, ids distinct.
    description
        What was read and cut, as JSON-able values; goes into the split record.
    """

    documents: tuple[TextDocument, ...]
    description: dict[str, Any]


def builtin_corpus() -> TextSource:
    """The documentation that every CPython carries: one document a topic, sorted by name.

    The text differs between Python versions; the split record says what it was.
    """
    from pydoc_data.topics import topics

    documents = tuple(
        TextDocument(f"pydoc/{name}", topics[name].encode("utf-8"))
        for name in sorted(topics)
        if topics[name]
    )
    return TextSource(documents, {"kind": "builtin", "name": "pydoc_data.topics"})


def read_sources(
    sources: Sequence[str | os.PathLike[str]],
    *,
    text_field: str = "text",
    cut: str = "auto",
    min_document_bytes: int | None = None,
) -> TextSource:
    """Read documents from files, patterns, directories and JSON lines.

    Parameters
    ----------
    sources
        Paths and patterns; the module docstring has the rules.
    text_field
        Key of the text in JSON lines.
    cut
        ``"always"`` cuts every plain text at paragraphs, ``"never"`` none, ``"auto"`` cuts when the
        sources come to one plain text file and nothing else.
    min_document_bytes
        For cutting; None takes a 256th of the text, at least 1024 and at most 16384 bytes.

    Raises
    ------
    ConfigError
        ``InvalidSetting`` for an unknown ``cut``.
    DataError
        ``NoSuchSource``, ``NoTextFiles``, ``SplitManifestMissing`` for a ``.json`` file (the JSON
        form comes with a split), ``UnreadableSource``, ``InvalidRecord``, ``InvalidSize``,
        ``NoDocuments``, ``DuplicateDocumentId``.
    """
    if cut not in CUT_CHOICES:
        raise ConfigError(
            "InvalidSetting",
            f"cut must be one of {', '.join(CUT_CHOICES)}, got {cut!r}",
            name="cut",
            value=cut,
        )
    paths = _find_files([os.fspath(source) for source in sources])
    names = _names(paths)
    one_text = len(paths) == 1 and not _holds_records(paths[0])
    cutting = cut == "always" or (cut == "auto" and one_text)
    documents: list[TextDocument] = []
    for path, name in zip(paths, names, strict=True):
        data = read_file(path)
        if _holds_records(path):
            documents.extend(_records(path, name, data, text_field))
        elif cutting:
            least = (
                default_min_bytes(len(data)) if min_document_bytes is None else min_document_bytes
            )
            pieces = cut_paragraphs(data, least)
            documents.extend(TextDocument(f"{name}#{k}", p) for k, p in enumerate(pieces, start=1))
        elif data:
            documents.append(TextDocument(name, data))
    if not documents:
        raise DataError("NoDocuments", f"no text in {', '.join(map(repr, names)) or 'no source'}")
    _check_ids(documents)
    description = {
        "kind": "text",
        "files": names,
        "text_field": text_field,
        "cut_at_paragraphs": cutting,
        "min_document_bytes": min_document_bytes,
    }
    return TextSource(tuple(documents), description)


def _check_ids(documents: list[TextDocument]) -> None:
    # a file may be called like a line or a piece of another one
    first_with: dict[str, int] = {}
    for index, document in enumerate(documents):
        first = first_with.setdefault(document.id, index)
        if first != index:
            raise DataError(
                "DuplicateDocumentId",
                f"two documents are called {document.id!r}; rename a file",
                id=document.id,
                first=first,
                repeated=index,
            )


def _find_files(sources: list[str]) -> list[str]:
    found: dict[str, None] = {}  # a dict keeps the first place of a path
    for source in sources:
        for path in _expand(source):
            if _bare_name(path).endswith(".json"):
                raise DataError(
                    "SplitManifestMissing",
                    f"{path}: a corpus in the JSON form needs a split manifest beside it",
                    path=path,
                )
            found.setdefault(os.path.abspath(path))
    return list(found)


def _expand(source: str) -> Iterator[str]:
    if os.path.isdir(source):
        below = sorted(_walk(source), key=lambda p: os.fsencode(os.path.relpath(p, source)))
        if not below:
            raise DataError(
                "NoTextFiles",
                f"{source}: no file below ends in {', '.join(TEXT_SUFFIXES)} (or that and .gz)",
                source=source,
            )
        yield from below
    elif os.path.exists(source):
        yield source
    else:
        is_pattern = any(character in source for character in "*?[")
        matches = glob.glob(source, recursive=True) if is_pattern else []
        files = sorted((m for m in matches if os.path.isfile(m)), key=os.fsencode)
        if not files:
            raise DataError(
                "NoSuchSource",
                f"{source}: {'no file matches' if is_pattern else 'there is no such path'}",
                source=source,
            )
        yield from files


def _walk(directory: str) -> Iterator[str]:
    def fail(error: OSError) -> None:
        raise unreadable(str(error.filename), error) from error

    for folder, subfolders, files in os.walk(directory, onerror=fail):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        for name in files:
            if not name.startswith(".") and _bare_name(name).endswith(TEXT_SUFFIXES):
                yield os.path.join(folder, name)


def _bare_name(path: str) -> str:
    return path.lower().removesuffix(".gz")


def _holds_records(path: str) -> bool:
    return _bare_name(path).endswith(RECORD_SUFFIXES)


def _names(paths: list[str]) -> list[str]:
    """Paths below their deepest common directory, with forward slashes, as plain text."""
    if not paths:
        return []
    try:
        base = os.path.commonpath([os.path.dirname(path) for path in paths])
        below = [os.path.relpath(path, base) for path in paths]
    except ValueError:  # different drives have no common directory
        below = paths
    return [os.fsencode(p.replace(os.sep, "/")).decode("utf-8", "backslashreplace") for p in below]


def _records(path: str, name: str, data: bytes, text_field: str) -> Iterator[TextDocument]:
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line.strip(b" \t\r"):
            continue
        try:
            record = json.loads(line.decode("utf-8"), object_pairs_hook=_unique_keys)
            if not isinstance(record, dict):
                raise ValueError("the line is not a JSON object")
            if text_field not in record:
                raise ValueError(f"key {text_field!r} is missing")
            if not isinstance(record[text_field], str):
                raise ValueError(f"{text_field!r} is not a string")
            content = record[text_field].encode("utf-8")
        except (ValueError, RecursionError) as error:
            raise DataError(
                "InvalidRecord",
                f"{path}, line {number}: {error}",
                cause=error,
                path=path,
                line=number,
            ) from error
        if content:
            yield TextDocument(f"{name}#{number}", content)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key is repeated")
    return found
