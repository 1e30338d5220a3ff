"""One AdamW update of many parameters: its numbers, its arrays, and what may stand in its way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from numpy.typing import NDArray

from llmcy import kernels
from llmcy.errors import AutodiffError, OptimizerError
from llmcy.optim.clip import ClipTransform
from llmcy.optim.config import AdamWConfig
from llmcy.optim.moments import Moments
from llmcy.tape import Tensor
from llmcy.tape.value import WriteLease

__all__ = ["MAX_COUNT", "NamedTensors", "Together", "Update", "checked_gradient", "write_leases"]

Array = NDArray[Any]
NamedTensors = Sequence[tuple[str, Tensor]]
MAX_COUNT = 2**64 - 1


class Update:
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
            checked_gradient(name, tensor, first_moment),
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
            checked_gradient(name, tensor, first_moment),
            first_moment,
            second_moment,
            weight_decay=self.weight_decay(name),
            **self.numbers,
        )


class Together:
    """A list of parameters with their moments, whose arrays have been checked."""

    __slots__ = ("_group", "_named", "_revisions", "moments", "values")

    def __init__(self, named: NamedTensors, moments: Moments, update: Update) -> None:
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

    def prepare(self, update: Update, largest_grad: float | None = None) -> bool:
        """Make sure that all can be updated; False if something is wrong with one parameter.

        ``largest_grad`` bounds the magnitudes of all gradients, where that is known.

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
            largest_grad=largest_grad,
            **update.numbers,
        )

    def commit(self) -> None:
        """Write all new values."""
        self._group.commit()


def checked_gradient(name: str, tensor: Tensor, first_moment: Array) -> Array:
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


def write_leases(named: NamedTensors) -> list[WriteLease]:
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
