"""AdamW: every update is prepared completely before any of it is written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from llmcy import kernels
from llmcy.errors import AutodiffError, DTypeError, OptimizerError, ShapeError
from llmcy.optim.clip import ClipTransform
from llmcy.optim.config import AdamWConfig
from llmcy.optim.groups import ParameterGroups, byte_sorted
from llmcy.optim.moments import Moments
from llmcy.optim.state import AdamWState, OptimizerSnapshot, check_groups_cover
from llmcy.tape import Tensor
from llmcy.tape.value import WriteLease, lock_for_writing, unlock_written

__all__ = ["AdamW", "AdamWParameterTrace", "AdamWTrace"]

Array = NDArray[Any]
NamedTensors = Sequence[tuple[str, Tensor]]
MAX_COUNT = 2**64 - 1


@dataclass(frozen=True)
class AdamWParameterTrace:
    """One parameter's part of a traced step; all arrays have the parameter's shape.

    Attributes
    ----------
    name, weight_decay
        The parameter, and its decay: 0 outside the decay group.
    gradient, value_before
        Copies of what went in.
    stages
        Every line of the formula in float64, by the names of ``llmcy.kernels.ADAMW_STAGES``.
    value_after, first_moment, second_moment
        Copies of what came out.
    """

    name: str
    weight_decay: float
    gradient: Array
    value_before: Array
    stages: dict[str, Array]
    value_after: Array
    first_moment: Array
    second_moment: Array


@dataclass(frozen=True)
class AdamWTrace:
    """What a traced step used and did.

    Attributes
    ----------
    step
        The committed step number.
    learning_rate
        The rate of this step.
    correction1, correction2
        Bias corrections ``1 - beta**step`` by accumulated products.
    parameters
        One entry a parameter, in the order of the step's list.
    """

    step: int
    learning_rate: float
    correction1: float
    correction2: float
    parameters: tuple[AdamWParameterTrace, ...]


class AdamW:
    """AdamW with decoupled weight decay, as a transaction.

    For a coordinate p with gradient g, rate lr and running products b1, b2 of the betas::

        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * (g * g)
        a = lr * ((m / (1 - b1)) / (sqrt(v / (1 - b2)) + eps))
        p = (p - a) - (lr * weight_decay) * p

    every operation rounded on its own, in this grouping (numerics contract, section 10).
    Parameters outside the decay group use a weight decay of 0.  float32 parameters and moments are
    computed in float64 and rounded once.

    Parameters
    ----------
    config
        The five numbers.
    groups
        Which parameters decay; without groups all do.

    Notes
    -----
    A step that fails, for whatever reason, leaves parameters, moments and counters untouched.
    Parameters keep their identity: a step replaces the numbers inside each tensor and raises its
    revision by one.  Gradients are not cleared.
    """

    def __init__(self, config: AdamWConfig, groups: ParameterGroups | None = None) -> None:
        self._config = config
        self._groups = groups
        self._no_decay = frozenset(() if groups is None else groups.no_decay)
        self._step = 0
        self._beta1_power = 1.0
        self._beta2_power = 1.0
        self._moments: Moments | None = None
        self._checked_names: tuple[str, ...] | None = None
        self._together: _Together | None = None

    @classmethod
    def from_state(
        cls, config: AdamWConfig, groups: ParameterGroups | None, state: AdamWState
    ) -> AdamW:
        """An optimizer that continues from ``state``: moments are copied, nothing is recomputed.

        Raises
        ------
        OptimizerStateError
            ``ParameterGroupsMismatch``.
        """
        check_groups_cover(groups, state)
        optimizer = cls(config, groups)
        optimizer._step = state.step
        optimizer._beta1_power = state.beta1_power
        optimizer._beta2_power = state.beta2_power
        if state.entries:
            optimizer._moments = Moments.copied(state)
        return optimizer

    # ------------------------------------------------------------------ looking
    @property
    def config(self) -> AdamWConfig:
        """The optimizer's own settings; rates passed to a step never change them."""
        return self._config

    @property
    def groups(self) -> ParameterGroups | None:
        """The decay groups, if any."""
        return self._groups

    @property
    def step_count(self) -> int:
        """Finished updates."""
        return self._step

    def state(self) -> AdamWState:
        """A read-only copy of counters and moments."""
        entries = [] if self._moments is None else self._moments.entries()
        return AdamWState(self._step, self._beta1_power, self._beta2_power, entries)

    def snapshot(self) -> OptimizerSnapshot:
        """Settings, groups and a copy of the state."""
        return OptimizerSnapshot(self._config, self._groups, self.state())

    def lent_snapshot(self) -> OptimizerSnapshot:
        """As :meth:`snapshot`, but its moments are those of the optimizer: it is good until the
        next step, for whoever writes it to a file.
        """
        entries = [] if self._moments is None else self._moments.lent()
        state = AdamWState(self._step, self._beta1_power, self._beta2_power, entries)
        return OptimizerSnapshot(self._config, self._groups, state)

    def copy(self) -> AdamW:
        """An independent optimizer in the same state."""
        return self.from_state(self._config, self._groups, self.state())

    # ------------------------------------------------------------------ stepping
    def step(
        self,
        named_parameters: Iterable[tuple[str, Tensor]],
        *,
        learning_rate: float | None = None,
        scale: float | None = None,
        transform: ClipTransform | None = None,
    ) -> int:
        """Update every parameter from its gradient.

        Parameters
        ----------
        named_parameters
            Name and tensor of every parameter.
        learning_rate
            Rate of this step instead of the configured one.
        scale
            Factor in [0, 1] for every gradient; it does not touch weight decay.
        transform
            What clipping decided, instead of ``scale``.

        Returns
        -------
        int
            The number of the finished step, from 1.

        Raises
        ------
        OptimizerError
            The first of: the checks of :class:`AdamWConfig` with the rate of this step;
            ``InvalidGradientScale``, ``InvalidGradientNormalization``; ``EmptyParameterSet``,
            ``DuplicateParameterName``, ``ParameterSetChanged``, ``StepOverflow``; parameter by
            parameter ``MissingGradient``, ``GradientShapeMismatch``, ``ParameterShapeChanged``,
            ``NonFiniteArithmetic``, ``ParameterRevisionOverflow``; ``ParameterValueBorrowed``.
        """
        if transform is None:
            transform = ClipTransform.none() if scale is None else ClipTransform.uniform(scale)
        elif scale is not None:
            raise TypeError("AdamW.step: give scale or transform, not both")
        named = list(named_parameters)
        update = self._begin(named, learning_rate, transform)
        self._finish(update, named, self._moments_for(named))
        return self._step

    def step_traced(
        self,
        named_parameters: Iterable[tuple[str, Tensor]],
        *,
        learning_rate: float | None = None,
    ) -> AdamWTrace:
        """As :meth:`step`, returning what went in and what came out; the bits are the same."""
        named = list(named_parameters)
        update = self._begin(named, learning_rate, ClipTransform.none())
        moments = self._moments_for(named)
        taken = [
            (
                _checked_gradient(name, tensor, moments.of(name)[0]).copy(),
                tensor.data.copy(),
                update.stages(name, tensor, moments),
            )
            for name, tensor in named
        ]
        self._finish(update, named, moments)
        parameters = []
        for (name, tensor), (gradient, value, stages) in zip(named, taken, strict=True):
            first_moment, second_moment = self._moments_for(named).of(name)
            parameters.append(
                AdamWParameterTrace(
                    name,
                    update.weight_decay(name),
                    gradient,
                    value,
                    stages,
                    tensor.data.copy(),
                    first_moment.copy(),
                    second_moment.copy(),
                )
            )
        return AdamWTrace(
            self._step,
            update.learning_rate,
            update.correction1,
            update.correction2,
            tuple(parameters),
        )

    # ------------------------------------------------------------------ the transaction
    def _begin(
        self, named: NamedTensors, learning_rate: float | None, transform: ClipTransform
    ) -> _Update:
        """Everything that can be checked before arithmetic."""
        rate = self._config.learning_rate if learning_rate is None else learning_rate
        if learning_rate is not None and not self._config.allows_rate(learning_rate):
            rate = self._config.with_learning_rate(learning_rate).learning_rate  # says why not
        transform.check()
        if self._together is None or not self._together.lists(named):
            self._check_names(named)
        if self._step >= MAX_COUNT:
            raise OptimizerError(
                "StepOverflow", f"step {self._step} is the last one", step=self._step
            )
        moments = self._moments
        if (
            moments is not None
            and moments.names != self._checked_names
            and set(moments.names) != {name for name, _ in named}
        ):
            raise _set_changed("moments", moments.names, named)
        return _Update(
            self._config,
            rate,
            self._no_decay,
            transform,
            self._beta1_power * self._config.betas[0],
            self._beta2_power * self._config.betas[1],
        )

    def _check_names(self, named: NamedTensors) -> None:
        names = tuple(name for name, _ in named)
        if names == self._checked_names:
            return
        if not names:
            raise OptimizerError("EmptyParameterSet", "AdamW.step: there is no parameter")
        first_with: dict[str, int] = {}
        for index, name in enumerate(names):
            first = first_with.setdefault(name, index)
            if first != index:
                raise OptimizerError(
                    "DuplicateParameterName",
                    f"parameters {first} and {index} are both named {name!r}",
                    name=name,
                    first=first,
                    repeated=index,
                )
        if self._groups is not None and set(self._groups.names) != first_with.keys():
            raise _set_changed("groups", self._groups.names, named)
        self._checked_names = names

    def _moments_for(self, named: NamedTensors) -> Moments:
        """The moments, or the zeros they start from; not kept before a step succeeds."""
        return Moments.zeros(named) if self._moments is None else self._moments

    def _finish(self, update: _Update, named: NamedTensors, moments: Moments) -> None:
        """Prepare every parameter, acquire every value, write everything."""
        together = self._together
        if together is None or not together.fits(named, moments):
            for name, tensor in named:
                _checked_gradient(name, tensor, moments.of(name)[0])
            together = _Together(named, moments, update)
        try:
            ready = together.prepare(update)
        except (ShapeError, DTypeError):
            ready = False
        if not ready:
            for name, tensor in named:
                update.explain(name, tensor, moments)
            raise AssertionError("an update that cannot be made must have a reason")
        values = together.values
        while not lock_for_writing(values):
            for lease in _write_leases(named):  # says why, unless a reader has just let go
                lease.release()
        try:
            together.commit()  # cannot fail
        finally:
            unlock_written(values)
        self._together = together
        self._moments = together.moments
        self._step += 1
        self._beta1_power = update.beta1_power
        self._beta2_power = update.beta2_power


class _Together:
    """A list of parameters with their moments, whose arrays have been checked."""

    __slots__ = ("_group", "_named", "_revisions", "moments", "values")

    def __init__(self, named: NamedTensors, moments: Moments, update: _Update) -> None:
        self._named = list(named)
        self.moments = moments.like(named)
        self.values = [tensor._value for _, tensor in named]
        self._revisions: list[int] = []  # as the last update leaves the values
        self._group = kernels.AdamWGroup(
            [value.array for value in self.values],
            self.moments.first,
            self.moments.second,
            [update.weight_decay(name) for name, _ in named],
        )

    def lists(self, named: NamedTensors) -> bool:
        """Are these the same names and tensors, in the same order?"""
        return named == self._named  # a tensor equals itself alone

    def fits(self, named: NamedTensors, moments: Moments) -> bool:
        """Are these still the same parameters, values and moments?"""
        return (
            moments is self.moments
            and self.lists(named)
            and [tensor._value for _, tensor in named] == self.values
        )

    def prepare(self, update: _Update) -> bool:
        """Make sure that all can be updated; False if something is wrong with one parameter.

        Raises
        ------
        ShapeError, DTypeError
            For a gradient that is not like its parameter.
        """
        revisions = [value.revision for value in self.values]
        if max(revisions) >= MAX_COUNT:
            return False
        unchanged = revisions == self._revisions
        self._revisions = [revision + 1 for revision in revisions]
        return self._group.prepare(
            [tensor.grad for _, tensor in self._named],  # type: ignore[misc]
            unchanged=unchanged,
            **update.numbers,
        )

    def commit(self) -> None:
        """Write all new values."""
        self._group.commit()


class _Update:
    """The numbers of one step that all parameters share."""

    __slots__ = (
        "_no_decay",
        "_weight_decay",
        "beta1_power",
        "beta2_power",
        "correction1",
        "correction2",
        "learning_rate",
        "numbers",
    )

    def __init__(
        self,
        config: AdamWConfig,
        learning_rate: float,
        no_decay: frozenset[str],
        transform: ClipTransform,
        beta1_power: float,
        beta2_power: float,
    ) -> None:
        self.learning_rate = learning_rate
        self.beta1_power = beta1_power
        self.beta2_power = beta2_power
        self.correction1 = 1.0 - beta1_power
        self.correction2 = 1.0 - beta2_power
        self._weight_decay = config.weight_decay
        self._no_decay = no_decay
        divisor, multiplier = transform.as_pair()
        self.numbers: dict[str, Any] = {
            "lr": learning_rate,
            "beta1": config.betas[0],
            "beta2": config.betas[1],
            "eps": config.eps,
            "correction1": self.correction1,
            "correction2": self.correction2,
            "divisor": divisor,
            "multiplier": multiplier,
        }

    def weight_decay(self, name: str) -> float:
        """The parameter's weight decay."""
        return 0.0 if name in self._no_decay else self._weight_decay

    def explain(self, name: str, tensor: Tensor, moments: Moments) -> None:
        """Raise what stands in the way of updating this parameter, if anything does."""
        first_moment, second_moment = moments.of(name)
        result = kernels.adamw_update(
            tensor.data,
            _checked_gradient(name, tensor, first_moment),
            first_moment,
            second_moment,
            weight_decay=self.weight_decay(name),
            **self.numbers,
        )
        if result.problem is not None:
            found = result.problem
            raise OptimizerError(
                "NonFiniteArithmetic",
                f"updating {name!r}: {found.stage} is {found.value!r} at flat index {found.index}",
                name=name,
                index=found.index,
                stage=found.stage,
                value=found.value,
            )
        if tensor.revision >= MAX_COUNT:
            raise OptimizerError(
                "ParameterRevisionOverflow",
                f"parameter {name!r} has been written {tensor.revision} times, the last one",
                name=name,
            )

    def stages(self, name: str, tensor: Tensor, moments: Moments) -> dict[str, Array]:
        """Every line of the formula for a parameter."""
        first_moment, second_moment = moments.of(name)
        return kernels.adamw_stages(
            tensor.data,
            _checked_gradient(name, tensor, first_moment),
            first_moment,
            second_moment,
            weight_decay=self.weight_decay(name),
            **self.numbers,
        )


def _checked_gradient(name: str, tensor: Tensor, first_moment: Array) -> Array:
    gradient = tensor.grad
    if gradient is None:
        raise OptimizerError("MissingGradient", f"parameter {name!r} has no gradient", name=name)
    if gradient.shape != tensor.shape:
        raise OptimizerError(
            "GradientShapeMismatch",
            f"the gradient of {name!r} has shape {gradient.shape}, the parameter {tensor.shape}",
            name=name,
            expected=tensor.shape,
            actual=gradient.shape,
        )
    if first_moment.shape != tensor.shape:
        raise OptimizerError(
            "ParameterShapeChanged",
            f"parameter {name!r} has shape {tensor.shape}, its moments {first_moment.shape}",
            name=name,
            expected=first_moment.shape,
            actual=tensor.shape,
        )
    return gradient


def _write_leases(named: NamedTensors) -> list[WriteLease]:
    """Exclusive access to every value, or to none."""
    leases: list[WriteLease] = []
    for name, tensor in named:
        try:
            leases.append(tensor.write())
        except AutodiffError as error:
            for lease in leases:
                lease.release()
            raise OptimizerError(
                "ParameterValueBorrowed",
                f"parameter {name!r} cannot be written: {error}",
                cause=error,
                name=name,
            ) from error
    return leases


def _set_changed(what: str, known: Iterable[str], named: NamedTensors) -> OptimizerError:
    expected = tuple(byte_sorted(known))
    actual = tuple(byte_sorted(name for name, _ in named))
    odd = byte_sorted(set(expected) ^ set(actual))[0]
    return OptimizerError(
        "ParameterSetChanged",
        f"AdamW.step: {what} are for {len(expected)} parameters, the list has {len(actual)}; "
        f"{odd!r} is in only one of them",
        expected=expected,
        actual=actual,
    )
