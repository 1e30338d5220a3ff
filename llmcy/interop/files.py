"""Reading and writing the files of other formats, with errors that name them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from llmcy.atomic_file import write_atomic
from llmcy.errors import FileError, InteropError

__all__ = ["as_json", "corrupt", "io_error", "new_folder", "read_bytes", "read_json", "write"]

PathLike = str | os.PathLike[str]


def new_folder(path: PathLike) -> Path:
    """Make a folder; an empty one that exists is taken over.

    Raises
    ------
    InteropError
        ``FolderNotEmpty`` or ``Io``.
    """
    folder = Path(path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        taken = any(folder.iterdir())
    except OSError as error:
        raise io_error("create folder", folder, error) from error
    if taken:
        raise InteropError(
            "FolderNotEmpty", f"folder {str(folder)!r} is not empty", path=str(folder)
        )
    return folder


def write(path: PathLike, data: bytes) -> None:
    """Write a whole file in one visible step.

    Raises
    ------
    InteropError
        ``Io``.
    """
    try:
        write_atomic(path, data)
    except FileError as error:
        raise io_error("write", Path(path), error) from error


def read_bytes(path: Path) -> bytes:
    """A whole file.

    Raises
    ------
    InteropError
        ``Io``.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise io_error("read", path, error) from error


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object.

    Raises
    ------
    InteropError
        ``Io``, or ``CorruptFile`` when it is none.
    """
    try:
        value = json.loads(read_bytes(path))
    except ValueError as error:
        raise corrupt(path, f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise corrupt(path, f"a JSON object is expected, got {type(value).__name__}")
    return value


def as_json(value: Any) -> bytes:
    """Indented JSON."""
    return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()


def corrupt(path: Path, problem: str) -> InteropError:
    return InteropError("CorruptFile", f"{str(path)!r}: {problem}", path=str(path), problem=problem)


def io_error(operation: str, path: Path, error: Exception) -> InteropError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return InteropError(
        "Io",
        f"cannot {operation} {str(path)!r}: {reason}",
        cause=error,
        operation=operation,
        path=str(path),
    )
