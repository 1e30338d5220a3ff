"""Calls to the operating system that can be recorded, made to fail, or made the last one.

The package looks every function up in :mod:`os` when it calls it, so replacing the attribute is
enough.  Calls are numbered from 0 over all functions together, in the order in which they are made.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

FUNCTIONS = (
    "open",
    "write",
    "pwrite",
    "ftruncate",
    "fsync",
    "close",
    "rename",
    "unlink",
    "mkdir",
)
Before = Callable[[int, str, tuple[Any, ...]], None]
After = Callable[[str, tuple[Any, ...], Any], None]


@contextmanager
def intercepted(before: Before, after: After | None = None) -> Iterator[None]:
    """Call ``before(number, function, arguments)`` ahead of every call, ``after`` behind it."""
    real = {name: getattr(os, name) for name in FUNCTIONS}
    made = 0

    def wrap(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            nonlocal made
            number, made = made, made + 1
            before(number, name, arguments)
            result = real[name](*arguments, **options)
            if after is not None:
                after(name, arguments, result)
            return result

        return call

    for name in FUNCTIONS:
        setattr(os, name, wrap(name))
    try:
        yield
    finally:
        for name in FUNCTIONS:
            setattr(os, name, real[name])


@contextmanager
def counted() -> Iterator[list[str]]:
    """The names of all calls made inside the block."""
    calls: list[str] = []
    with intercepted(lambda number, name, arguments: calls.append(name)):
        yield calls


@contextmanager
def killed_at(nth: int) -> Iterator[None]:
    """The process dies in place of the ``nth`` call; of a write, half reaches the file."""
    write, pwrite = os.write, os.pwrite

    def before(number: int, name: str, arguments: tuple[Any, ...]) -> None:
        if number != nth:
            return
        if name == "write":
            write(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
        if name == "pwrite":
            pwrite(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2], arguments[2])
        os.kill(os.getpid(), signal.SIGKILL)

    with intercepted(before):
        yield


@contextmanager
def failing_at(nth: int, code: int = errno.EIO) -> Iterator[list[str]]:
    """The ``nth`` call raises; the list holds its name once that has happened.

    A descriptor is closed even when closing it reports a failure, as Linux does.
    """
    failed: list[str] = []
    close = os.close

    def before(number: int, name: str, arguments: tuple[Any, ...]) -> None:
        if number == nth:
            failed.append(name)
            if name == "close":
                close(arguments[0])
            raise OSError(code, os.strerror(code))

    with intercepted(before):
        yield failed


@contextmanager
def failing_from(first: int, code: int = errno.EIO) -> Iterator[None]:
    """Every call from the ``first`` on raises: the disk is gone."""
    close = os.close

    def before(number: int, name: str, arguments: tuple[Any, ...]) -> None:
        if number >= first:
            if name == "close":
                close(arguments[0])
            raise OSError(code, os.strerror(code))

    with intercepted(before):
        yield


def started_child(task: Callable[[], object]) -> int:
    """Run ``task`` in a forked process; its number.  An exception is printed: status 70."""
    sys.stdout.flush()
    sys.stderr.flush()
    with warnings.catch_warnings():
        # about threads: those of the kernels are started anew in the child
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        status = 70
        try:
            task()
            status = 0
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(status)
    return child


def in_child(task: Callable[[], object]) -> int:
    """Run ``task`` in a forked process; its exit status, or minus the signal that ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(started_child(task), 0)[1])
