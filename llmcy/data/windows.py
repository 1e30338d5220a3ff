"""Causal windows: fixed-length pieces of one document, each predicting its own next tokens.

Window ``k`` of a document with tokens ``x`` starts at ``s = k * stride``:

    inputs  = x[s : s + T]
    targets = x[s + 1 : s + T + 1]

A window needs ``T + 1`` tokens.  What is left at the end of a document and cannot fill a window is
its incomplete tail; it is never padded and never joined to the next document.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from llmcy.data._sizes import MAX_SIZE, checked_size
from llmcy.errors import DataError

__all__ = ["CausalWindow", "CausalWindows", "IncompleteTail", "WindowConfig", "WindowIterator"]

TokenIds = NDArray[np.int64]


@dataclass(frozen=True)
class WindowConfig:
    """Length of a window and the distance between the starts of two.

    Parameters
    ----------
    context_length
        Input tokens in a window, T >= 1.
    stride
        Distance between starts, S >= 1; S = T visits each target once, S = 1 visits every start.

    Raises
    ------
    DataError
        ``InvalidSize``, ``ZeroContextLength``, ``ZeroStride`` or ``ContextLengthOverflow``.
    """

    context_length: int
    stride: int

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "context_length", checked_size("context_length", self.context_length)
        )
        object.__setattr__(self, "stride", checked_size("stride", self.stride))
        if self.context_length == 0:
            raise DataError("ZeroContextLength", "context_length must be at least 1, got 0")
        if self.stride == 0:
            raise DataError("ZeroStride", "stride must be at least 1, got 0")
        if self.context_length == MAX_SIZE:
            raise DataError(
                "ContextLengthOverflow",
                f"context_length {self.context_length} leaves no room for the target",
                context_length=self.context_length,
            )

    @property
    def required_tokens(self) -> int:
        """Tokens a document needs for one window, T + 1."""
        return self.context_length + 1

    def window_count(self, n_tokens: int) -> int:
        """Complete windows in a document of ``n_tokens`` tokens."""
        if n_tokens < self.required_tokens:
            return 0
        return (n_tokens - self.required_tokens) // self.stride + 1

    def tail_start(self, n_tokens: int) -> int | None:
        """Where the incomplete tail starts, or None when no token is left there."""
        start = self.window_count(n_tokens) * self.stride
        return start if start < n_tokens else None


@dataclass(frozen=True, eq=False)
class CausalWindow:
    """One window: where it starts, its inputs (T,) and its targets (T,), as read-only views."""

    start: int
    inputs: TokenIds
    targets: TokenIds


@dataclass(frozen=True, eq=False)
class IncompleteTail:
    """The last tokens of a document, too few for a window; they may overlap earlier windows."""

    start: int
    token_ids: TokenIds


def _read_only(token_ids: Sequence[int] | TokenIds) -> TokenIds:
    view = np.asarray(token_ids, np.int64).view()
    view.flags.writeable = False
    return view


class CausalWindows(Sequence[CausalWindow]):
    """The complete windows of one document, in order of their starts.

    Parameters
    ----------
    token_ids
        The document's tokens, (n,).
    config
        Window length and stride.
    """

    __slots__ = ("_token_ids", "config")

    def __init__(self, token_ids: Sequence[int] | TokenIds, config: WindowConfig) -> None:
        self._token_ids = _read_only(token_ids)
        self.config = config

    def __len__(self) -> int:
        return self.config.window_count(len(self._token_ids))

    @overload
    def __getitem__(self, index: int) -> CausalWindow: ...
    @overload
    def __getitem__(self, index: slice) -> list[CausalWindow]: ...
    def __getitem__(self, index: int | slice) -> CausalWindow | list[CausalWindow]:
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        k = range(len(self))[index]  # negative indices and IndexError as everywhere
        start = k * self.config.stride
        end = start + self.config.context_length
        return CausalWindow(start, self._token_ids[start:end], self._token_ids[start + 1 : end + 1])

    def __iter__(self) -> WindowIterator:
        return WindowIterator(self)

    @property
    def incomplete_tail(self) -> IncompleteTail | None:
        """What no window covers from the next start on, or None."""
        start = self.config.tail_start(len(self._token_ids))
        return None if start is None else IncompleteTail(start, self._token_ids[start:])


class WindowIterator(Iterator[CausalWindow]):
    """One pass over the windows; its length is what is left, and finished stays finished."""

    __slots__ = ("_next", "_windows")

    def __init__(self, windows: CausalWindows) -> None:
        self._windows = windows
        self._next = 0

    def __len__(self) -> int:
        return len(self._windows) - self._next

    def __next__(self) -> CausalWindow:
        if len(self) == 0:
            raise StopIteration
        window = self._windows[self._next]
        self._next += 1
        return window
