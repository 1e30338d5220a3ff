"""Parameters and the layers that hold them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from weakref import WeakKeyDictionary

from numpy.typing import NDArray

from llmcy.errors import AutodiffError, InitializationError
from llmcy.nn.naming import check_parameter_name
from llmcy.tape.tensor import ZEROS, Tensor

__all__ = ["Module", "Parameter"]


class Parameter(Tensor):
    """A named leaf that training changes; its gradient starts at +0.

    Parameters
    ----------
    name
        Name in files and messages: the path of attributes from the model to the parameter.
    data
        float64 or float32 array.
    copy
        ``False`` hands the array over instead of copying it.

    Raises
    ------
    InitializationError
        The name's grammar, or ``Autodiff`` wrapping ``NonFiniteLeaf``.
    """

    __slots__ = ("name",)

    name: str

    def __init__(self, name: str, data: NDArray[Any], *, copy: bool = True) -> None:
        check_parameter_name(name)
        try:
            super().__init__(data, requires_grad=True, copy=copy)
        except AutodiffError as error:
            raise InitializationError("Autodiff", f"{name}: {error}", cause=error) from error
        self.name = name
        self._grad = ZEROS

    def __repr__(self) -> str:
        return f"Parameter({self.name!r}, shape={self.shape}, dtype={self.dtype})"


class Wiring:
    """Every attribute of a module and its layers at one time.

    Attributes
    ----------
    named
        Path and node of every parameter in stable order.
    """

    __slots__ = ("_attributes", "_checked_at", "named")

    def __init__(self, module: Module) -> None:
        self._checked_at = _changes.count
        self.named = tuple(module._walk(""))
        self._attributes = [
            (vars(layer), tuple(vars(layer)), tuple(vars(layer).values()))
            for layer in module._layers()
        ]
        if any(isinstance(v, list) for _, _, values in self._attributes for v in values):
            self._attributes = []  # a list can change and stay the same object

    def holds(self) -> bool:
        """Is everything still the same?  Looks at every attribute."""
        unnamed = self._checked_at == _changes.count  # a name cannot change unnoticed
        return bool(self._attributes) and all(
            tuple(held.values()) == values and (unnamed or tuple(held) == names)
            for held, names, values in self._attributes
        )

    def _holds(self) -> bool:
        """The same, without looking as long as no module anywhere has changed."""
        if self._checked_at == _changes.count:
            return bool(self._attributes)
        count = _changes.count
        if not self.holds():
            return False
        self._checked_at = count
        return True


class _Changes:
    """How many attributes of modules have been set or deleted."""

    count = 0


_changes = _Changes()
_wirings: WeakKeyDictionary[Module, Wiring] = WeakKeyDictionary()


class Module:
    """A layer: parameters and other layers as plain attributes.

    The stable order of parameters is the order in which the attributes were set.
    """

    def __setattr__(self, name: str, value: object) -> None:
        _changes.count += 1
        super().__setattr__(name, value)

    def __delattr__(self, name: str) -> None:
        _changes.count += 1
        super().__delattr__(name)

    def named_parameters(self) -> list[tuple[str, Parameter]]:
        """Path and node of every parameter in stable order: a new list of the very nodes in use."""
        return list(self.wiring().named)

    def wiring(self) -> Wiring:
        """How this module is put together now; the same object as long as nothing changes."""
        wiring = _wirings.get(self)
        if wiring is None or not wiring._holds():
            wiring = _wirings[self] = Wiring(self)
        return wiring

    def _layers(self) -> Iterator[Module]:
        yield self
        for value in vars(self).values():
            for item in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(item, Module):
                    yield from item._layers()

    def _walk(self, prefix: str) -> Iterator[tuple[str, Parameter]]:
        for name, value in vars(self).items():
            if isinstance(value, Parameter):
                yield prefix + name, value
            elif isinstance(value, Module):
                yield from value._walk(f"{prefix}{name}.")
            elif isinstance(value, (list, tuple)):
                for index, item in enumerate(value):
                    if isinstance(item, Module):
                        yield from item._walk(f"{prefix}{name}.{index}.")

    def zero_grad(self) -> None:
        """Set the gradient of every parameter to +0."""
        for _, parameter in self.named_parameters():
            parameter.zero_grad()
