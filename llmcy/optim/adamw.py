"""AdamW: every update is prepared completely before any of it is written."""

from __future__ import annotations

from collections.abc import Iterable

from llmcy.errors import DTypeError, OptimizerError, ShapeError
from llmcy.kernels import BlockSums
from llmcy.optim.clip import ClipTransform, GradientClip, clip_grad_norm
from llmcy.optim.config import AdamWConfig
from llmcy.optim.groups import ParameterGroups, byte_sorted
from llmcy.optim.moments import Moments
from llmcy.optim.state import AdamWState, OptimizerSnapshot, check_groups_cover
from llmcy.optim.trace import AdamWParameterTrace, AdamWTrace
from llmcy.optim.update import (
    MAX_COUNT,
    NamedTensors,
    Together,
    Update,
    checked_gradient,
    write_leases,
)
from llmcy.tape import Tensor
from llmcy.tape.value import lock_for_writing, unlock_written

__all__ = ["AdamW"]


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
        self._together: Together | None = None

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

    def step_clipped(
        self,
        named_parameters: Iterable[tuple[str, Tensor]],
        max_norm: float,
        *,
        learning_rate: float | None = None,
        sums: BlockSums | None = None,
    ) -> GradientClip:
        """Clip, then update: the bits of :func:`clip_grad_norm` followed by :meth:`step`.

        The norm also bounds every gradient, so that they need not be read once more before it is
        certain that no update overflows.

        Parameters
        ----------
        named_parameters
            Name and tensor of every parameter, in stable order.
        max_norm
            Ceiling of the norm of all gradients together; finite, > 0.
        learning_rate
            Rate of this step instead of the configured one.
        sums
            What is known of these gradients, unchanged since
            (:attr:`llmcy.recorded.RecordedStep.sums`).

        Returns
        -------
        GradientClip
            What clipping found and did.

        Raises
        ------
        OptimizerError
            As :func:`clip_grad_norm` and :meth:`step`.
        """
        named = list(named_parameters)
        clip = clip_grad_norm(named, max_norm, sums=sums)
        update = self._begin(named, learning_rate, clip.transform)
        self._finish(update, named, self._moments_for(named), clip.norm_before)
        return clip

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
                checked_gradient(name, tensor, moments.of(name)[0]).copy(),
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
    ) -> Update:
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
        return Update(
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

    def _finish(
        self,
        update: Update,
        named: NamedTensors,
        moments: Moments,
        largest_grad: float | None = None,
    ) -> None:
        """Prepare every parameter, acquire every value, write everything."""
        together = self._together
        if together is None or not together.fits(named, moments):
            for name, tensor in named:
                checked_gradient(name, tensor, moments.of(name)[0])
            together = Together(named, moments, update)
        try:
            ready = together.prepare(update, largest_grad)
        except (ShapeError, DTypeError):
            ready = False
        if not ready:
            for name, tensor in named:
                update.explain(name, tensor, moments)
            raise AssertionError("an update that cannot be made must have a reason")
        values = together.values
        while not lock_for_writing(values):
            for lease in write_leases(named):  # says why, unless a reader has just let go
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
