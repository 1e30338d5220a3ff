"""Reading whole files, with one error for whatever goes wrong."""

from __future__ import annotations

import gzip
import os
import zlib

from llmcy.errors import DataError

__all__ = ["read_file", "unreadable"]


def read_file(path: str | os.PathLike[str]) -> bytes:
    """All bytes of a file; ``.gz`` is decompressed.

    Raises
    ------
    DataError
        ``UnreadableSource``.
    """
    name = os.fspath(path)
    try:
        with open(name, "rb") as file:
            data = file.read()
        return gzip.decompress(data) if name.lower().endswith(".gz") else data
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(name, error) from error


def unreadable(path: str, error: Exception) -> DataError:
    return DataError("UnreadableSource", f"{path}: cannot be read: {error}", cause=error, path=path)
