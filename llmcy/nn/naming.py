"""What may be a parameter's name."""

from __future__ import annotations

from llmcy.errors import InitializationError

__all__ = ["check_parameter_name"]

_ALLOWED = frozenset(b"abcdefghijklmnopqrstuvwxyz0123456789_")


def check_parameter_name(name: str) -> None:
    """Check the grammar: segments of ``a-z``, ``0-9`` and ``_``, joined by single dots.

    Raises
    ------
    InitializationError
        ``EmptyName``; ``EmptyNameSegment`` with the segment's index; ``InvalidNameCharacter`` with
        the position and value of the byte (names are counted in UTF-8 bytes).
    """
    if not name:
        raise InitializationError("EmptyName", "a parameter's name must not be empty")
    position = 0
    for index, segment in enumerate(name.encode("utf-8", "surrogatepass").split(b".")):
        if not segment:
            raise InitializationError(
                "EmptyNameSegment",
                f"parameter name {name!r} has nothing between its dots at segment {index}",
                index=index,
            )
        for offset, byte in enumerate(segment):
            if byte not in _ALLOWED:
                raise InitializationError(
                    "InvalidNameCharacter",
                    f"parameter name {name!r} has byte 0x{byte:02x} at {position + offset}; "
                    "only a-z, 0-9, _ and dots are allowed",
                    index=position + offset,
                    byte=byte,
                )
        position += len(segment) + 1
