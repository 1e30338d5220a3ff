"""The two fixtures whose every bit is published: documents, settings, seeds.

``PUBLISHED`` is the eight-update run of a 144-parameter decoder.  ``wide`` is the odd-sized one
that sees what the small one hides behind powers of two: no size in it is one (numerics contract,
section 16).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from llmcy.config import ModelConfig
from llmcy.data import (
    BatchDocument,
    BatchOrder,
    MiniBatchConfig,
    MiniBatchEpoch,
    Partition,
    WindowConfig,
)
from llmcy.model import Decoder
from llmcy.optim import AdamW, AdamWConfig, ParameterGroups
from llmcy.optim.schedule import LearningRateSchedule
from llmcy.rng import SplitMix64
from llmcy.trainer import TrainerConfig, TrainingResult, train_decoder

__all__ = ["PUBLISHED", "TrainingFixture", "wide"]

Documents = tuple[tuple[str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class TrainingFixture:
    """Everything that determines a small training run.

    Attributes
    ----------
    model_config, init_seed
        The decoder and the seed of its parameters.
    train, validation
        (name, token ids) of each document.
    context_length, stride
        Of the windows.
    batch_size, shuffle_seed
        Of the update epoch.
    train_evaluation_batch_size, validation_batch_size
        Of the two sequential epochs that are measured.
    rates, validation_steps, max_grad_norm
        The training plan.
    optimizer_config
        AdamW's settings; gains do not decay.
    """

    model_config: ModelConfig
    init_seed: int
    train: Documents
    validation: Documents
    context_length: int
    stride: int
    batch_size: int
    shuffle_seed: int
    train_evaluation_batch_size: int
    validation_batch_size: int
    rates: tuple[float, ...]
    validation_steps: tuple[int, ...]
    max_grad_norm: float
    optimizer_config: AdamWConfig

    def model(self) -> Decoder:
        """A fresh decoder with the fixture's initial parameters."""
        return Decoder.initialize(self.model_config, self.init_seed)

    def optimizer(self) -> AdamW:
        """A fresh optimizer."""
        groups = ParameterGroups.from_rule(self.model_config.parameter_shapes())
        return AdamW(self.optimizer_config, groups)

    def epoch(
        self,
        documents: Sequence[tuple[str, Sequence[int]]],
        partition: Partition,
        batch_size: int,
        order: BatchOrder,
    ) -> MiniBatchEpoch:
        """An epoch over ``documents`` with the fixture's windows."""
        return MiniBatchEpoch.build(
            partition,
            [BatchDocument(name, partition, tokens) for name, tokens in documents],
            WindowConfig(self.context_length, self.stride),
            MiniBatchConfig(batch_size, order),
        )

    def update_epoch(self) -> MiniBatchEpoch:
        """The shuffled epoch that the updates use."""
        order = BatchOrder.shuffled(self.shuffle_seed)
        return self.epoch(self.train, Partition.TRAIN, self.batch_size, order)

    def train_evaluation_epoch(self) -> MiniBatchEpoch:
        """The training documents in order, for measuring."""
        return self.epoch(
            self.train,
            Partition.TRAIN,
            self.train_evaluation_batch_size,
            BatchOrder.sequential(),
        )

    def validation_epoch(self) -> MiniBatchEpoch:
        """The validation documents in order, for measuring and selecting."""
        return self.epoch(
            self.validation,
            Partition.VALIDATION,
            self.validation_batch_size,
            BatchOrder.sequential(),
        )

    def trainer_config(self) -> TrainerConfig:
        """The training plan."""
        return TrainerConfig(
            LearningRateSchedule(self.rates), self.validation_steps, self.max_grad_norm
        )

    def train_decoder(self) -> TrainingResult:
        """Run the whole fixture from fresh seeds."""
        return train_decoder(
            self.model(),
            self.optimizer(),
            self.update_epoch(),
            self.train_evaluation_epoch(),
            self.validation_epoch(),
            self.trainer_config(),
        )


PUBLISHED = TrainingFixture(
    model_config=ModelConfig(vocab_size=5, d_model=4, n_heads=2, n_layers=1, d_ff=4, max_seq_len=2),
    init_seed=33,
    train=(
        ("train-a", (0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1)),
        ("train-b", (2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3)),
    ),
    validation=(
        ("validation-a", (0, 1, 2, 3, 4, 0, 1, 2, 3)),
        ("validation-b", (0, 0, 0, 0, 0, 0, 0, 0, 0)),
    ),
    context_length=2,
    stride=1,
    batch_size=2,
    shuffle_seed=33,
    train_evaluation_batch_size=5,
    validation_batch_size=4,
    rates=(0.04, 0.04, 0.025, 0.025, 0.015, 0.015, 0.008, 0.008),
    validation_steps=(0, 2, 4, 6, 8),
    max_grad_norm=0.35,
    optimizer_config=AdamWConfig(0.04, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01),
)


def wide(max_grad_norm: float) -> TrainingFixture:
    """The odd-sized fixture; published for ceilings 1.2, 2.2 and 100."""
    rng = SplitMix64(2024)
    documents = tuple(
        (name, tuple(rng.next_u64() % 11 for _ in range(length)))
        for name, length in (("a", 17), ("b", 4), ("c", 14), ("v", 13), ("w", 9))
    )
    return TrainingFixture(
        model_config=ModelConfig(
            vocab_size=11,
            d_model=12,
            n_heads=2,
            n_layers=2,
            d_ff=10,
            max_seq_len=7,
            rope_theta=500.0,
            rms_norm_eps=1e-5,
        ),
        init_seed=77,
        train=documents[:3],
        validation=documents[3:],
        context_length=5,
        stride=2,
        batch_size=5,
        shuffle_seed=78,
        train_evaluation_batch_size=4,
        validation_batch_size=4,
        rates=(0.02, 0.03, 0.02, 0.015, 0.01, 0.007),
        validation_steps=(0, 1, 3, 6),
        max_grad_norm=max_grad_norm,
        optimizer_config=AdamWConfig(0.02, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1),
    )
