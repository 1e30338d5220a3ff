"""Parameters and the layers that hold them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

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


class Module:
    """A layer: parameters and other layers as plain attributes.

    The stable order of parameters is the order in which the attributes were set.
    """

    def named_parameters(self) -> list[tuple[str, Parameter]]:
        """Path and node of every parameter in stable order: a new list of the very nodes in use."""
        return list(self._walk(""))

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
