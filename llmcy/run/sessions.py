"""Training sessions of a run, from its first step or a checkpoint; and what a checkpoint says.

Nothing here reads or writes a file, so a part of a run can be done again beside the original.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llmcy.data import (
    BatchDocument,
    MiniBatchConfig,
    MiniBatchEpoch,
    Partition,
    ReshuffledEpochs,
    TextDataset,
    WindowConfig,
    epoch_seed,
)
from llmcy.model import Decoder
from llmcy.optim import AdamW
from llmcy.run.canonical import float_from_bits
from llmcy.run.job_file import StateFile, restored_optimizer
from llmcy.run.model_file import tokenizer_record
from llmcy.run.plan import RunPlan
from llmcy.run.settings import TrainSettings
from llmcy.tokenizer import Tokenizer
from llmcy.trainer import Best, TrainingSession
from llmcy.trainer.preflight import check_epochs

__all__ = ["Epochs", "describe_job", "describe_selected", "make_epochs", "open_session"]


@dataclass(frozen=True)
class Epochs:
    """What a run trains on and what it measures."""

    update: ReshuffledEpochs
    train_evaluation: MiniBatchEpoch
    validation: MiniBatchEpoch


def make_epochs(dataset: TextDataset, settings: TrainSettings) -> Epochs:
    """Shuffled updates over all training windows; measurements in order, without overlap.

    The training loss is measured on the first training documents that hold about as many tokens as
    the validation partition, so that measuring costs the same for both.

    Raises
    ------
    DataError
        For sizes that give no windows.
    """
    context = settings.context_length
    dataset.update_epoch(context, settings.batch_size, 0, stride=settings.stride or None)
    update = ReshuffledEpochs(
        dataset.documents.of(Partition.TRAIN),
        WindowConfig(context, settings.stride or context),
        settings.batch_size,
        settings.shuffle_seed,
    )
    validation = dataset.evaluation_epoch(Partition.VALIDATION, context, settings.eval_batch_size)
    chosen: list[BatchDocument] = []
    wanted, held = dataset.token_count(Partition.VALIDATION), 0
    for document in dataset.documents.of(Partition.TRAIN):
        if held < wanted and len(document.token_ids) > context:
            chosen.append(document)
            held += len(document.token_ids)
    train_evaluation = MiniBatchEpoch.build(
        Partition.TRAIN,
        chosen,
        WindowConfig(context, context),
        MiniBatchConfig(settings.eval_batch_size),
    )
    return Epochs(update, train_evaluation, validation)


def open_session(
    plan: RunPlan,
    epochs: Epochs,
    held: tuple[StateFile, StateFile] | None,
    micro_batch_size: int = 0,
    *,
    initial: Decoder | None = None,
) -> TrainingSession:
    """A session that stands where a job checkpoint does, or before the first step.

    Parameters
    ----------
    plan, epochs
        Of the run.
    held
        A job checkpoint and the selected state that it names; None begins at the beginning.
    micro_batch_size
        Windows in memory at once; 0: the whole batch.
    initial
        The model to begin with, which is taken over; None makes one from the seed.

    Raises
    ------
    TrainerError
        For data that the model cannot be trained on.
    """
    best, at_step = None, None
    if held is None:
        model = initial or Decoder.initialize(plan.model, plan.settings.seed)
        optimizer = AdamW(plan.optimizer, plan.groups)
    else:
        job, selected = held
        model = job.model.restore_independent_model()
        optimizer = restored_optimizer(job.optimizer)
        loss = float_from_bits(selected.described["validation_loss"])
        best = Best.restored(loss, selected.step, selected.model, selected.optimizer)
        at_step = job.step
    check_epochs(plan.model, epochs.update.epoch(0), epochs.train_evaluation, epochs.validation)
    return TrainingSession(
        model,
        optimizer,
        plan.trainer_config(micro_batch_size),
        epochs.update,
        epochs.train_evaluation,
        epochs.validation,
        best=best,
        at_step=at_step,
    )


def describe_job(
    plan: RunPlan, epochs: Epochs, tokenizer: Tokenizer, step: int, history: str
) -> dict[str, Any]:
    """Everything a restart after ``step`` needs besides parameters, optimizer and best state.

    Parameters
    ----------
    plan, epochs, tokenizer
        Of the run.
    step
        The last finished step.
    history
        Digest of all records up to it.
    """
    following = epochs.update.position(step + 1)
    seed = plan.settings.shuffle_seed
    return {
        "kind": "job",
        "identity": plan.identity(),
        "tokenizer": tokenizer_record(tokenizer),
        "schedule": plan.schedule_record(step),
        "validation": plan.validation_record(step),
        "max_grad_norm": plan.settings.max_grad_norm,
        "position": {"epoch": following.epoch, "batch": following.cursor},
        "rng": {
            "algorithm": "splitmix64",
            "parameters": {"seed": _word(plan.settings.seed)},
            "window_order": {
                "seed": _word(seed),
                "epoch_seed": _word(epoch_seed(seed, following.epoch)),
            },
            "sampling": {"state": _word(plan.settings.seed)},
        },
        "history": history,
    }


def describe_selected(plan: RunPlan, tokenizer: Tokenizer, best: Best) -> dict[str, Any]:
    """What a selected state says besides its values."""
    return {
        "kind": "selected",
        "identity": plan.identity(),
        "tokenizer": tokenizer_record(tokenizer),
        "validation_loss": best.validation_loss,
    }


def _word(value: int) -> str:
    return f"0x{value:016x}"
