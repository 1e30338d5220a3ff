"""The AdamW update of one parameter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from llmcy import _check as check
from llmcy._kernels import for_dtype
from llmcy._kernels.arrays import any_overlap, first_unlike
from llmcy._kernels.memory import empty
from llmcy._threads import resolve_threads

__all__ = [
    "ADAMW_STAGES",
    "AdamWGroup",
    "AdamWUpdate",
    "NonFiniteStage",
    "adamw_stages",
    "adamw_update",
]

Array = NDArray[Any]

ADAMW_STAGES = (
    "effective_gradient",
    "first_moment",
    "squared_gradient",
    "second_moment",
    "corrected_first_moment",
    "corrected_second_moment",
    "direction",
    "step",
    "weight_decay",
    "parameter",
)
"""The lines of the update in their order, by name."""


@dataclass(frozen=True, slots=True)
class NonFiniteStage:
    """The first line of an update that is NaN or infinite."""

    index: int
    """Flat index of the element."""
    stage: str
    """One of ``ADAMW_STAGES``."""
    value: float


class AdamWUpdate(NamedTuple):
    """What :func:`adamw_update` prepared; good only if ``problem`` is None."""

    param: Array
    first_moment: Array
    second_moment: Array
    problem: NonFiniteStage | None


def _checked(param: Array, grad: Array, first_moment: Array, second_moment: Array) -> None:
    check.float_array("param", param)
    check.like("grad", grad, param.dtype, param.shape)
    check.like("first_moment", first_moment, param.dtype, param.shape)
    check.like("second_moment", second_moment, param.dtype, param.shape)


def _numbers(**numbers: float) -> tuple[float, ...]:
    values = tuple(numbers.values())
    if set(map(type, values)) == {float}:
        return values
    return tuple(check.real_number(name, value) for name, value in numbers.items())


def adamw_update(
    param: Array,
    grad: Array,
    first_moment: Array,
    second_moment: Array,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    correction1: float,
    correction2: float,
    divisor: float = 1.0,
    multiplier: float = 1.0,
    out: tuple[Array, Array, Array] | None = None,
    n_threads: int | None = None,
) -> AdamWUpdate:
    """New values of one parameter and its moments; the old ones are left as they are.

    ::

        g  = (grad / divisor) * multiplier
        m' = beta1*m + (1 - beta1)*g
        v' = beta2*v + (1 - beta2)*(g*g)
        p' = (p - lr * ((m'/correction1) / (sqrt(v'/correction2) + eps))) - (lr*weight_decay)*p

    Parameters
    ----------
    param, grad, first_moment, second_moment
        Arrays of one shape and dtype, float32 or float64, C-contiguous.
    lr, beta1, beta2, eps, weight_decay
        The settings of AdamW; their ranges are the optimizer's business.
    correction1, correction2
        ``1 - beta1**t`` and ``1 - beta2**t``, from running products.
    divisor, multiplier
        Clipping: (1, 1) leaves the gradient's bits alone, (1, u) scales it by u, and other pairs
        normalise it.
    out
        Arrays for the three results, apart from the arguments and from each other.
    n_threads
        Threads to use; no result depends on it.

    Returns
    -------
    AdamWUpdate
        With ``problem`` telling the first element and line that is not finite, if there is one.

    Raises
    ------
    ShapeError, DTypeError, RangeError
        When an argument cannot be used.

    Notes
    -----
    Loshchilov and Hutter, "Decoupled weight decay regularization" (2019), in the order of the
    numerics contract, section 10. float32 elements are computed in binary64 and rounded once.
    """
    _checked(param, grad, first_moment, second_moment)
    numbers = _numbers(
        lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay,
        correction1=correction1, correction2=correction2, divisor=divisor, multiplier=multiplier,
    )  # fmt: skip
    dtype, shape = param.dtype, param.shape
    if out is None:
        out = (empty(shape, dtype), empty(shape, dtype), empty(shape, dtype))
    else:
        reads = [
            ("param", param), ("grad", grad),
            ("first_moment", first_moment), ("second_moment", second_moment),
        ]  # fmt: skip
        for index, array in enumerate(out):
            check.updated(f"out[{index}]", array, dtype, shape, reads)
            reads.append((f"out[{index}]", array))
    found = for_dtype(dtype).adamw.adamw_update(
        param, grad, first_moment, second_moment, *numbers, *out, resolve_threads(n_threads)
    )
    return AdamWUpdate(*out, None if found is None else NonFiniteStage(*found))


class AdamWGroup:
    """Parameters that are updated together: their arrays are checked once, not at every step.

    Parameters
    ----------
    params
        The parameters, C-contiguous and writable, float32 or float64, all of one dtype.
    first_moments, second_moments
        Their moments, likewise.
    weight_decays
        The decay of each.

    Notes
    -----
    :meth:`prepare` makes sure that every line of every element will be finite, :meth:`commit`
    writes the new values: nothing has changed when one of them would not be.  Nearly always the
    largest magnitudes are enough to be sure, and no other memory is needed; else all new values are
    computed into arrays of their own first.  Each update's magnitudes bound the next one's.
    """

    __slots__ = ("_arrays", "_bounded", "_bounds", "_dtype", "_job", "_next", "_weight_decays")

    _next: tuple[tuple[Array, ...], ...] | None

    def __init__(
        self,
        params: Sequence[Array],
        first_moments: Sequence[Array],
        second_moments: Sequence[Array],
        weight_decays: Sequence[float],
    ) -> None:
        arrays = tuple(params), tuple(first_moments), tuple(second_moments)
        self._weight_decays = tuple(
            check.real_number("weight_decay", decay) for decay in weight_decays
        )
        if not arrays[0]:
            check.fail_range("params", params, "at least one array")
        check.float_array("params[0]", arrays[0][0])
        self._dtype = arrays[0][0].dtype
        for name, group in zip(("params", "first_moments", "second_moments"), arrays, strict=True):
            for index, (x, param) in enumerate(zip(group, arrays[0], strict=True)):
                check.updated(f"{name}[{index}]", x, self._dtype, param.shape)
        self._arrays = arrays
        self._job: tuple[Any, ...] | None = None
        self._next = None
        self._bounds = np.empty((len(arrays[0]), 3))
        self._bounded = False  # do the bounds hold for what the last commit left?

    def prepare(
        self,
        grads: Sequence[Array],
        *,
        lr: float,
        beta1: float,
        beta2: float,
        eps: float,
        correction1: float,
        correction2: float,
        divisor: float = 1.0,
        multiplier: float = 1.0,
        unchanged: bool = False,
        largest_grad: float | None = None,
        n_threads: int | None = None,
    ) -> bool:
        """Get ready for a step with one gradient a parameter; numbers as :func:`adamw_update`.

        ``unchanged`` says that parameters and moments are as the last :meth:`commit` left them,
        which spares reading them.  ``largest_grad`` is a number that no gradient's magnitude
        exceeds, where one is known; it spares reading the gradients.

        Returns
        -------
        bool
            False if some line is not finite; :func:`adamw_update` of each parameter tells which.
        """
        params, firsts, seconds = self._arrays
        grads = tuple(grads)
        index = first_unlike(grads, params)
        if index >= 0:
            check.like(f"grads[{index}]", grads[index], self._dtype, params[index].shape)
        kernels = for_dtype(self._dtype).adamw
        n_threads = resolve_threads(n_threads)
        job = (
            params, grads, firsts, seconds, self._weight_decays,
            lr, beta1, beta2, eps, correction1, correction2, divisor, multiplier,
        )  # fmt: skip
        self._job = job
        self._next = None
        known, self._bounded = unchanged and self._bounded, False
        bound = -1.0 if largest_grad is None else check.real_number("largest_grad", largest_grad)
        if not any_overlap(grads, params):
            # bounds that have grown too wide are measured anew
            for trusted in (True, False) if known else (False,):
                if kernels.adamw_is_bounded(*job, self._bounds, trusted, bound, n_threads):
                    return True
        self._next = tuple(
            tuple(empty(param.shape, self._dtype) for param in params) for _ in range(3)
        )
        finite: bool = kernels.adamw_update_all(*job, *self._next, False, n_threads)
        return finite

    def commit(self, n_threads: int | None = None) -> None:
        """Write what was prepared; only after :meth:`prepare` said that it is finite."""
        kernels = for_dtype(self._dtype)
        n_threads = resolve_threads(n_threads)
        if self._next is None:
            assert self._job is not None
            kernels.adamw.adamw_update_all(*self._job, *self._arrays, True, n_threads)
            self._bounded = True
        else:
            for current, prepared in zip(self._arrays, self._next, strict=True):
                kernels.elementwise.copy_all(current, prepared, n_threads)
        self._job = self._next = None


def adamw_stages(
    param: Array,
    grad: Array,
    first_moment: Array,
    second_moment: Array,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    correction1: float,
    correction2: float,
    divisor: float = 1.0,
    multiplier: float = 1.0,
) -> dict[str, Array]:
    """Every line of :func:`adamw_update` for every element, by the names of ``ADAMW_STAGES``.

    The arrays are float64 and have the shape of ``param``. For float32 arguments they are the
    values before the final rounding.
    """
    _checked(param, grad, first_moment, second_moment)
    numbers = _numbers(
        lr=lr, beta1=beta1, beta2=beta2, eps=eps, weight_decay=weight_decay,
        correction1=correction1, correction2=correction2, divisor=divisor, multiplier=multiplier,
    )  # fmt: skip
    lines = np.empty((len(ADAMW_STAGES), *param.shape), np.float64)
    for_dtype(param.dtype).adamw.adamw_stages(
        param, grad, first_moment, second_moment, *numbers, lines
    )
    return dict(zip(ADAMW_STAGES, lines, strict=True))
