"""Write a file so that a reader sees the old one or the new one, never a part of either.

The bytes go to a temporary sibling, are forced to the disk, and the sibling is renamed onto the
destination.  Every call to the operating system is looked up in :mod:`os` when it is made, so a
test can make any one of them fail.

What a crash leaves: before the rename the old file, perhaps with a dot-file beside it, which
:func:`sweep_temporaries` removes; after the rename the new file.  When only the last step fails
(forcing the directory to the disk) the new file is already in place, and the call still reports the
failure.
"""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from pathlib import PurePath

from llmcy.errors import FileError

__all__ = [
    "MAX_TEMPORARY_ATTEMPTS",
    "PathLike",
    "check_destination",
    "is_temporary",
    "publish",
    "sweep_temporaries",
    "synchronize_directory",
    "write_atomic",
]

MAX_TEMPORARY_ATTEMPTS = 128
_TEMPORARY_NAME = re.compile(r"\..+\.tmp-\d+-\d+", re.DOTALL)
_TEMPORARY_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0)

# renaming over an existing file is atomic on Unix only
RENAME_IS_ATOMIC = os.name == "posix"

_serials = count()
_serial_lock = threading.Lock()


def _fresh_lock() -> None:
    global _serial_lock
    _serial_lock = threading.Lock()


if hasattr(os, "register_at_fork"):  # another thread may have held the lock while this one forked
    os.register_at_fork(after_in_child=_fresh_lock)


def _next_serial() -> int:
    with _serial_lock:
        return next(_serials)


PathLike = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Buffer = bytes | bytearray | memoryview
Content = Buffer | Sequence[Buffer]


def check_destination(path: PathLike) -> tuple[str, str, str]:
    """Split a destination into the path itself, its directory and its file name.

    Parameters
    ----------
    path
        Where a file is to appear.  Nothing is looked up on the disk.

    Returns
    -------
    destination, parent, name
        The path as given, its directory (``"."`` for a bare name) and its last component.

    Raises
    ------
    FileError
        ``NoFileName`` when the path does not end in a name: empty, ``/``, ``.`` or ``..``.
    """
    destination = os.fsdecode(path)
    pure = PurePath(destination)
    if pure.name in ("", ".."):
        raise FileError(
            "NoFileName", f"{destination!r} does not end in a file name", path=destination
        )
    return destination, str(pure.parent), pure.name


def write_atomic(path: PathLike, data: Content) -> None:
    """Replace the file at ``path``, or create it, in one visible step.

    Parameters
    ----------
    path
        The destination.  An existing file is replaced; a symbolic link is replaced by a regular
        file and its target left alone; the permissions of the old file are not carried over.
    data
        The whole new content, or its pieces one after the other.

    Raises
    ------
    FileError
        ``UnsupportedAtomicReplacement`` where a rename does not replace atomically;
        ``NoFileName`` as :func:`check_destination`; ``Io`` with the operation, the path it was
        applied to and the system's error as ``cause``.  In all cases but the operation
        ``synchronize parent directory`` the destination is as it was.
    """
    if not RENAME_IS_ATOMIC:
        raise FileError(
            "UnsupportedAtomicReplacement", "this platform cannot replace a file atomically"
        )
    destination, parent, name = check_destination(path)
    descriptor, temporary = _create_temporary(destination, parent, name)
    try:
        _fill(descriptor, temporary, _pieces(data))
        try:
            os.rename(temporary, destination)
        except OSError as cause:
            raise _io("atomically replace", destination, cause) from cause
        synchronize_directory(parent)
    except BaseException:
        with suppress(OSError):  # renamed already, or it fails too: the first failure is reported
            os.unlink(temporary)
        raise


def publish(path: PathLike, data: Content) -> None:
    """:func:`write_atomic`, but not begun when the disk has no room for all of ``data``.

    Raises
    ------
    FileError
        ``NoSpace`` with the bytes needed and free, before anything is written; else as
        :func:`write_atomic`, which also meets a disk that others fill meanwhile.
    """
    destination, parent, _ = check_destination(path)
    needed = sum(len(piece) for piece in _pieces(data))
    if hasattr(os, "statvfs"):
        try:
            held = os.statvfs(parent)
        except OSError as cause:
            raise _io("measure free space", parent, cause) from cause
        free = held.f_bavail * held.f_frsize
        if free < needed:
            raise FileError(
                "NoSpace",
                f"{destination!r} needs {needed} bytes, the disk has {free} free",
                path=destination,
                needed=needed,
                free=free,
            )
    write_atomic(path, data)


def is_temporary(name: str) -> bool:
    """Is this the name of a file that has not been renamed to its destination?"""
    return _TEMPORARY_NAME.fullmatch(name) is not None


def sweep_temporaries(folder: PathLike) -> list[str]:
    """Remove the temporaries that writers killed half-way left in ``folder``; tell their names.

    Nobody else may be writing into the folder.

    Raises
    ------
    FileError
        ``Io`` when the folder cannot be read or a temporary not be removed.
    """
    where = os.fsdecode(folder)
    removed = []
    try:
        for name in sorted(os.listdir(where)):
            path = os.path.join(where, name)
            if is_temporary(name) and stat.S_ISREG(os.lstat(path).st_mode):
                os.unlink(path)
                removed.append(name)
    except OSError as cause:
        raise _io("sweep temporaries of", where, cause) from cause
    return removed


def _io(operation: str, path: str, cause: Exception) -> FileError:
    return FileError(
        "Io", f"{operation} {path!r}: {cause}", cause=cause, operation=operation, path=path
    )


def _create_temporary(destination: str, parent: str, name: str) -> tuple[int, str]:
    """Open a file in ``parent`` that did not exist; return its descriptor and path."""
    readable = os.fsencode(name).decode("utf-8", "replace")
    for _ in range(MAX_TEMPORARY_ATTEMPTS):
        temporary = os.path.join(parent, f".{readable}.tmp-{os.getpid()}-{_next_serial()}")
        try:
            return os.open(temporary, _TEMPORARY_FLAGS, 0o666), temporary
        except FileExistsError as cause:
            taken = cause
        except (OSError, ValueError) as cause:  # ValueError: a zero byte in the path
            raise _io("create temporary", temporary, cause) from cause
    raise _io("create unique temporary", destination, taken) from taken


def _pieces(data: Content) -> list[memoryview]:
    """Every piece as bytes."""
    pieces = [data] if isinstance(data, (bytes, bytearray, memoryview)) else data
    return [memoryview(piece).cast("B") for piece in pieces]


def _fill(descriptor: int, temporary: str, pieces: list[memoryview]) -> None:
    """Write everything, force it to the disk and close, whatever happens."""
    try:
        try:
            for piece in pieces:
                written = 0
                while written < len(piece):
                    step = os.write(descriptor, piece[written:])
                    if step == 0:
                        raise OSError(f"wrote {written} of {len(piece)} bytes, then nothing more")
                    written += step
        except OSError as cause:
            raise _io("write temporary", temporary, cause) from cause
        try:
            os.fsync(descriptor)
        except OSError as cause:
            raise _io("synchronize temporary", temporary, cause) from cause
    except BaseException:
        with suppress(OSError):  # the earlier failure is the one to report
            os.close(descriptor)
        raise
    try:
        os.close(descriptor)
    except OSError as cause:
        raise _io("close temporary", temporary, cause) from cause


def synchronize_directory(parent: str) -> None:
    """Force the directory's new entry to the disk."""
    try:
        descriptor = os.open(parent, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as cause:
        raise _io("synchronize parent directory", parent, cause) from cause
