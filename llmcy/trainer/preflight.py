"""What is checked before a run copies or computes anything."""

from __future__ import annotations

import numpy as np

from llmcy.config import ModelConfig
from llmcy.data import Batch, MiniBatchEpoch, Partition
from llmcy.errors import TrainerError
from llmcy.model import Decoder
from llmcy.optim import AdamW

__all__ = ["check_epochs", "check_run"]


def check_run(
    model: Decoder,
    optimizer: AdamW,
    update_epoch: MiniBatchEpoch,
    train_evaluation_epoch: MiniBatchEpoch,
    validation_epoch: MiniBatchEpoch,
) -> None:
    """Refuse what cannot be trained, the first fault found in a fixed order.

    Raises
    ------
    TrainerError
        ``OptimizerNotFresh``; then for the update, train-evaluation and validation epoch in turn
        ``WrongPartition``, ``EmptyEpoch``, ``ContextLengthMismatch``, ``ContextLengthExceeded``,
        ``TokenIdOutOfBounds``.
    """
    if optimizer.step_count != 0:
        raise TrainerError(
            "OptimizerNotFresh",
            f"training starts from a fresh optimizer, this one is at step {optimizer.step_count}",
            step=optimizer.step_count,
        )
    check_epochs(model.config, update_epoch, train_evaluation_epoch, validation_epoch)


def check_epochs(
    config: ModelConfig,
    update_epoch: MiniBatchEpoch,
    train_evaluation_epoch: MiniBatchEpoch,
    validation_epoch: MiniBatchEpoch,
) -> None:
    """The checks of :func:`check_run` that look at the model's sizes and the data.

    Raises
    ------
    TrainerError
        As :func:`check_run`.
    """
    context_length = update_epoch.context_length
    for role, partition, epoch in (
        ("Update", Partition.TRAIN, update_epoch),
        ("TrainEvaluation", Partition.TRAIN, train_evaluation_epoch),
        ("ValidationSelection", Partition.VALIDATION, validation_epoch),
    ):
        _check_epoch(role, partition, epoch, context_length, config)


def _check_epoch(
    role: str,
    partition: Partition,
    epoch: MiniBatchEpoch,
    context_length: int,
    config: ModelConfig,
) -> None:
    if epoch.partition is not partition:
        raise TrainerError(
            "WrongPartition",
            f"the {role} epoch must come from the {partition.value} partition, "
            f"got {epoch.partition.value}",
            role=role,
            expected=partition,
            actual=epoch.partition,
        )
    if epoch.window_count == 0:
        raise TrainerError(
            "EmptyEpoch",
            f"the {role} epoch has no window: every document is shorter than the context of "
            f"{epoch.context_length} tokens and one target",
            role=role,
        )
    if epoch.context_length != context_length:
        raise TrainerError(
            "ContextLengthMismatch",
            f"the {role} epoch has context length {epoch.context_length}, "
            f"the update epoch {context_length}",
            role=role,
            expected=context_length,
            actual=epoch.context_length,
        )
    if epoch.context_length > config.max_seq_len:
        raise TrainerError(
            "ContextLengthExceeded",
            f"the {role} epoch has context length {epoch.context_length}, "
            f"the model holds {config.max_seq_len} positions",
            role=role,
            context_length=epoch.context_length,
            max_positions=config.max_seq_len,
        )
    vocab_size = config.vocab_size
    # looking at each document once is enough, unless one is found that the vocabulary lacks
    if any(d.token_ids.size and d.token_ids.max() >= vocab_size for d in epoch.documents):
        for batch in epoch.batches:
            _check_tokens(role, batch, vocab_size)


def _check_tokens(role: str, batch: Batch, vocab_size: int) -> None:
    for target, ids in ((False, batch.inputs), (True, batch.targets)):
        outside = np.flatnonzero(ids.reshape(-1) >= vocab_size)
        if outside.size:
            index = int(outside[0])
            token_id = int(ids.reshape(-1)[index])
            word = "target" if target else "input"
            raise TrainerError(
                "TokenIdOutOfBounds",
                f"{role} epoch: {word} token {token_id} at flat index {index} of a batch is "
                f"outside the vocabulary of {vocab_size}",
                role=role,
                target=target,
                index=index,
                id=token_id,
                vocabulary_size=vocab_size,
            )
