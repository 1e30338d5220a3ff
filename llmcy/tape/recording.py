"""Whether operations are being recorded, and how to switch that off for a while."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from types import FrameType, TracebackType
from typing import Any, TypeVar, cast

__all__ = ["is_recording", "no_grad"]

F = TypeVar("F", bound=Callable[..., Any])

# How many scopes are open in this context, with the thread they were opened on.  A context variable
# keeps asyncio tasks apart; the thread's mark keeps threads apart even where a new thread inherits
# the context of the one that started it.
_depth: ContextVar[tuple[object, int] | None] = ContextVar("llmcy_no_grad_depth", default=None)
_thread = threading.local()

# Scopes opened by the code of a generator: they hold while that frame is on the stack.
_generator_scopes: dict[FrameType, int] = {}

_GENERATOR = inspect.CO_GENERATOR | inspect.CO_ASYNC_GENERATOR


def _thread_mark() -> object:
    try:
        return _thread.mark
    except AttributeError:
        _thread.mark = object()
        return _thread.mark


def _open_here() -> int:
    state = _depth.get()
    return state[1] if state is not None and state[0] is _thread_mark() else 0


def is_recording() -> bool:
    """Would an operation on tensors that require gradients be recorded now?"""
    if _depth.get() is not None and _open_here():
        return False
    if _generator_scopes:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            if frame in _generator_scopes:
                return False
            frame = frame.f_back
    return True


class no_grad:
    """A scope in which operations compute and check values but record nothing.

    Use it as ``with no_grad():`` or as the decorator ``@no_grad()`` on functions, generator
    functions and coroutine functions.

    Notes
    -----
    - Scopes nest; recording resumes when the outermost one ends, also by an exception.
    - A scope belongs to the thread and the asyncio task that opened it.  A task that is started
      inside the scope starts inside it.
    - A scope opened by the code of a generator ends at each ``yield`` and resumes with the
      generator, so that whoever iterates keeps recording.  A generator that
      ``contextlib.contextmanager`` made into a context manager is the exception: what follows its
      ``yield`` is the body of the caller's ``with``.
    - Values do not change: the same kernels run, with the same checks for NaN and infinity.
    """

    __slots__ = ("_entered",)

    def __init__(self) -> None:
        self._entered: list[FrameType | None] = []

    def __enter__(self) -> None:
        frame = sys._getframe(1)
        if frame.f_code.co_flags & _GENERATOR and not _is_context_manager(frame):
            _generator_scopes[frame] = _generator_scopes.get(frame, 0) + 1
            self._entered.append(frame)
        else:
            _depth.set((_thread_mark(), _open_here() + 1))
            self._entered.append(None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        frame = self._entered.pop()
        if frame is not None:
            left = _generator_scopes.pop(frame) - 1
            if left:
                _generator_scopes[frame] = left
            return
        # counting down, not restoring a remembered value: scopes may end in another order
        left = _open_here() - 1
        _depth.set((_thread_mark(), left) if left > 0 else None)

    def __call__(self, function: F) -> F:
        """Run every call of ``function`` inside a scope of its own."""
        if inspect.isasyncgenfunction(function):
            raise TypeError("no_grad: put the with statement inside an asynchronous generator")
        wrapper: Callable[..., Any]
        if inspect.iscoroutinefunction(function):

            async def wrapper(*args: Any, **kwargs: Any) -> Any:
                with no_grad():
                    return await function(*args, **kwargs)

        elif inspect.isgeneratorfunction(function):

            def wrapper(*args: Any, **kwargs: Any) -> Any:
                with no_grad():
                    return (yield from function(*args, **kwargs))

        else:

            def wrapper(*args: Any, **kwargs: Any) -> Any:
                with no_grad():
                    return function(*args, **kwargs)

        return cast("F", functools.wraps(function)(wrapper))


def _is_context_manager(frame: FrameType) -> bool:
    """Is this generator being driven by ``contextlib``?"""
    driver = frame.f_back
    return driver is not None and driver.f_code.co_filename == contextlib.__file__
