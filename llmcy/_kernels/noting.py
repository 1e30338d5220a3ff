"""Noting which compiled functions a thread calls, while they work as always."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from llmcy._kernels import KernelSet, active, front

__all__ = ["noting"]

Note = Callable[[Callable[..., Any], tuple[Any, ...], Any], object]

_one_at_a_time = threading.Lock()


class _NotingModule:
    """A compiled module whose functions report every call of one thread."""

    def __init__(self, module: ModuleType, note: Note, thread: int) -> None:
        self._module = module
        self._note = note
        self._thread = thread

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._module, name)
        if not callable(function):
            return function
        note, thread = self._note, self._thread

        def noted(*arguments: Any) -> Any:
            result = function(*arguments)
            if threading.get_ident() == thread:
                note(function, arguments, result)
            return result

        setattr(self, name, noted)
        return noted


class _NotingSet:
    """A kernel set of such modules."""

    def __init__(self, kernels: KernelSet, note: Note, thread: int) -> None:
        self._kernels = kernels
        self._arguments = note, thread

    def __getattr__(self, name: str) -> _NotingModule:
        module = _NotingModule(getattr(self._kernels, name), *self._arguments)
        setattr(self, name, module)
        return module


@contextmanager
def noting(note: Note) -> Iterator[bool]:
    """Report the compiled calls of this thread to ``note(function, arguments, result)``.

    Gives False, and reports nothing, while another thread is being listened to.
    """
    if not _one_at_a_time.acquire(blocking=False):
        yield False
        return
    try:
        before = active.f64, active.f32
        thread = threading.get_ident()
        sets = tuple(_NotingSet(kernels, note, thread) for kernels in before)
        active.f64, active.f32 = sets
        front.close(True)
        try:
            yield True
        finally:
            front.close(False)
            # unless another instruction set was chosen meanwhile
            if (active.f64, active.f32) == sets:
                active.f64, active.f32 = before
    finally:
        _one_at_a_time.release()
