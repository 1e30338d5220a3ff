"""One norm over all gradients, and the factor that brings it under a ceiling.

The stored gradients are never changed: the factor travels into AdamW, which applies it to each
coordinate on the way in.  Nothing of the size of the model is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from llmcy import kernels
from llmcy.errors import NonFiniteError, OptimizerError
from llmcy.tape import Tensor

__all__ = ["ClipTransform", "GradientClip", "clip_grad_norm", "clip_to", "measure_grad_norm"]


@dataclass(frozen=True)
class ClipTransform:
    """What happens to a gradient coordinate g on its way into AdamW.

    Attributes
    ----------
    scale
        g becomes ``g * scale``; with exactly 1.0 it stays untouched.
    divisor, multiplier
        Where set, g becomes ``(g / divisor) * multiplier`` instead: the form for scales too small
        for float64.
    """

    scale: float = 1.0
    divisor: float | None = None
    multiplier: float | None = None

    @classmethod
    def none(cls) -> ClipTransform:
        """Leave gradients untouched."""
        return cls()

    @classmethod
    def uniform(cls, scale: float) -> ClipTransform:
        """Multiply by ``scale``, 0 <= scale <= 1."""
        return cls(scale)

    @classmethod
    def normalized(cls, divisor: float, multiplier: float) -> ClipTransform:
        """Divide by ``divisor``, then multiply by ``multiplier``, 0 < multiplier <= divisor."""
        return cls(1.0, divisor, multiplier)

    @property
    def is_identity(self) -> bool:
        """True when gradients stay untouched."""
        return self.divisor is None and self.multiplier is None and self.scale == 1.0

    def as_pair(self) -> tuple[float, float]:
        """(divisor, multiplier) of the equivalent ``(g / divisor) * multiplier``, bit for bit."""
        if self.divisor is None or self.multiplier is None:
            return 1.0, self.scale
        return self.divisor, self.multiplier

    def check(self) -> None:
        """Refuse numbers that could enlarge a gradient or lose it.

        Raises
        ------
        OptimizerError
            ``InvalidGradientScale`` or ``InvalidGradientNormalization``.
        """
        if not 0.0 <= self.scale <= 1.0:
            raise OptimizerError(
                "InvalidGradientScale",
                f"a gradient scale must be in [0, 1], got {self.scale!r}",
                value=self.scale,
            )
        if self.divisor is None and self.multiplier is None:
            return
        divisor = math.nan if self.divisor is None else self.divisor
        multiplier = math.nan if self.multiplier is None else self.multiplier
        if not (math.isfinite(divisor) and 0.0 < multiplier <= divisor):
            raise OptimizerError(
                "InvalidGradientNormalization",
                "a gradient normalization needs 0 < multiplier <= divisor, both finite, "
                f"got divisor {divisor!r}, multiplier {multiplier!r}",
                divisor=divisor,
                multiplier=multiplier,
            )


@dataclass(frozen=True)
class GradientClip:
    """The outcome of clipping.

    Attributes
    ----------
    norm_before
        Global norm of the gradients (the largest finite number if it overflows).
    norm_after
        The ceiling when clipped, else ``norm_before``.
    transform
        To be handed to :meth:`llmcy.optim.AdamW.step`.
    clipped
        True when the norm was above the ceiling.
    """

    norm_before: float
    norm_after: float
    transform: ClipTransform
    clipped: bool


def measure_grad_norm(
    named_parameters: Iterable[tuple[str, Tensor]], *, sums: kernels.BlockSums | None = None
) -> kernels.GradNorm:
    """Global norm over every coordinate of every gradient, tensors in the order given.

    ``sums`` is what is known of these gradients (:attr:`llmcy.recorded.RecordedStep.sums`), which
    must not have changed since; the bits are the same.

    Raises
    ------
    OptimizerError
        ``MissingGradient``; ``NonFiniteGradient`` with name, flat index and value of the first
        NaN or infinity.
    """
    names, gradients = [], []
    for name, parameter in named_parameters:
        gradient = parameter.grad
        if gradient is None:
            raise OptimizerError(
                "MissingGradient", f"parameter {name!r} has no gradient", name=name
            )
        names.append(name)
        gradients.append(gradient)
    try:
        return kernels.grad_norm(gradients, names=names, sums=sums)
    except NonFiniteError as error:
        raise OptimizerError(
            "NonFiniteGradient", f"the gradient of {error}", cause=error, **error.fields
        ) from error


def clip_to(norm: kernels.GradNorm, max_norm: float) -> GradientClip:
    """Decide whether a norm is above a ceiling, and how gradients get under it.

    float64 gradients: clipped when ``top > max_norm / root``, with the scale
    ``(max_norm / top) / root``; should that underflow to 0, the pair (divisor ``top``, multiplier
    ``max_norm / root``) (numerics contract, section 9).  float32 gradients: clipped when
    ``norm > max_norm``, with the scale ``max_norm / norm`` (contract for float32, rule 8).

    Raises
    ------
    OptimizerError
        ``InvalidMaximumGradientNorm``; ``UnrepresentableGradientClip`` when the multiplier of the
        pair underflows too.
    """
    if not math.isfinite(max_norm) or max_norm <= 0.0:
        raise OptimizerError(
            "InvalidMaximumGradientNorm",
            f"max_norm must be finite and > 0, got {max_norm!r}",
            value=max_norm,
        )
    if norm.top == 0.0:
        return GradientClip(0.0, 0.0, ClipTransform.none(), clipped=False)
    multiplier = max_norm / norm.root
    if norm.top <= multiplier:
        return GradientClip(norm.norm, norm.norm, ClipTransform.none(), clipped=False)
    if multiplier == 0.0:
        raise OptimizerError(
            "UnrepresentableGradientClip",
            f"clipping to {max_norm!r} needs a factor too small for float64",
            maximum=max_norm,
            scaled_root=norm.root,
        )
    scale = (max_norm / norm.top) / norm.root
    if scale > 0.0:
        transform = ClipTransform.uniform(scale)
    else:
        transform = ClipTransform.normalized(norm.top, multiplier)
    return GradientClip(norm.norm, max_norm, transform, clipped=True)


def clip_grad_norm(
    named_parameters: Iterable[tuple[str, Tensor]],
    max_norm: float,
    *,
    sums: kernels.BlockSums | None = None,
) -> GradientClip:
    """Measure the global gradient norm and say how to bring it under ``max_norm``.

    Unlike ``torch.nn.utils.clip_grad_norm_`` this changes no gradient and adds nothing to the
    norm before dividing by it: hand ``transform`` to the optimizer.

    Parameters
    ----------
    named_parameters
        Name and tensor of every parameter, in stable order.
    max_norm
        The ceiling; finite, > 0.
    sums
        As for :func:`measure_grad_norm`.

    Raises
    ------
    OptimizerError
        As :func:`measure_grad_norm` and :func:`clip_to`.
    """
    return clip_to(measure_grad_norm(named_parameters, sums=sums), max_norm)
