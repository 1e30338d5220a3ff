"""Cutting one long text into documents at blank lines.

A line is blank when it holds nothing but spaces, tabs and carriage returns.  A paragraph has the
blank lines that follow it, the first one also those before it.  Whole paragraphs are gathered until
a document has at least ``min_bytes`` bytes; a last piece that stays shorter joins the document
before it.  Joining the documents gives the text back, byte for byte.
"""

from __future__ import annotations

import re

from llmcy.data._sizes import checked_size

__all__ = ["cut_paragraphs", "default_min_bytes"]

# from the last character of a paragraph to the next line that is not blank, or to the end
GAP = re.compile(rb"[^ \t\r\n][ \t\r]*\n(?:[ \t\r]*\n)+(?:[ \t\r]*\Z)?")
SMALLEST, LARGEST, PIECES = 1024, 16384, 256


def default_min_bytes(n_bytes: int) -> int:
    """A 256th of the text, but at least 1024 and at most 16384 bytes."""
    return min(LARGEST, max(SMALLEST, n_bytes // PIECES))


def cut_paragraphs(text: bytes, min_bytes: int) -> list[bytes]:
    """Documents of whole paragraphs, each of at least ``min_bytes`` bytes (unless the text is
    shorter); an empty text gives none.

    Raises
    ------
    DataError
        ``InvalidSize``.
    """
    min_bytes = checked_size("min_document_bytes", min_bytes)
    documents: list[bytes] = []
    start = 0
    for gap in GAP.finditer(text):
        if gap.end() - start >= min_bytes and gap.end() < len(text):
            documents.append(text[start : gap.end()])
            start = gap.end()
    rest = text[start:]
    if documents and len(rest) < min_bytes:
        documents[-1] += rest
    elif rest:
        documents.append(rest)
    return documents
