"""From a model's own numbers to the binary32 that other programs read, and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmcy.config import ModelConfig
from llmcy.errors import InteropError, TrainerError
from llmcy.state import DecoderModelState

__all__ = ["float32_parameters", "state_of"]


def float32_parameters(state: DecoderModelState) -> Iterator[tuple[str, NDArray[np.float32]]]:
    """Name and values of every parameter in stable order, each value rounded once to binary32.

    Rounding is to nearest, ties to even; a float32 model keeps its bits.

    Raises
    ------
    InteropError
        ``NotRepresentable`` for a value beyond binary32's range.
    """
    for name, array in state.named_arrays():
        with np.errstate(over="ignore"):
            rounded = array.astype(np.float32)
        if not np.isfinite(rounded).all():
            index = int(np.argmin(np.isfinite(rounded)))
            value = float(array.reshape(-1)[index])
            raise InteropError(
                "NotRepresentable",
                f"{name}: {value!r} at index {index} is beyond the range of float32",
                name=name,
                index=index,
                value=value,
            )
        yield name, rounded


def state_of(config: ModelConfig, named: dict[str, NDArray[Any]]) -> DecoderModelState:
    """A state from imported arrays of the model's dtype, which are taken over.

    Raises
    ------
    InteropError
        ``NonFinite`` for a value that is no number.
    """
    try:
        return DecoderModelState.from_named_arrays(config, named.items(), copy=False)
    except TrainerError as error:
        name = next(n for n, array in named.items() if not np.isfinite(array).all())
        index = int(np.argmin(np.isfinite(named[name])))
        value = float(named[name].reshape(-1)[index])
        raise InteropError(
            "NonFinite",
            f"{name} holds {value!r} at index {index}",
            cause=error,
            name=name,
            index=index,
            value=value,
        ) from error
