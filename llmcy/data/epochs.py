"""Epoch after epoch, each in an order of its own that depends on the seed and its number alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from llmcy._check import whole_number
from llmcy.data.batches import (
    Batch,
    BatchDocument,
    BatchOrder,
    MiniBatchConfig,
    MiniBatchEpoch,
)
from llmcy.data.partition import Partition
from llmcy.data.windows import WindowConfig
from llmcy.rng import SplitMix64

__all__ = ["EpochPosition", "ReshuffledEpochs", "epoch_seed"]

STATE_STEP = 0x9E3779B97F4A7C15  # by which one draw advances SplitMix64


def epoch_seed(seed: int, epoch: int) -> int:
    """The seed that shuffles epoch ``epoch``, counted from 0.

    ``seed`` itself for the first epoch; after that draw number ``epoch`` (from 1) of
    ``SplitMix64(seed)``, which is found without making the draws before it.
    """
    if epoch == 0:
        return seed
    return SplitMix64((seed + (epoch - 1) * STATE_STEP) % 2**64).next_u64()


@dataclass(frozen=True)
class EpochPosition:
    """Where an update stands: its epoch, and the batch inside it, both counted from 0."""

    epoch: int
    cursor: int


class ReshuffledEpochs:
    """Training batches without end: every epoch visits every window once, in a new order.

    Parameters
    ----------
    documents
        Of the training partition.
    window_config
        Length and stride of the windows.
    batch_size
        Windows a batch; the last batch of an epoch may be smaller.
    seed
        Of all orders; see :func:`epoch_seed`.

    Raises
    ------
    DataError
        As :meth:`MiniBatchEpoch.build`.
    """

    def __init__(
        self,
        documents: Iterable[BatchDocument],
        window_config: WindowConfig,
        batch_size: int,
        seed: int,
    ) -> None:
        self._documents = tuple(documents)
        self._window_config = window_config
        self._batch_size = batch_size
        self.seed = seed
        self._number = 0
        self._held = self._build(0)

    @property
    def batch_count(self) -> int:
        """Batches of an epoch."""
        return self._held.batch_count

    def position(self, step: int) -> EpochPosition:
        """Epoch and batch of update ``step``, 1-based."""
        return EpochPosition(*divmod(whole_number("step", step, 1) - 1, self.batch_count))

    def epoch(self, number: int) -> MiniBatchEpoch:
        """Epoch ``number``, counted from 0; the last one asked for is kept."""
        if number != self._number:
            self._held = self._build(whole_number("number", number))
            self._number = number
        return self._held

    def batch_of(self, step: int) -> Batch:
        """The batch of update ``step``, 1-based."""
        position = self.position(step)
        return self.epoch(position.epoch).batch(position.cursor)

    def _build(self, number: int) -> MiniBatchEpoch:
        order = BatchOrder.shuffled(epoch_seed(self.seed, number))
        return MiniBatchEpoch.build(
            Partition.TRAIN,
            self._documents,
            self._window_config,
            MiniBatchConfig(self._batch_size, order),
        )
