"""The update loop: every planned step, measurements in between, the earliest best state kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from llmcy.data import MiniBatchEpoch
from llmcy.model import Decoder
from llmcy.optim import AdamW
from llmcy.state import DecoderModelState
from llmcy.trainer.plan import TrainerConfig
from llmcy.trainer.preflight import check_run
from llmcy.trainer.records import LossCheckpoint, TrainingResult, TrainingStep
from llmcy.trainer.session import CyclingEpoch, TrainingSession

__all__ = ["train_decoder"]


def train_decoder(
    model: Decoder,
    optimizer: AdamW,
    update_epoch: MiniBatchEpoch,
    train_evaluation_epoch: MiniBatchEpoch,
    validation_epoch: MiniBatchEpoch,
    config: TrainerConfig,
    *,
    on_step: Callable[[TrainingStep], object] | None = None,
    on_checkpoint: Callable[[LossCheckpoint], object] | None = None,
) -> TrainingResult:
    """Train a copy of ``model`` and select the measured state with the smallest validation loss.

    Parameters
    ----------
    model, optimizer
        Where to start; both stay as they are, whatever happens.  The optimizer must be fresh.
    update_epoch
        Update s uses batch ``(s - 1) % batch_count``; training partition.
    train_evaluation_epoch
        Measured beside the validation epoch, for information; training partition.
    validation_epoch
        Measured for the selection; validation partition.
    config
        Rates, ceiling of the gradient norm, steps to measure at.  Every planned update runs.
    on_step, on_checkpoint
        Called with each record as soon as it exists.  An exception they raise ends the run.

    Returns
    -------
    TrainingResult
        Equal inputs give equal bits.

    Raises
    ------
    TrainerError
        Before anything is computed, as :func:`~llmcy.trainer.preflight.check_run`.  During the run
        ``NonScalarLoss``, ``NonFiniteLoss``, ``MissingGradient``, ``NonFiniteGradient``,
        ``UnrepresentableGradientClip``, ``OptimizerStepMismatch``, ``ParameterGradientNotZero``,
        those of :func:`~llmcy.evaluate.evaluate_no_grad`, and ``Model``, ``Optimizer``,
        ``Autodiff``, ``Initialization`` or ``Tensor`` with the reason as ``cause``.

    Notes
    -----
    A measurement replaces the selected state only by a strictly smaller validation loss, so the
    earliest minimum wins.  Parameters and optimizer state are copied together.
    """
    check_run(model, optimizer, update_epoch, train_evaluation_epoch, validation_epoch)
    session = TrainingSession(
        # not into_model(): the working model's arrays start at cache lines, a snapshot's do not
        DecoderModelState.snapshot(model).restore_independent_model(),
        optimizer.copy(),
        config,
        CyclingEpoch(update_epoch),
        train_evaluation_epoch,
        validation_epoch,
    )
    steps: list[TrainingStep] = []
    checkpoints: list[LossCheckpoint] = []
    while not session.finished:
        done = session.advance()
        if done.update is not None:
            steps.append(done.update)
            if on_step is not None:
                on_step(done.update)
        if done.measurement is not None:
            checkpoints.append(done.measurement)
            if on_checkpoint is not None:
                on_checkpoint(done.measurement)
    best = session.best
    assert best is not None  # step 0 is always measured
    return TrainingResult(
        tuple(steps),
        tuple(replace(c, selected=c.step == best.step) for c in checkpoints),
        best.validation_loss,
        best.state,
        DecoderModelState.snapshot(session.model),
        session.optimizer,
    )
