"""Training into a run folder: what ``llmcy train`` does, without the command line."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llmcy._version import __version__
from llmcy.bigram import BigramModel, score_probabilities
from llmcy.checkpoint import Checkpoint, version_1_problem
from llmcy.config import CONTRACT_VERSION
from llmcy.data import (
    BatchDocument,
    MiniBatchConfig,
    MiniBatchEpoch,
    Partition,
    TextDataset,
    WindowConfig,
    target_byte_count,
)
from llmcy.model import Decoder
from llmcy.optim import AdamW, ParameterGroups
from llmcy.rng import SplitMix64
from llmcy.run.directory import RunDirectory
from llmcy.run.model_file import encode_model_file, tokenizer_record
from llmcy.run.settings import TrainSettings
from llmcy.trainer import LossCheckpoint, TrainingResult, TrainingStep, train_decoder

__all__ = ["TrainSummary", "run_training"]

LN_2 = 0.6931471805599453  # nearest float64 to the natural logarithm of 2
BIGRAM_ALPHA = 0.01  # smoothing of the baseline; small, because most pairs never occur


@dataclass(frozen=True)
class TrainSummary:
    """How a run ended.

    Attributes
    ----------
    run
        The run folder.
    selected_step, validation_loss
        The measured step with the smallest validation loss, and that loss in nats a token.
    bigram_loss
        Loss of a smoothed bigram model, fitted on the training documents, on the same targets.
    fingerprint
        ``fnv1a64:`` label of the selected parameters.
    n_parameters
        Scalars of the model.
    """

    run: RunDirectory
    selected_step: int
    validation_loss: float
    bits_per_byte: float
    bigram_loss: float
    fingerprint: str
    n_parameters: int

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "selected_step": self.selected_step,
            "validation_loss": self.validation_loss,
            "validation_loss_hex": self.validation_loss.hex(),
            "validation_bits_per_byte": self.bits_per_byte,
            "bigram_validation_loss": self.bigram_loss,
            "parameters": self.n_parameters,
            "fingerprint": self.fingerprint,
        }


@dataclass(frozen=True)
class _Epochs:
    update: MiniBatchEpoch
    train_evaluation: MiniBatchEpoch
    validation: MiniBatchEpoch


def run_training(
    dataset: TextDataset,
    settings: TrainSettings,
    path: str | os.PathLike[str],
    *,
    on_start: Callable[[Decoder, MiniBatchEpoch], object] | None = None,
    on_step: Callable[[TrainingStep], object] | None = None,
    on_checkpoint: Callable[[LossCheckpoint], object] | None = None,
) -> TrainSummary:
    """Train a model on ``dataset`` and leave everything in the run folder ``path``.

    All settings, windows and sizes are checked before the folder is made.

    Parameters
    ----------
    dataset
        Encoded documents with their split.
    settings
        Sizes, rates, seeds.
    path
        A folder that does not exist or is empty.
    on_start, on_step, on_checkpoint
        Called with the fresh model and the update epoch; with every update; with every
        measurement.

    Raises
    ------
    LlmcyError
        Whatever is wrong with settings or data, naming it; ``RunError`` for the folder.
    """
    plan = settings.trainer_config()
    config = settings.model_config(dataset.tokenizer.vocab_size)
    epochs = _epochs(dataset, settings)
    optimizer_config = settings.optimizer_config()
    model = Decoder.initialize(config, settings.seed)
    groups = ParameterGroups.from_rule([name for name, _ in model.named_parameters()])

    run = RunDirectory.create(path)
    run.write_json(
        "config.json",
        {
            "llmcy_version": __version__,
            "contract_version": CONTRACT_VERSION,
            "settings": settings.to_dict(),
            "model": config.to_dict(),
            "optimizer": optimizer_config.to_dict(),
            "learning_rates": list(plan.schedule.rates()),
            "validation_steps": list(plan.validation_steps),
        },
    )
    run.write_json("split.json", dataset.split.to_dict())
    run.write_json("tokenizer.json", tokenizer_record(dataset.tokenizer))
    if on_start is not None:
        on_start(model, epochs.update)

    started = time.monotonic()

    def record_step(step: TrainingStep) -> None:
        run.append_line("steps.jsonl", _step_line(step, time.monotonic() - started))
        if on_step is not None:
            on_step(step)

    def record_checkpoint(checkpoint: LossCheckpoint) -> None:
        run.append_line("evaluations.jsonl", _evaluation_line(checkpoint))
        if on_checkpoint is not None:
            on_checkpoint(checkpoint)

    result = train_decoder(
        model,
        AdamW(optimizer_config, groups),
        epochs.update,
        epochs.train_evaluation,
        epochs.validation,
        plan,
        on_step=record_step,
        on_checkpoint=record_checkpoint,
    )
    _write_selected(run, dataset, result, settings)
    summary = TrainSummary(
        run,
        result.selected_step,
        result.selected_validation_loss,
        _bits_per_byte(result.selected_validation_loss, dataset, epochs.validation),
        bigram_loss(dataset, epochs.validation),
        result.selected_state.fingerprint(),
        config.n_parameters,
    )
    run.write_json("summary.json", summary.to_dict())
    return summary


def bigram_loss(dataset: TextDataset, epoch: MiniBatchEpoch) -> float:
    """Mean loss of the smoothed bigram model on every target of ``epoch``."""
    training = [document.token_ids for document in dataset.documents.of(Partition.TRAIN)]
    bigram = BigramModel(dataset.tokenizer.vocab_size, BIGRAM_ALPHA, training)
    total, count = 0.0, 0
    for batch in epoch.batches:
        score = score_probabilities(bigram.probabilities(batch.inputs, batch.targets))
        total = total + score.total_nll
        count += score.target_count
    return total / float(count)


def _epochs(dataset: TextDataset, settings: TrainSettings) -> _Epochs:
    """Shuffled updates over all training windows; measurements in order, without overlap.

    The training loss is measured on the first training documents that hold about as many tokens as
    the validation partition, so that measuring costs the same for both.
    """
    context = settings.context_length
    update = dataset.update_epoch(
        context, settings.batch_size, settings.shuffle_seed, stride=settings.stride or None
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
    return _Epochs(update, train_evaluation, validation)


def _bits_per_byte(loss: float, dataset: TextDataset, epoch: MiniBatchEpoch) -> float:
    targets = epoch.window_count * epoch.context_length
    return loss * targets / target_byte_count(epoch, dataset.tokenizer) / LN_2


def _write_selected(
    run: RunDirectory, dataset: TextDataset, result: TrainingResult, settings: TrainSettings
) -> None:
    if version_1_problem(result.selected_state.config) is None:
        rng = SplitMix64(settings.seed)
        checkpoint = Checkpoint.from_snapshot(
            dataset.tokenizer, result.selected_training_state, rng.state
        )
        run.write_bytes("selected.ckpt", checkpoint.encode().bytes)
    else:
        data = encode_model_file(result.selected_state, dataset.tokenizer, result.selected_step)
        run.write_bytes("selected.safetensors", data)


def _step_line(step: TrainingStep, wall_seconds: float) -> dict[str, Any]:
    return {
        "step": step.step,
        "loss": step.train_loss,
        "loss_hex": step.train_loss.hex(),
        "learning_rate": step.learning_rate,
        "norm_before": step.norm_before,
        "norm_before_hex": step.norm_before.hex(),
        "norm_after": step.norm_after,
        "clipped": step.clipped,
        "tokens": step.target_count,
        "windows": list(step.windows),
        "wall_seconds": round(wall_seconds, 3),
    }


def _evaluation_line(checkpoint: LossCheckpoint) -> dict[str, Any]:
    return {
        "step": checkpoint.step,
        "train_loss": checkpoint.train.loss,
        "train_loss_hex": checkpoint.train.loss.hex(),
        "validation_loss": checkpoint.validation.loss,
        "validation_loss_hex": checkpoint.validation.loss.hex(),
        "best_so_far": checkpoint.selected,
    }
