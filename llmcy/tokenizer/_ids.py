"""Token ids as they come from callers, and strict text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmcy.errors import TokenizerError

__all__ = ["TokenIds", "as_text", "checked_count", "id_array", "require_known", "unknown_token"]

TokenIds = Sequence[int] | NDArray[np.integer[Any]]


def checked_count(name: str, value: int) -> int:
    """``value`` as a plain int >= 0; anything else is ``InvalidSize``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
        raise TokenizerError(
            "InvalidSize",
            f"{name} must be a whole number >= 0, got {value!r}",
            name=name,
            value=value,
        )
    return int(value)


def id_array(token_ids: TokenIds) -> NDArray[np.integer[Any]]:
    """A one-dimensional integer array of the ids, values not judged.

    Raises
    ------
    TokenizerError
        ``InvalidTokenIds`` when they are not whole numbers in one row.
    """
    ids = np.asarray(token_ids)
    if ids.shape == (0,):
        return np.empty(0, np.int64)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise TokenizerError(
            "InvalidTokenIds",
            f"token ids must be one row of whole numbers, got {ids.dtype} of shape {ids.shape}",
        )
    return ids


def require_known(ids: NDArray[np.integer[Any]], vocab_size: int, first_position: int = 0) -> None:
    """Refuse the first id outside the vocabulary with ``UnknownToken``."""
    outside = np.flatnonzero((ids < 0) | (ids >= vocab_size))
    if outside.size:
        at = int(outside[0])
        raise unknown_token(first_position + at, int(ids[at]), vocab_size)


def unknown_token(position: int, token_id: int, vocab_size: int) -> TokenizerError:
    return TokenizerError(
        "UnknownToken",
        f"token {token_id} at position {position} is outside the vocabulary of {vocab_size}",
        position=position,
        token_id=token_id,
    )


def as_text(data: bytes) -> str:
    """Strict UTF-8.

    Raises
    ------
    TokenizerError
        ``InvalidUtf8``: ``valid_up_to`` bytes are fine, the next ``error_len`` are not;
        ``error_len`` is None when the bytes end inside a character.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        cut_off = error.reason == "unexpected end of data"
        raise TokenizerError(
            "InvalidUtf8",
            f"bytes are not UTF-8 text: {error.reason} at byte {error.start}",
            cause=error,
            valid_up_to=error.start,
            error_len=None if cut_off else error.end - error.start,
        ) from error
