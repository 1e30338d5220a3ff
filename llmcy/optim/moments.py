"""The running moments of all parameters, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from llmcy import kernels
from llmcy.optim.state import AdamWState, AdamWStateEntry
from llmcy.tape import Tensor

__all__ = ["Moments"]

Array = NDArray[Any]
NamedTensors = Sequence[tuple[str, Tensor]]


class Moments:
    """First and second moments, one pair a parameter, in the order of a list of parameters.

    Attributes
    ----------
    names
        Of the parameters.
    first, second
        Arrays of the parameters' shapes.
    """

    __slots__ = ("_index", "first", "names", "second")

    def __init__(
        self, names: Sequence[str], first: Sequence[Array], second: Sequence[Array]
    ) -> None:
        self.names = tuple(names)
        self.first = tuple(first)
        self.second = tuple(second)
        self._index = {name: index for index, name in enumerate(self.names)}

    @classmethod
    def zeros(cls, named: NamedTensors) -> Moments:
        """Where all moments start."""
        first, second = (
            [kernels.zeros(tensor.shape, tensor.dtype) for _, tensor in named] for _ in range(2)
        )
        return cls([name for name, _ in named], first, second)

    @classmethod
    def copied(cls, state: AdamWState) -> Moments:
        """Copies of the moments of a state."""
        return cls(
            state.names(),
            [kernels.copy(entry.first_moment) for entry in state.entries],
            [kernels.copy(entry.second_moment) for entry in state.entries],
        )

    def entries(self) -> list[AdamWStateEntry]:
        """Copies for a state."""
        return [
            AdamWStateEntry(name, first.shape, first.copy(), second.copy(), copy=False)
            for name, first, second in zip(self.names, self.first, self.second, strict=True)
        ]

    def lent(self) -> list[AdamWStateEntry]:
        """Entries over these arrays themselves."""
        return [
            AdamWStateEntry.lent(name, first, second)
            for name, first, second in zip(self.names, self.first, self.second, strict=True)
        ]

    def of(self, name: str) -> tuple[Array, Array]:
        """Both moments of a parameter."""
        index = self._index[name]
        return self.first[index], self.second[index]

    def like(self, named: NamedTensors) -> Moments:
        """The same arrays in the order of a list of the same names."""
        names = [name for name, _ in named]
        pairs = [self.of(name) for name in names]
        return Moments(names, [first for first, _ in pairs], [second for _, second in pairs])
