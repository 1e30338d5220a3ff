"""The number storage of a tensor: one array, a revision number, and who is using it."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any

from numpy.typing import NDArray

from llmcy.errors import AutodiffError

__all__ = ["ReadLease", "Value", "WriteLease", "lock_for_writing", "unlock_written"]

Array = NDArray[Any]
WRITING = -1


class Value:
    """An array that several tensors may share, and its history.

    Attributes
    ----------
    array
        The C-contiguous numbers.  Kernels read it; only a :class:`WriteLease` may change it.
    revision
        How many times the numbers were replaced.
    leases
        Readers that hold the value still, or -1 while it is being written.
    computed
        Whether an operation made it; such a value never changes.
    """

    __slots__ = ("_view", "array", "computed", "leases", "revision")

    def __init__(self, array: Array, computed: bool) -> None:
        self.array = array
        self.computed = computed
        self.revision = 0
        self.leases = 0
        self._view: Array | None = None

    @property
    def view(self) -> Array:
        """A read-only view, made once."""
        if self._view is None:
            view = self.array.view()
            view.flags.writeable = False
            self._view = view
        return self._view


class ReadLease:
    """Holds a value still: as long as it lives the value cannot be written.

    A context manager that gives the read-only array; :meth:`release` ends it as well.
    """

    __slots__ = ("_value",)

    _value: Value | None

    def __init__(self, value: Value) -> None:
        self._value = None
        if value.leases == WRITING:
            raise AutodiffError(
                "ValueBeingWritten", "a value cannot be borrowed while it is being written"
            )
        value.leases += 1
        self._value = value

    @property
    def revision(self) -> int:
        """The revision that is being held."""
        return self._held().revision

    @property
    def data(self) -> Array:
        """The values, read-only."""
        return self._held().view

    def _held(self) -> Value:
        if self._value is None:
            raise AutodiffError("LeaseReleased", "this read lease has been released")
        return self._value

    def release(self) -> None:
        """End the lease; ending it twice is fine."""
        value, self._value = self._value, None
        if value is not None:
            value.leases -= 1

    def __enter__(self) -> Array:
        return self.data

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


class WriteLease:
    """Exclusive access to a value, for replacing its numbers in place.

    A context manager.  The revision grows by one if :attr:`array` was asked for: taking the lease
    of many values first and writing later leaves no trace when one of them is refused.
    """

    __slots__ = ("_touched", "_value")

    _value: Value | None

    def __init__(self, value: Value) -> None:
        self._value = None
        self._touched = False
        if value.computed:
            raise AutodiffError("NotALeaf", "the result of an operation cannot be written")
        if value.leases:
            borrows = max(value.leases, 0)
            who = f"{borrows} read lease(s)" if borrows else "another write lease"
            raise AutodiffError(
                "ParameterValueBorrowed", f"the value is held by {who}", borrows=borrows
            )
        value.leases = WRITING
        self._value = value

    @property
    def array(self) -> Array:
        """The writable numbers."""
        if self._value is None:
            raise AutodiffError("LeaseReleased", "this write lease has been released")
        self._touched = True
        return self._value.array

    def release(self) -> None:
        """End the lease; ending it twice is fine."""
        value, self._value = self._value, None
        if value is not None:
            value.leases = 0
            value.revision += self._touched

    def __enter__(self) -> WriteLease:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


def lock_for_writing(values: Sequence[Value]) -> bool:
    """Exclusive access to all of these values, or to none of them."""
    for index, value in enumerate(values):
        if value.computed or value.leases:
            for locked in values[:index]:
                locked.leases = 0
            return False
        value.leases = WRITING
    return True


def unlock_written(values: Sequence[Value]) -> None:
    """End :func:`lock_for_writing`; every revision grows by one."""
    for value in values:
        value.leases = 0
        value.revision += 1
