"""Settings of AdamW: checked once, never changed."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

from llmcy._check import real_number
from llmcy.errors import OptimizerError

__all__ = ["AdamWConfig"]


@dataclass(frozen=True)
class AdamWConfig:
    """The five numbers of AdamW.

    Parameters
    ----------
    learning_rate
        The base rate; finite, > 0.  A schedule's rates never change it.
    betas
        Decay of the first and of the second moment, each in [0, 1).
    eps
        Added to the root of the second moment; finite, > 0.
    weight_decay
        Decoupled decay; finite, >= 0.  When it is not zero the rounded product
        ``learning_rate * weight_decay`` must lie strictly between 0 and 1.

    Raises
    ------
    OptimizerError
        The first rule broken, in the order above: ``InvalidLearningRate``, ``InvalidBeta1``,
        ``InvalidBeta2``, ``InvalidEpsilon``, ``InvalidWeightDecay``, ``InvalidDecayProduct``.
    RangeError
        For a setting that is no number.

    Notes
    -----
    Loshchilov and Hutter, "Decoupled weight decay regularization" (ICLR 2019).
    """

    learning_rate: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.01

    def __post_init__(self) -> None:
        # frozen: the one place where fields are normalised, so that equal settings compare equal
        beta1, beta2 = self.betas
        betas = real_number("betas", beta1), real_number("betas", beta2)
        object.__setattr__(self, "betas", betas)
        for name in ("learning_rate", "eps", "weight_decay"):
            object.__setattr__(self, name, real_number(name, getattr(self, name)))
        rate, decay = self.learning_rate, self.weight_decay
        _require(
            math.isfinite(rate) and rate > 0.0,
            "InvalidLearningRate",
            "learning_rate must be finite and > 0",
            rate,
        )
        for index, beta in enumerate(self.betas, start=1):
            _require(
                math.isfinite(beta) and 0.0 <= beta < 1.0,
                f"InvalidBeta{index}",
                f"beta{index} must be in [0, 1)",
                beta,
            )
        _require(
            math.isfinite(self.eps) and self.eps > 0.0,
            "InvalidEpsilon",
            "eps must be finite and > 0",
            self.eps,
        )
        _require(
            math.isfinite(decay) and decay >= 0.0,
            "InvalidWeightDecay",
            "weight_decay must be finite and >= 0",
            decay,
        )
        product = rate * decay
        _require(
            decay == 0.0 or 0.0 < product < 1.0,
            "InvalidDecayProduct",
            "learning_rate * weight_decay must lie strictly between 0 and 1",
            product,
        )

    def allows_rate(self, learning_rate: object) -> bool:
        """Is this a rate that :meth:`with_learning_rate` takes as it is?"""
        return (
            type(learning_rate) is float
            and 0.0 < learning_rate < math.inf
            and (self.weight_decay == 0.0 or 0.0 < learning_rate * self.weight_decay < 1.0)
        )

    def with_learning_rate(self, learning_rate: float) -> AdamWConfig:
        """The same settings at another rate; every check runs again, the decay product's too."""
        return replace(self, learning_rate=learning_rate)

    def to_dict(self) -> dict[str, Any]:
        """A plain dictionary for JSON."""
        values = asdict(self)
        values["betas"] = list(self.betas)
        return values


def _require(holds: bool, kind: str, rule: str, value: float) -> None:
    if not holds:
        raise OptimizerError(kind, f"AdamWConfig: {rule}, got {value!r}", value=value)
