"""Snapshots: the values of a model, and the sealed result of a training run.

A snapshot holds numbers and names only: no graph, no gradients, no live parameter.  Its arrays
are read-only.  Python cannot lock a door for good; what it can do is offer no public way in, and
these classes offer none.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from llmcy.checksum import fingerprint
from llmcy.config import ModelConfig
from llmcy.errors import AutodiffError, LlmcyError, TrainerError, trainer_errors
from llmcy.model import Decoder
from llmcy.optim.state import OptimizerSnapshot

__all__ = ["DecoderModelState", "OptimizerSnapshot", "SelectedTrainingState"]


class DecoderModelState:
    """The configuration and every parameter of a decoder, as read-only copies in stable order.

    Make one with :meth:`snapshot` from a live model, or with :meth:`from_named_arrays`.
    """

    __slots__ = ("_arrays", "_config", "_names", "_sealed")

    _arrays: tuple[NDArray[Any], ...] | None
    _config: ModelConfig
    _names: tuple[str, ...]
    _sealed: bool

    def __init__(self) -> None:
        raise TrainerError(
            "SealedState", "use DecoderModelState.snapshot(model) or .from_named_arrays(...)"
        )

    @classmethod
    def _adopt(
        cls, config: ModelConfig, named: Iterable[tuple[str, NDArray[Any]]]
    ) -> DecoderModelState:
        """Take over arrays that nobody else writes to; nothing is checked."""
        named = list(named)
        state = cls.__new__(cls)
        state._config = config
        state._names = tuple(name for name, _ in named)
        for _, array in named:
            array.flags.writeable = False
        state._arrays = tuple(array for _, array in named)
        state._sealed = False
        return state

    @classmethod
    def snapshot(cls, model: Decoder) -> DecoderModelState:
        """Copy the values of ``model``; later changes of the model do not reach the copy."""
        return cls._adopt(
            model.config,
            [(name, np.array(p.data, order="C")) for name, p in model.named_parameters()],
        )

    @classmethod
    def from_named_arrays(
        cls,
        config: ModelConfig,
        named: Iterable[tuple[str, NDArray[Any]]],
        *,
        copy: bool = True,
    ) -> DecoderModelState:
        """A state from arrays that came from elsewhere, for example from a file.

        Parameters
        ----------
        config
            The model's configuration.
        named
            Name and values of every parameter, in stable order.  Whether they make a decoder is
            checked when one is built from them.
        copy
            False takes over those arrays that own their memory, are C-contiguous and have the
            model's dtype; the caller must not write to them afterwards.

        Raises
        ------
        TrainerError
            ``Autodiff`` when a value is not finite.
        """
        dtype = np.dtype(config.dtype)
        arrays = []
        for name, values in named:
            array = np.ascontiguousarray(values, dtype)
            if copy or not array.flags.owndata:  # what is not owned cannot be frozen or moved
                array = array.copy()
            finite = np.isfinite(array)
            if not finite.all():
                index = int(np.argmin(finite))
                value = float(array.reshape(-1)[index])
                cause = AutodiffError(
                    "NonFiniteLeaf",
                    f"parameter {name!r} is {value!r} at index {index}",
                    index=index,
                    value=value,
                )
                raise TrainerError("Autodiff", str(cause), cause=cause)
            arrays.append((name, array))
        return cls._adopt(config, arrays)

    # ------------------------------------------------------------------ looking
    @property
    def config(self) -> ModelConfig:
        """The model's configuration."""
        return self._config

    @property
    def consumed(self) -> bool:
        """True once :meth:`into_model` has moved the values out."""
        return self._arrays is None

    def parameter_names(self) -> tuple[str, ...]:
        """Names in stable order."""
        return self._names

    def named_arrays(self) -> tuple[tuple[str, NDArray[Any]], ...]:
        """Name and read-only values of every parameter, in stable order; nothing is copied."""
        views = [array.view() for array in self._held()]  # a view of a frozen array stays frozen
        return tuple(zip(self._names, views, strict=True))

    def scalar_count(self) -> int:
        """Number of scalars over all parameters."""
        return sum(math.prod(array.shape) for array in self._held())

    def bit_pattern(self) -> NDArray[Any]:
        """The bits of every scalar in stable order, as uint64 (uint32 for a float32 model)."""
        kind = np.uint64 if self._config.dtype == "float64" else np.uint32
        return np.concatenate([array.reshape(-1).view(kind) for array in self._held()])

    def fingerprint(self) -> str:
        """``fnv1a64:`` label over the little-endian bits of every scalar in stable order."""
        return fingerprint(self._held())

    def equal_bits(self, other: DecoderModelState) -> bool:
        """True when configuration, names, shapes and every bit are the same."""
        return (
            self._config == other._config
            and self._names == other._names
            and all(
                a.shape == b.shape and a.tobytes() == b.tobytes()
                for a, b in zip(self._held(), other._held(), strict=True)
            )
        )

    # ------------------------------------------------------------------ copying and moving out
    def independent_snapshot(self) -> DecoderModelState:
        """A copy that shares no memory with this state."""
        return self._adopt(
            self._config, [(name, array.copy()) for name, array in self.named_arrays()]
        )

    def restore_independent_model(self) -> Decoder:
        """A new decoder with copies of the values; the state stays as it is, also on failure.

        Raises
        ------
        TrainerError
            ``Model``, ``Initialization``, ``Autodiff`` or ``Tensor`` with the reason as ``cause``;
            ``StateConsumed`` after :meth:`into_model`.
        """
        return self._build(copy=True)

    def into_model(self) -> Decoder:
        """Move the values into a new decoder without copying; the state is empty afterwards.

        Raises
        ------
        TrainerError
            As :meth:`restore_independent_model`; after a failure the state still has its values.
            ``SealedState`` when a :class:`SelectedTrainingState` holds this state.
        """
        if self._sealed:
            raise TrainerError(
                "SealedState",
                "the selected state keeps its values; use restore_independent_model() or "
                "independent_snapshot().into_model()",
            )
        model = self._build(copy=False)
        self._arrays = None
        return model

    def _build(self, *, copy: bool) -> Decoder:
        arrays = self._held()
        try:
            if not copy:
                for array in arrays:
                    array.flags.writeable = True
            with trainer_errors("restoring a model"):
                named = zip(self._names, arrays, strict=True)
                return Decoder.from_parameters(self._config, named, copy=copy)
        except LlmcyError:
            for array in arrays:
                array.flags.writeable = False
            raise

    def _held(self) -> tuple[NDArray[Any], ...]:
        if self._arrays is None:
            raise TrainerError(
                "StateConsumed", "this model state was moved into a model by into_model()"
            )
        return self._arrays

    def __repr__(self) -> str:
        held = "consumed" if self._arrays is None else f"{self.scalar_count()} scalars"
        return f"DecoderModelState({len(self._names)} parameters, {held})"


_ISSUER = object()


class SelectedTrainingState:
    """The model and optimizer of the selected step, as :func:`llmcy.trainer.train_decoder` left it.

    Only the trainer issues one: model, optimizer and step belong together, and nothing in the
    public interface makes one from loose parts or changes one.
    """

    __slots__ = ("_model", "_optimizer", "_step")

    _model: DecoderModelState
    _optimizer: OptimizerSnapshot
    _step: int

    def __init__(
        self,
        issuer: object = None,
        step: int | None = None,
        model: DecoderModelState | None = None,
        optimizer: OptimizerSnapshot | None = None,
    ) -> None:
        if issuer is not _ISSUER or step is None or model is None or optimizer is None:
            raise TrainerError(
                "SealedState", "SelectedTrainingState is issued by train_decoder and cannot be made"
            )
        model._sealed = True
        object.__setattr__(self, "_step", step)
        object.__setattr__(self, "_model", model)
        object.__setattr__(self, "_optimizer", optimizer)

    @property
    def step(self) -> int:
        """The selected step."""
        return self._step

    @property
    def model(self) -> DecoderModelState:
        """Values of the model at that step; they can be copied out, not moved out."""
        return self._model

    @property
    def optimizer(self) -> OptimizerSnapshot:
        """The optimizer at that step."""
        return self._optimizer

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise TrainerError("SealedState", f"SelectedTrainingState.{name} cannot be assigned")

    def __delattr__(self, name: str) -> NoReturn:
        raise TrainerError("SealedState", f"SelectedTrainingState.{name} cannot be deleted")

    def __init_subclass__(cls) -> NoReturn:
        raise TypeError("SelectedTrainingState cannot be subclassed")

    def __reduce__(self) -> NoReturn:
        raise TypeError("SelectedTrainingState cannot be pickled or copied; save a checkpoint")

    def __repr__(self) -> str:
        return f"SelectedTrainingState(step={self._step}, {self._model!r})"


def _issue_selected_state(
    step: int, model: DecoderModelState, optimizer: OptimizerSnapshot
) -> SelectedTrainingState:
    """For the trainer only."""
    return SelectedTrainingState(_ISSUER, step, model, optimizer)
