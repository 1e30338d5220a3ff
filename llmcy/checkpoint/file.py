"""Checkpoint files on the disk."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NoReturn

from llmcy.atomic_file import PathLike, check_destination, write_atomic
from llmcy.checkpoint.encode import EncodedCheckpoint
from llmcy.errors import CheckpointError, FileError

__all__ = ["read_file", "save_atomic"]


def read_file(path: PathLike) -> bytes:
    """The whole content of a file.

    Raises
    ------
    CheckpointError
        ``Io`` with operation ``read``, the path and the system's error as ``cause``;
        ``Allocation`` when the file does not fit the memory.
    """
    name = os.fsdecode(path)
    try:
        with open(path, "rb") as file:
            return file.read()
    except (OSError, ValueError) as cause:  # ValueError: a zero byte in the path
        raise CheckpointError(
            "Io", f"read {name!r}: {cause}", cause=cause, operation="read", path=name
        ) from cause
    except MemoryError as cause:
        raise CheckpointError(
            "Allocation", f"no memory to read {name!r}", cause=cause, context="file"
        ) from cause


def save_atomic(path: PathLike, encode: Callable[[], EncodedCheckpoint]) -> EncodedCheckpoint:
    """Check the destination, then encode, then replace the file in one visible step.

    Raises
    ------
    CheckpointError
        ``Layout`` for a path that does not end in a file name, before anything else is done;
        ``UnsupportedAtomicReplacement``; ``Io`` as :func:`llmcy.atomic_file.write_atomic`; and
        whatever ``encode`` raises.
    """
    try:
        check_destination(path)
        encoded = encode()
        write_atomic(path, encoded.bytes)
    except FileError as error:
        _translate(error)
    return encoded


def _translate(error: FileError) -> NoReturn:
    if error.kind == "NoFileName":
        text = f"the destination {error.path!r} does not end in a file name"
        raise CheckpointError("Layout", text, text=text) from error
    if error.kind == "Io":
        raise CheckpointError(
            "Io", str(error), cause=error.cause, operation=error.operation, path=error.path
        ) from error.cause
    raise CheckpointError(error.kind, str(error)) from error
