"""A file of JSON lines that grows by whole records and can be cut back to a step.

A line that could not be written stays in memory and is tried again with the next one, so that the
file always holds the first records without a gap.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from llmcy.errors import RunError

__all__ = ["RecordLog", "last_record_until"]

BLOCK = 1 << 16
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)


class RecordLog:
    """A log that is open for writing.

    Parameters
    ----------
    path
        The file; made when it does not exist.
    size
        Bytes to keep; what follows is cut off.

    Raises
    ------
    RunError
        ``Io`` naming the file.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self._size = size
        self._pending = bytearray()
        try:
            self._descriptor = os.open(path, _FLAGS, 0o666)
            try:
                os.ftruncate(self._descriptor, size)
            except BaseException:
                os.close(self._descriptor)
                raise
        except OSError as error:
            raise _io("open", path, error) from error

    def append(self, record: Mapping[str, Any]) -> None:
        """Add one line, after those that could not be written before.

        Raises
        ------
        RunError
            ``Io``; the line is kept for the next try, and no part of it is in the file.
        """
        line = json.dumps(record, ensure_ascii=True, allow_nan=False) + "\n"
        self._pending += line.encode("ascii")
        self._write_pending()

    def synchronize(self) -> None:
        """Force every line to the disk.

        Raises
        ------
        RunError
            ``Io``.
        """
        self._write_pending()
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise _io("synchronize", self.path, error) from error

    def close(self) -> None:
        """Close the file; lines that could not be written are lost."""
        with suppress(OSError):
            os.close(self._descriptor)

    def _write_pending(self) -> None:
        view = memoryview(bytes(self._pending))
        done = 0
        try:
            while done < len(view):
                done += os.pwrite(self._descriptor, view[done:], self._size + done)
        except OSError as error:
            with suppress(OSError):  # what is left of the line is cut off when the run continues
                os.ftruncate(self._descriptor, self._size)
            raise _io("append to", self.path, error) from error
        self._size += done
        self._pending.clear()


def last_record_until(path: Path, step: int) -> tuple[int, dict[str, Any] | None]:
    """Where the lines of steps up to ``step`` end, and the last of them.

    The file is read from its end, so the cost is that of the lines that follow.  Lines that are no
    records are passed over: a power failure may leave an unfinished line, and holes where lines had
    not reached the disk.  Whoever asks knows which record has to be there.

    Returns
    -------
    size, record
        Bytes up to and with that line, and its record; 0 and None when there is no such line.

    Raises
    ------
    RunError
        ``Io``.
    """
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            tail = b""  # bytes from `end` on that have not been looked at
            while True:
                cut = tail.rfind(b"\n", 0, max(0, len(tail) - 1)) + 1 if tail else 0
                if cut == 0 and end > 0:  # the last line may begin further ahead
                    start = max(0, end - BLOCK)
                    file.seek(start)
                    tail = file.read(end - start) + tail
                    end = start
                    continue
                if not tail:
                    return 0, None
                line, tail = tail[cut:], tail[:cut]
                record = _record(line)
                if record is not None and record["step"] <= step:
                    return end + cut + len(line), record
    except FileNotFoundError:
        return 0, None
    except OSError as error:
        raise _io("read", path, error) from error


def _record(line: bytes) -> dict[str, Any] | None:
    """The record in a whole line; None when it holds none."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or type(record.get("step")) is not int:
        return None
    return record


def _io(operation: str, path: Path, error: OSError) -> RunError:
    return RunError(
        "Io",
        f"cannot {operation} {str(path)!r}: {error.strerror or error}",
        cause=error,
        operation=operation,
        path=str(path),
    )
