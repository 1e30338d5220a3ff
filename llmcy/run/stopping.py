"""Stopping on request: the first signal asks, the second one does not wait."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

__all__ = ["StopRequest"]


class StopRequest:
    """While entered, SIGINT and SIGTERM ask the run to stop after the step it is at.

    The second signal, of either kind, ends the process at once, as it would without this.  Signals
    can only be taken over on the main thread; elsewhere this does nothing.
    """

    def __init__(self) -> None:
        self._asked = False
        self._before: dict[int, Any] = {}

    def __call__(self) -> bool:
        """Has a signal asked?"""
        return self._asked

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._asked = True
