"""One printable character for every byte: the alphabet in which GPT-2 and its heirs write tokens.

Bytes that print in Latin-1 are their own character; the other 68 get the characters from U+0100
on, in ascending order.  ``tokenizer.json`` and GGUF files store byte-level tokens in it.
"""

from __future__ import annotations

__all__ = ["BYTE_OF_CHAR", "CHAR_OF_BYTE", "as_bytes", "as_text"]


def _alphabet() -> tuple[str, ...]:
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in printable else next(others)) for byte in range(256))


CHAR_OF_BYTE = _alphabet()
BYTE_OF_CHAR = {char: byte for byte, char in enumerate(CHAR_OF_BYTE)}


def as_text(data: bytes) -> str:
    """Bytes as characters of the alphabet."""
    return "".join(CHAR_OF_BYTE[byte] for byte in data)


def as_bytes(text: str) -> bytes | None:
    """Characters of the alphabet as bytes; None when one is not of it."""
    try:
        return bytes(BYTE_OF_CHAR[char] for char in text)
    except KeyError:
        return None
