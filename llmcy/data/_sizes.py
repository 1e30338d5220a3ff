"""Sizes come from people: refuse what is not a whole number before computing with it."""

from __future__ import annotations

import numpy as np

from llmcy.errors import DataError

__all__ = ["MAX_SIZE", "checked_size"]

MAX_SIZE = 2**64 - 1


def checked_size(name: str, value: int) -> int:
    """``value`` as a plain int, 0 <= value < 2**64.

    Raises
    ------
    DataError
        ``InvalidSize`` for anything else (a bool and a float are not sizes).
    """
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, np.integer))
        or not 0 <= value <= MAX_SIZE
    ):
        raise DataError(
            "InvalidSize",
            f"{name} must be a whole number from 0 to 2**64 - 1, got {value!r}",
            name=name,
            value=value,
        )
    return int(value)
