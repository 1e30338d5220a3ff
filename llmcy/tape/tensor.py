"""Tensors: numbers, their gradient, and the operation they came from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmcy import kernels
from llmcy.errors import AutodiffError, DTypeError, ShapeError
from llmcy.tape.recording import is_recording
from llmcy.tape.value import ReadLease, Value, WriteLease

if TYPE_CHECKING:
    from llmcy.tape.backward import BackwardPass, CarriedGradients

__all__ = ["Node", "Tensor", "check_finite", "record"]

Array = NDArray[Any]
Rule = Callable[["Node", Array, "BackwardPass"], None]

_FLOATS = (np.dtype(np.float64), np.dtype(np.float32))


class _Zeros:
    """A gradient of +0 everywhere that nobody has looked at yet."""

    __slots__ = ()


ZEROS = _Zeros()


class Node:
    """One recorded operation.

    Attributes
    ----------
    op
        Its name, for messages.
    inputs
        The operands, left to right.
    revisions
        The revision of each operand's value when the operation ran.
    rule
        ``rule(node, d_out, contributions)`` hands each operand its contribution.
    saved
        What else the rule needs.
    released
        Whether a backward pass has consumed the node.
    """

    __slots__ = ("inputs", "op", "released", "revisions", "rule", "saved")

    def __init__(
        self, op: str, inputs: tuple[Tensor, ...], rule: Rule, saved: tuple[Any, ...]
    ) -> None:
        self.op = op
        self.inputs = inputs
        self.revisions = [tensor._value.revision for tensor in inputs]
        self.rule = rule
        self.saved = saved
        self.released = False

    def release(self) -> None:
        """Forget operands and saved values."""
        self.inputs = ()
        self.saved = ()
        self.released = True


class Tensor:
    """An array of numbers that operations of :mod:`llmcy.ops` take and return.

    Parameters
    ----------
    data
        float64 or float32 array, which is copied, or numbers and sequences of numbers, which
        become float64.
    requires_grad
        Whether backward passes give this tensor a gradient.
    copy
        ``False`` lets the tensor keep ``data`` itself, which must then be a C-contiguous writable
        array that its owner hands over.

    Raises
    ------
    DTypeError
        For arrays of another type.
    AutodiffError
        ``NonFiniteLeaf`` with flat index and value of the first NaN or infinity.
    """

    __slots__ = ("__weakref__", "_grad", "_node", "_requires_grad", "_value")

    _value: Value
    _node: Node | None
    _requires_grad: bool
    _grad: Array | _Zeros | None

    def __init__(
        self, data: ArrayLike, requires_grad: bool = False, *, copy: bool = True
    ) -> None:
        self._value = Value(_leaf_array(data, copy), computed=False)
        self._node = None
        self._requires_grad = bool(requires_grad)
        self._grad = None

    # ------------------------------------------------------------------ what it is
    @property
    def data(self) -> Array:
        """The numbers, read-only."""
        return self._value.view

    @property
    def shape(self) -> tuple[int, ...]:
        return self._value.array.shape

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._value.array.dtype

    @property
    def ndim(self) -> int:
        return self._value.array.ndim

    @property
    def size(self) -> int:
        return self._value.array.size

    @property
    def requires_grad(self) -> bool:
        return self._requires_grad

    @property
    def is_leaf(self) -> bool:
        """True unless a recorded operation made this tensor."""
        return self._node is None

    @property
    def op(self) -> str | None:
        """Name of the recorded operation that made this tensor, if one did."""
        return None if self._node is None else self._node.op

    @property
    def revision(self) -> int:
        """How many times the numbers were replaced."""
        return self._value.revision

    def item(self) -> float:
        """The only number of a tensor of size 1."""
        if self.size != 1:
            raise ShapeError(
                "ShapeMismatch",
                f"item: the tensor must have one element, got shape {self.shape}",
                name="item",
                expected="one element",
                actual=self.shape,
            )
        return float(self._value.array.reshape(-1)[0])

    def __repr__(self) -> str:
        made = f", op={self.op!r}" if self._node is not None else ""
        grad = ", requires_grad=True" if self._requires_grad and not made else ""
        return f"Tensor(shape={self.shape}, dtype={self.dtype}{grad}{made})"

    # ------------------------------------------------------------------ gradients
    @property
    def grad(self) -> Array | None:
        """The accumulated gradient, or None before there is one.

        A backward pass puts a new array here; it does not write into the one it finds.
        """
        if isinstance(self._grad, _Zeros):
            self._grad = kernels.zeros(self.shape, self.dtype)
        return self._grad

    @grad.setter
    def grad(self, array: Array | None) -> None:
        if array is not None:
            _check_like("grad", array, self._value.array)
            array = np.asarray(array, order="C")
        self._grad = array

    @property
    def grad_is_zero(self) -> bool:
        """Is there a gradient with every bit zero?  Unlike ``grad`` this never makes the array."""
        if self._grad is None or isinstance(self._grad, _Zeros):
            return self._grad is not None
        return not self._grad.reshape(-1).view(np.uint8).any()

    def zero_grad(self) -> None:
        """Set the gradient to +0 everywhere."""
        self._grad = ZEROS

    def backward(
        self,
        seed: ArrayLike | None = None,
        retain_graph: bool = False,
        *,
        carry: CarriedGradients | None = None,
    ) -> None:
        """Add the gradient of this tensor to every leaf that requires one.

        Parameters
        ----------
        seed
            The adjoint of this tensor, of its shape; 1.0 when it has one element.
        retain_graph
            Keep the recorded operations for another pass; otherwise they are released.
        carry
            Leave leaf gradients in these accumulators instead, for a batch that comes in
            consecutive pieces (numerics contract, micro-batches).

        Raises
        ------
        AutodiffError
            ``NotRecorded``, ``NonScalarBackward``, ``SeedShapeMismatch``, ``GraphReleased``,
            ``ValueRevisionChanged``, ``NonFiniteGradient``.  No gradient has then changed.

        Notes
        -----
        Contributions arrive in the order of the numerics contract, section 8: operations are
        numbered by a depth-first walk from this tensor, operands left to right, an operation
        after its operands; they are processed from the highest number down.
        """
        from llmcy.tape.backward import run_backward

        run_backward(self, seed, retain_graph, carry)

    def detach(self) -> Tensor:
        """A tensor with the same numbers, not a copy, that is a constant to later operations."""
        return _make(self._value, None, False)

    # ------------------------------------------------------------------ access to the numbers
    def borrow(self) -> ReadLease:
        """Hold the numbers still until the lease is released.

        Raises
        ------
        AutodiffError
            ``ValueBeingWritten``.
        """
        return ReadLease(self._value)

    def write(self) -> WriteLease:
        """Exclusive access for replacing the numbers in place; the revision grows by one.

        Raises
        ------
        AutodiffError
            ``NotALeaf`` for the result of an operation, ``ParameterValueBorrowed`` while the
            value is borrowed.
        """
        return WriteLease(self._value)

    def assign(self, data: Array) -> None:
        """Replace the numbers by a copy of ``data``.

        Raises
        ------
        ShapeError, DTypeError
            When ``data`` does not have this shape and dtype.
        AutodiffError
            ``NonFiniteLeaf``, and as :meth:`write`.
        """
        _check_like("data", data, self._value.array)
        data = np.asarray(data, order="C")
        _check_leaf_finite(data)
        with self.write() as lease:
            lease.array[...] = data


def _make(value: Value, node: Node | None, requires_grad: bool) -> Tensor:
    tensor = Tensor.__new__(Tensor)
    tensor._value = value
    tensor._node = node
    tensor._requires_grad = requires_grad
    tensor._grad = None
    return tensor


# ---------------------------------------------------------------------- recording
def record(
    op: str,
    out: Array,
    inputs: tuple[Tensor, ...],
    rule: Rule,
    saved: Sequence[Any] = (),
    *,
    checked: bool = False,
) -> Tensor:
    """Make the result of an operation, with the operation attached if it is to be recorded.

    Parameters
    ----------
    op
        Name for messages.
    out
        The result: a new C-contiguous array that nobody else changes.
    inputs
        Operands, left to right; the order decides the order in which gradients arrive.
    rule
        Hands each operand its contribution; see :class:`llmcy.tape.backward.BackwardPass`.
    saved
        What the rule needs besides the operands.
    checked
        The result is finite because it only holds numbers of its operands.

    Raises
    ------
    AutodiffError
        ``NonFiniteValue`` with the operation, flat index and value.
    """
    if not checked:
        check_finite(op, out)
    for tensor in inputs:
        if tensor._requires_grad:
            if is_recording():
                return _make(Value(out, True), Node(op, inputs, rule, tuple(saved)), True)
            break
    return _make(Value(out, True), None, False)


def check_finite(op: str, array: Array, kind: str = "NonFiniteValue") -> None:
    """Refuse an array with a NaN or an infinity, naming the operation and the first place."""
    index = kernels.first_non_finite(array)
    if index >= 0:
        fail_non_finite(op, index, float(array.reshape(-1)[index]), kind)


def fail_non_finite(
    op: str, index: int, value: float, kind: str = "NonFiniteValue"
) -> NoReturn:
    """Raise what :func:`check_finite` does."""
    what = "its result" if kind == "NonFiniteValue" else "a gradient"
    raise AutodiffError(
        kind, f"{op}: {what} is {value} at flat index {index}", op=op, index=index, value=value
    )


# ---------------------------------------------------------------------- checks of leaves
def _leaf_array(data: ArrayLike, copy: bool) -> Array:
    if isinstance(data, np.ndarray):
        if data.dtype not in _FLOATS:
            raise DTypeError(
                "UnsupportedDType",
                f"data must have dtype float64 or float32, got {data.dtype}",
                name="data",
                expected="float64 or float32",
                actual=data.dtype.name,
            )
        if copy:
            array = kernels.empty(data.shape, data.dtype)  # starts at a cache line
            array[...] = data
        elif not data.flags.c_contiguous:
            raise DTypeError("NotContiguous", "data must be C-contiguous", name="data")
        elif not data.flags.writeable:
            raise DTypeError("ReadOnly", "data must be writable to be handed over", name="data")
        else:
            array = data
    else:
        array = np.array(data, np.float64, order="C")
    _check_leaf_finite(array)
    return array


def _check_leaf_finite(array: Array) -> None:
    index = kernels.first_non_finite(array)
    if index >= 0:
        value = float(array.reshape(-1)[index])
        raise AutodiffError(
            "NonFiniteLeaf", f"data is {value} at flat index {index}", index=index, value=value
        )


def _check_like(name: str, array: object, like: Array) -> None:
    if not isinstance(array, np.ndarray):
        raise DTypeError(
            "NotAnArray",
            f"{name} must be an array, got {type(array).__name__}",
            name=name,
            actual=type(array).__name__,
        )
    if array.dtype != like.dtype:
        raise DTypeError(
            "UnsupportedDType",
            f"{name} must have dtype {like.dtype}, got {array.dtype}",
            name=name,
            expected=like.dtype.name,
            actual=array.dtype.name,
        )
    if array.shape != like.shape:
        raise ShapeError(
            "ShapeMismatch",
            f"{name} must have shape {like.shape}, got {array.shape}",
            name=name,
            expected=like.shape,
            actual=array.shape,
        )
