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

    __slots__ = ("_attributes", "named")

    def __init__(self, module: Module) -> None:
        self.named = tuple(module._walk(""))
        self._attributes = [(vars(m), tuple(vars(m).values())) for m in module._layers()]
        if any(isinstance(v, list) for _, values in self._attributes for v in values):
            self._attributes = []  # a list can change and stay the same object

    def holds(self) -> bool:
        """Is everything still the same?"""
        attributes = self._attributes
        return bool(attributes) and all(tuple(held.values()) == v for held, v in attributes)


_wirings: WeakKeyDictionary[Module, Wiring] = WeakKeyDictionary()


class Module:
    """A layer: parameters and other layers as plain attributes.

    The stable order of parameters is the order in which the attributes were set.
    """

    def named_parameters(self) -> list[tuple[str, Parameter]]:
        """Path and node of every parameter in stable order: a new list of the very nodes in use."""
        return list(self.wiring().named)

    def wiring(self) -> Wiring:
        """How this module is put together now; the same object as long as nothing changes."""
        wiring = _wirings.get(self)
        if wiring is None or not wiring.holds():
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
