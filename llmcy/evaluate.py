"""Measuring a model without recording anything and without touching its gradients."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

from llmcy.data import MiniBatchEpoch, Partition
from llmcy.errors import TrainerError, trainer_errors
from llmcy.model import Decoder
from llmcy.tape import Tensor, no_grad

__all__ = ["Evaluation", "check_loss", "evaluate_no_grad", "loss_value"]


@dataclass(frozen=True)
class Evaluation:
    """The loss of a model over an epoch.

    Attributes
    ----------
    loss
        Mean negative log-likelihood per target, in nats: batch losses weighted by their number of
        targets.  Its last bits depend on the batch size.
    target_count, batch_count
        What was measured.
    recorded_graphs
        Losses that were recorded: 0, anything else is an error.
    """

    loss: float
    target_count: int
    batch_count: int
    recorded_graphs: int = 0


def evaluate_no_grad(model: Decoder, epoch: MiniBatchEpoch) -> Evaluation:
    """Mean loss of ``model`` over every batch of ``epoch``, of any partition.

    ``sum(loss * targets) / sum(targets)`` over the batches in order, in float64 (numerics
    contract, section 11).

    Raises
    ------
    TrainerError
        ``EmptyEpoch``; ``ValidationRecordedGraph`` when a loss was recorded all the same;
        ``NonScalarLoss``, ``NonFiniteLoss``; ``ValidationChangedGradient`` when a gradient has
        other bits than before; ``Model`` or ``Autodiff`` when a forward pass fails.
    """
    if epoch.window_count == 0:
        validation = epoch.partition is Partition.VALIDATION
        role = "ValidationSelection" if validation else "TrainEvaluation"
        raise TrainerError("EmptyEpoch", f"the {role} epoch has no window", role=role)
    gradients = _gradient_digest(model)
    total, target_count = 0.0, 0
    for index, batch in enumerate(epoch.batches):
        with trainer_errors(f"evaluating batch {index}"), no_grad():
            loss = model.loss(batch.inputs, batch.targets)
        if loss.requires_grad:
            raise TrainerError(
                "ValidationRecordedGraph",
                f"the loss of batch {index} of the {epoch.partition.value} partition was recorded",
                partition=epoch.partition,
                batch=index,
            )
        total = total + loss_value(loss) * float(batch.token_count)
        target_count += batch.token_count
    mean = total / float(target_count)
    if not math.isfinite(mean):
        raise TrainerError("NonFiniteLoss", f"the mean loss is {mean!r}", value=mean)
    if _gradient_digest(model) != gradients:
        raise TrainerError(
            "ValidationChangedGradient", "a gradient changed while the model was being evaluated"
        )
    return Evaluation(mean, target_count, epoch.batch_count)


def loss_value(loss: Tensor) -> float:
    """The number in a loss.

    Raises
    ------
    TrainerError
        ``NonScalarLoss`` or ``NonFiniteLoss``.
    """
    if loss.shape != ():
        raise TrainerError(
            "NonScalarLoss", f"a loss must be a scalar, got shape {loss.shape}", shape=loss.shape
        )
    return check_loss(loss.item())


def check_loss(value: float) -> float:
    """The loss itself, if it is finite; else ``NonFiniteLoss``."""
    if not math.isfinite(value):
        raise TrainerError("NonFiniteLoss", f"the loss is {value!r}", value=value)
    return value


def _gradient_digest(model: Decoder) -> list[bytes]:
    """Something that changes with any bit of any gradient; no gradient is copied or made."""
    return [_bits_digest(parameter) for _, parameter in model.named_parameters()]


def _bits_digest(parameter: Tensor) -> bytes:
    if parameter.grad_is_zero:
        return b"zero"
    gradient = parameter.grad
    return b"" if gradient is None else hashlib.blake2b(gradient.data).digest()
