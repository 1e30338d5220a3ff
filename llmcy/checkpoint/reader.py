"""Read header fields left to right, never past the header's end."""

from __future__ import annotations

import struct
from dataclasses import dataclass

from llmcy.checkpoint.layout import SIZE_MAX, SMALLEST_NAME, overflow
from llmcy.errors import CheckpointError

__all__ = ["FieldRead", "HeaderReader", "truncated"]

_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_F64 = struct.Struct("<d")


@dataclass(frozen=True, slots=True)
class FieldRead:
    """One field as it was read: where, how many bytes, called what, meaning what."""

    offset: int
    width: int
    name: str
    value: int | float | str | bytes


def truncated(context: str) -> CheckpointError:
    """The error for bytes that end inside a field."""
    return CheckpointError("Truncated", f"the bytes end inside {context}", context=context)


class HeaderReader:
    """A cursor over ``data[position:end]``.

    Parameters
    ----------
    data
        The whole file.
    position, end
        The part that may be read.
    log
        Receives every field read, for the byte audit; nothing is kept without it.
    """

    __slots__ = ("_data", "_end", "_log", "position")

    def __init__(
        self, data: memoryview, position: int, end: int, log: list[FieldRead] | None = None
    ) -> None:
        self._data = data
        self.position = position
        self._end = end
        self._log = log

    @property
    def bytes_left(self) -> int:
        """Bytes between the cursor and the end."""
        return self._end - self.position

    def _take(self, width: int, context: str) -> memoryview:
        if width > self.bytes_left:
            raise truncated(context)
        start = self.position
        self.position += width
        return self._data[start : self.position]

    def _number(self, form: struct.Struct, context: str) -> int | float:
        value: int | float = form.unpack(self._take(form.size, context))[0]
        self._note(form.size, context, value)
        return value

    def _note(self, width: int, name: str, value: int | float | str | bytes) -> None:
        if self._log is not None:
            self._log.append(FieldRead(self.position - width, width, name, value))

    def u8(self, context: str) -> int:
        """One byte."""
        value = self._take(1, context)[0]
        self._note(1, context, value)
        return value

    def u16(self, context: str) -> int:
        """Two bytes, little-endian."""
        return int(self._number(_U16, context))

    def u32(self, context: str) -> int:
        """Four bytes, little-endian."""
        return int(self._number(_U32, context))

    def u64(self, context: str) -> int:
        """Eight bytes, little-endian."""
        return int(self._number(_U64, context))

    def size(self, context: str) -> int:
        """Eight bytes that must also fit the process's size type."""
        value = self.u64(context)
        if value > SIZE_MAX:
            raise overflow(context)
        return value

    def f64(self, context: str) -> float:
        """The eight bytes of a binary64 value."""
        return float(self._number(_F64, context))

    def count(self, context: str, smallest_entry: int) -> int:
        """A ``u32`` number of entries, each of which takes at least ``smallest_entry`` bytes.

        Raises
        ------
        CheckpointError
            ``Allocation`` when the bytes left cannot hold that many, whatever follows.
        """
        value = self.u32(context)
        if value > self.bytes_left // smallest_entry:
            raise CheckpointError(
                "Allocation",
                f"{context} {value} promises more entries than {self.bytes_left} bytes can hold",
                context=context,
            )
        return value

    def text(self, context: str) -> str:
        """A ``u32`` byte count and that many bytes of strict UTF-8."""
        length = self.u32(f"{context} length")
        raw = bytes(self._take(length, context))
        try:
            value = raw.decode("utf-8")
        except UnicodeDecodeError as cause:
            raise CheckpointError(
                "InvalidUtf8", f"{context} is not UTF-8: {cause}", cause=cause, context=context
            ) from cause
        self._note(length, context, value)
        return value

    def names(self, context: str) -> list[str]:
        """A ``u32`` count and that many texts."""
        count = self.count(f"{context} count", SMALLEST_NAME)
        return [self.text(f"{context} name") for _ in range(count)]
