"""Means over tokens, gathered piece by piece and divided once.

The trainer takes one loss over a whole batch and does not need this; it is the bookkeeping for
losses and gradients that come token by token: raw sums are kept, pieces can be merged, and the one
division at the end is by the number of real tokens, never by a nominal batch size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from llmcy.data._sizes import MAX_SIZE, checked_size
from llmcy.data.batches import Batch
from llmcy.errors import DataError

__all__ = ["TokenContribution", "TokenMean", "TokenMeanAccumulator", "average_token_contributions"]


@dataclass(frozen=True)
class TokenContribution:
    """Loss and gradient of one token.

    Raises
    ------
    DataError
        ``NonFiniteLoss``, ``ZeroGradientWidth`` or ``NonFiniteGradient``.
    """

    loss: float
    gradient: tuple[float, ...]

    def __init__(self, loss: float, gradient: Sequence[float]) -> None:
        object.__setattr__(self, "loss", float(loss))
        object.__setattr__(self, "gradient", tuple(float(value) for value in gradient))
        if not math.isfinite(self.loss):
            raise DataError(
                "NonFiniteLoss", f"token loss must be finite, got {self.loss}", value=self.loss
            )
        if not self.gradient:
            raise DataError("ZeroGradientWidth", "a token gradient needs at least one coordinate")
        for coordinate, value in enumerate(self.gradient):
            if not math.isfinite(value):
                raise DataError(
                    "NonFiniteGradient",
                    f"token gradient coordinate {coordinate} must be finite, got {value}",
                    coordinate=coordinate,
                    value=value,
                )


@dataclass(frozen=True)
class TokenMean:
    """Mean loss and gradient over ``token_count`` tokens."""

    loss: float
    gradient: tuple[float, ...]
    token_count: int


class TokenMeanAccumulator:
    """Sums of losses and gradients; a call that fails changes nothing.

    Parameters
    ----------
    gradient_width
        Coordinates of every gradient, >= 1.

    Raises
    ------
    DataError
        ``InvalidSize`` or ``ZeroGradientWidth``.
    """

    __slots__ = ("_gradient_sums", "_loss_sum", "_token_count")

    def __init__(self, gradient_width: int) -> None:
        width = checked_size("gradient_width", gradient_width)
        if width == 0:
            raise DataError("ZeroGradientWidth", "gradient_width must be at least 1, got 0")
        self._loss_sum = 0.0
        self._gradient_sums = (0.0,) * width
        self._token_count = 0

    @property
    def gradient_width(self) -> int:
        """Coordinates of every gradient."""
        return len(self._gradient_sums)

    @property
    def token_count(self) -> int:
        """Tokens gathered so far."""
        return self._token_count

    def add(self, contribution: TokenContribution) -> None:
        """Gather one token.

        Raises
        ------
        DataError
            ``GradientWidthMismatch``, ``TokenCountOverflow`` or ``NonFiniteAccumulation``.
        """
        self._commit(contribution.loss, contribution.gradient, 1)

    def merge(self, other: TokenMeanAccumulator) -> None:
        """Add the raw sums of another accumulator; errors as in `add`."""
        self._commit(other._loss_sum, other._gradient_sums, other._token_count)

    def finish(self) -> TokenMean:
        """Divide every sum once by the count; ``EmptyAccumulator`` when nothing was added."""
        count = self._token_count
        if count == 0:
            raise DataError("EmptyAccumulator", "no token was accumulated, there is no mean")
        return TokenMean(
            self._loss_sum / float(count),
            tuple(total / float(count) for total in self._gradient_sums),
            count,
        )

    def _commit(self, loss: float, gradient: tuple[float, ...], tokens: int) -> None:
        if len(gradient) != self.gradient_width:
            raise DataError(
                "GradientWidthMismatch",
                f"the accumulator has {self.gradient_width} coordinates, got {len(gradient)}",
                expected=self.gradient_width,
                actual=len(gradient),
            )
        token_count = self._token_count + tokens
        if token_count > MAX_SIZE:
            raise DataError("TokenCountOverflow", "more than 2**64 - 1 tokens were accumulated")
        loss_sum = self._loss_sum + loss
        if not math.isfinite(loss_sum):
            raise _non_finite_sum("loss", None)
        sums = tuple(a + b for a, b in zip(self._gradient_sums, gradient, strict=True))
        for coordinate, total in enumerate(sums):
            if not math.isfinite(total):
                raise _non_finite_sum("gradient", coordinate)
        self._loss_sum, self._gradient_sums, self._token_count = loss_sum, sums, token_count


def _non_finite_sum(quantity: str, coordinate: int | None) -> DataError:
    where = "" if coordinate is None else f" at coordinate {coordinate}"
    return DataError(
        "NonFiniteAccumulation",
        f"the sum of {quantity} values{where} is no longer finite",
        quantity=quantity,
        coordinate=coordinate,
    )


def average_token_contributions(
    batch: Batch, contributions: Iterable[TokenContribution]
) -> TokenMean:
    """The mean over one batch, one contribution for each of its targets.

    Raises
    ------
    DataError
        ``ContributionCountMismatch``, or an error of `TokenMeanAccumulator.add`.
    """
    held = tuple(contributions)
    if len(held) != batch.token_count:
        raise DataError(
            "ContributionCountMismatch",
            f"the batch has {batch.token_count} targets, got {len(held)} contributions",
            expected=batch.token_count,
            actual=len(held),
        )
    accumulator = TokenMeanAccumulator(len(held[0].gradient))
    for contribution in held:
        accumulator.add(contribution)
    return accumulator.finish()
