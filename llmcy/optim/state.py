"""What AdamW remembers between steps, as a value: validated, sorted by name, read-only."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from llmcy.errors import DTypeError, OptimizerStateError, RangeError
from llmcy.optim.config import AdamWConfig
from llmcy.optim.groups import ParameterGroups, byte_sorted

__all__ = ["AdamWState", "AdamWStateEntry", "OptimizerSnapshot", "check_groups_cover"]

MAX_SIZE = 2**64 - 1


class AdamWStateEntry:
    """Both moments of one parameter (torch calls them ``exp_avg`` and ``exp_avg_sq``).

    Parameters
    ----------
    name
        The parameter's name; any text but the empty one.
    shape
        The parameter's shape.
    first_moment, second_moment
        As many numbers as the shape holds, row-major, in any shape; float64 or float32.
    copy
        False takes the arrays over instead of copying them; the caller must not write to them
        afterwards.

    Raises
    ------
    OptimizerStateError
        The first of: ``EmptyParameterName``, ``ShapeOverflow``, ``ElementCountMismatch`` (first
        moment, then second), ``NonFiniteMoment`` (first, then second), ``NegativeSecondMoment``
        (-0.0 is accepted).
    DTypeError
        For moments that are not float64 or float32, or not both the same.
    """

    __slots__ = ("_first_moment", "_name", "_second_moment", "_shape")

    def __init__(
        self,
        name: str,
        shape: Sequence[int],
        first_moment: ArrayLike,
        second_moment: ArrayLike,
        *,
        copy: bool = True,
    ) -> None:
        if not name:
            raise OptimizerStateError(
                "EmptyParameterName", "AdamWStateEntry: the parameter's name must not be empty"
            )
        shape = tuple(int(size) for size in shape)
        count = _element_count(name, shape)
        first = _moment_array(name, "first_moment", first_moment, copy)
        second = _moment_array(name, "second_moment", second_moment, copy)
        if first.dtype != second.dtype:
            raise DTypeError(
                "UnsupportedDType",
                f"AdamWStateEntry {name!r}: second_moment must be {first.dtype} as first_moment, "
                f"got {second.dtype}",
                name="second_moment",
                expected=str(first.dtype),
                actual=str(second.dtype),
            )
        for moment, array in (("first", first), ("second", second)):
            if array.size != count:
                raise OptimizerStateError(
                    "ElementCountMismatch",
                    f"{moment} moment of {name!r} has {array.size} values, "
                    f"shape {shape} holds {count}",
                    name=name,
                    moment=moment,
                    expected=count,
                    actual=int(array.size),
                )
        for moment, array in (("first", first), ("second", second)):
            _check_finite(name, moment, array)
        _check_not_negative(name, second)
        self._name = name
        self._shape = shape
        self._first_moment = _read_only(first.reshape(shape))
        self._second_moment = _read_only(second.reshape(shape))

    @classmethod
    def lent(
        cls, name: str, first_moment: NDArray[Any], second_moment: NDArray[Any]
    ) -> AdamWStateEntry:
        """An entry over arrays that stay with an optimizer; nothing is copied or checked."""
        entry = cls.__new__(cls)
        entry._name = name
        entry._shape = first_moment.shape
        entry._first_moment = first_moment.view()
        entry._second_moment = second_moment.view()
        for view in (entry._first_moment, entry._second_moment):
            view.flags.writeable = False
        return entry

    @property
    def name(self) -> str:
        """The parameter's name."""
        return self._name

    @property
    def shape(self) -> tuple[int, ...]:
        """The parameter's shape."""
        return self._shape

    @property
    def first_moment(self) -> NDArray[Any]:
        """Running mean of the gradient, read-only."""
        return self._first_moment

    @property
    def second_moment(self) -> NDArray[Any]:
        """Running mean of the squared gradient, read-only."""
        return self._second_moment

    @property
    def dtype(self) -> np.dtype[Any]:
        """float64 or float32."""
        return self._first_moment.dtype

    def __repr__(self) -> str:
        return f"AdamWStateEntry({self._name!r}, shape={self._shape}, dtype={self.dtype})"


class AdamWState:
    """Step, accumulated beta powers and moments.

    Parameters
    ----------
    step
        Finished updates, 0 <= step < 2**64.
    beta1_power, beta2_power
        Running products of the betas, exactly 1.0 at step 0; they are stored, never recomputed.
    entries
        One per parameter after step 0, none at step 0; kept in byte order of their names.

    Raises
    ------
    OptimizerStateError
        The first of: ``InvalidBetaPower`` (beta1, then beta2), ``StatePresence``,
        ``DuplicateParameterName``.
    RangeError
        For a step that is no 64-bit count.
    """

    __slots__ = ("_beta1_power", "_beta2_power", "_entries", "_step")

    def __init__(
        self,
        step: int,
        beta1_power: float,
        beta2_power: float,
        entries: Iterable[AdamWStateEntry] = (),
    ) -> None:
        if (
            isinstance(step, bool)
            or not isinstance(step, (int, np.integer))
            or not (0 <= step <= MAX_SIZE)
        ):
            raise RangeError(
                "OutOfRange",
                f"AdamWState: step must be a whole number from 0 to 2**64 - 1, got {step!r}",
                name="step",
                value=step,
                expected="0 <= step < 2**64",
            )
        step = int(step)
        entries = list(entries)
        for name, power in (("beta1", float(beta1_power)), ("beta2", float(beta2_power))):
            valid = power == 1.0 if step == 0 else math.isfinite(power) and 0.0 <= power < 1.0
            if not valid:
                rule = "exactly 1.0 at step 0" if step == 0 else f"in [0, 1) at step {step}"
                raise OptimizerStateError(
                    "InvalidBetaPower",
                    f"AdamWState: the {name} power must be {rule}, got {power!r}",
                    name=name,
                    value=power,
                    step=step,
                )
        if (step == 0) != (not entries):
            raise OptimizerStateError(
                "StatePresence",
                f"AdamWState: step {step} with {len(entries)} moment entries; "
                "step 0 has none and every later step has some",
                step=step,
                entries=len(entries),
            )
        by_name: dict[str, AdamWStateEntry] = {}
        for entry in entries:
            if entry.name in by_name:
                raise OptimizerStateError(
                    "DuplicateParameterName",
                    f"AdamWState: two entries are named {entry.name!r}",
                    name=entry.name,
                )
            by_name[entry.name] = entry
        self._step = step
        self._beta1_power = float(beta1_power)
        self._beta2_power = float(beta2_power)
        self._entries = tuple(by_name[name] for name in byte_sorted(by_name))

    @classmethod
    def initial(cls) -> AdamWState:
        """The state before the first step."""
        return cls(0, 1.0, 1.0)

    @property
    def step(self) -> int:
        """Finished updates."""
        return self._step

    @property
    def beta1_power(self) -> float:
        """beta1 multiplied by itself once a step, each product rounded."""
        return self._beta1_power

    @property
    def beta2_power(self) -> float:
        """beta2 multiplied by itself once a step, each product rounded."""
        return self._beta2_power

    @property
    def entries(self) -> tuple[AdamWStateEntry, ...]:
        """Moments in byte order of the names."""
        return self._entries

    def names(self) -> tuple[str, ...]:
        """Names of the entries, in byte order."""
        return tuple(entry.name for entry in self._entries)

    def entry(self, name: str) -> AdamWStateEntry | None:
        """The entry of this name, or nothing."""
        return next((entry for entry in self._entries if entry.name == name), None)

    def moment_arrays(self) -> list[NDArray[Any]]:
        """First and second moment of every entry in order; the order of fingerprints and files."""
        return [
            array for entry in self._entries for array in (entry.first_moment, entry.second_moment)
        ]

    def equal_bits(self, other: AdamWState) -> bool:
        """True when step, powers, names, shapes and every bit of the moments are the same."""
        return (
            self._step == other._step
            and _same_float(self._beta1_power, other._beta1_power)
            and _same_float(self._beta2_power, other._beta2_power)
            and len(self._entries) == len(other._entries)
            and all(
                a.name == b.name
                and a.shape == b.shape
                and a.dtype == b.dtype
                and a.first_moment.tobytes() == b.first_moment.tobytes()
                and a.second_moment.tobytes() == b.second_moment.tobytes()
                for a, b in zip(self._entries, other._entries, strict=True)
            )
        )

    def __repr__(self) -> str:
        return f"AdamWState(step={self._step}, entries={len(self._entries)})"


class OptimizerSnapshot:
    """Everything needed to rebuild an AdamW: settings, groups and state, all read-only.

    Parameters
    ----------
    config, groups, state
        Of the optimizer; ``groups`` is None when every parameter decays.

    Raises
    ------
    OptimizerStateError
        ``ParameterGroupsMismatch`` when there are groups and moments and their names differ.
    """

    __slots__ = ("_config", "_groups", "_state")

    def __init__(
        self, config: AdamWConfig, groups: ParameterGroups | None, state: AdamWState
    ) -> None:
        check_groups_cover(groups, state)
        self._config = config
        self._groups = groups
        self._state = state

    @property
    def config(self) -> AdamWConfig:
        """The optimizer's own settings (its base rate, not a scheduled one)."""
        return self._config

    @property
    def groups(self) -> ParameterGroups | None:
        """The decay groups, if any."""
        return self._groups

    @property
    def state(self) -> AdamWState:
        """Step, powers and moments."""
        return self._state

    @property
    def step(self) -> int:
        """Finished updates."""
        return self._state.step

    def __repr__(self) -> str:
        return f"OptimizerSnapshot({self._config!r}, {self._state!r})"


def check_groups_cover(groups: ParameterGroups | None, state: AdamWState) -> None:
    """After step 0 the groups, if any, must name exactly the parameters that have moments."""
    if groups is None or state.step == 0:
        return
    expected, actual = groups.names, state.names()
    if expected != actual:
        odd = byte_sorted(set(expected) ^ set(actual))[0]
        raise OptimizerStateError(
            "ParameterGroupsMismatch",
            f"groups name {len(expected)} parameters, moments {len(actual)}; "
            f"{odd!r} is in only one of them",
            expected=expected,
            actual=actual,
        )


# --------------------------------------------------------------------------- checks of one entry
def _element_count(name: str, shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
        if size < 0 or count > MAX_SIZE:
            raise OptimizerStateError(
                "ShapeOverflow",
                f"AdamWStateEntry {name!r}: shape {shape} has no 64-bit number of elements",
                name=name,
                shape=shape,
            )
    return count


def _moment_array(name: str, argument: str, values: ArrayLike, copy: bool) -> NDArray[Any]:
    array = np.asarray(values)
    if array.dtype not in (np.float64, np.float32):
        raise DTypeError(
            "UnsupportedDType",
            f"AdamWStateEntry {name!r}: {argument} must be float64 or float32, got {array.dtype}",
            name=argument,
            expected="float64 or float32",
            actual=str(array.dtype),
        )
    flat = np.ascontiguousarray(array, array.dtype.newbyteorder("=")).reshape(-1)
    return flat.copy() if copy else flat


def _check_finite(name: str, moment: str, array: NDArray[Any]) -> None:
    finite = np.isfinite(array)
    if not finite.all():
        index = int(np.argmin(finite))
        value = float(array[index])
        raise OptimizerStateError(
            "NonFiniteMoment",
            f"{moment} moment of {name!r} is {value!r} at index {index}",
            name=name,
            moment=moment,
            index=index,
            value=value,
        )


def _check_not_negative(name: str, second: NDArray[Any]) -> None:
    negative = second < 0.0
    if negative.any():
        index = int(np.argmax(negative))
        value = float(second[index])
        raise OptimizerStateError(
            "NegativeSecondMoment",
            f"second moment of {name!r} is {value!r} at index {index}",
            name=name,
            index=index,
            value=value,
        )


def _read_only(array: NDArray[Any]) -> NDArray[Any]:
    # the owner is frozen too: a view of a frozen owner cannot be made writeable again
    owner = array if array.base is None else array.base
    if isinstance(owner, np.ndarray):
        owner.flags.writeable = False
    view = array.view()
    view.flags.writeable = False
    return view


def _same_float(a: float, b: float) -> bool:
    return math.copysign(1.0, a) == math.copysign(1.0, b) and a == b
