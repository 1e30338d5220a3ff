"""Everything a training run is told, checked as a whole before anything is written."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from llmcy.config import ModelConfig
from llmcy.errors import ConfigError
from llmcy.optim import AdamWConfig
from llmcy.trainer import LearningRateSchedule, TrainerConfig

__all__ = ["TrainSettings"]


@dataclass(frozen=True)
class TrainSettings:
    """The settings of ``llmcy train``; the defaults make 0.87 million parameters.

    Parameters
    ----------
    d_model, n_heads, n_layers, d_ff
        Sizes of the model; ``d_ff`` 0 means ``8/3 * d_model`` rounded up to a multiple of 32.
    context_length, max_seq_len
        Tokens of a training window; positions the model can hold (0: the context length).
    n_kv_heads, head_size, tied_head
        Heads of keys and values (0: ``n_heads``); width of a head (0: ``d_model / n_heads``);
        whether the embedding is the output head as well.
    rope_theta, rms_norm_eps, dtype
        As :class:`llmcy.config.ModelConfig`.
    steps, batch_size, stride
        Updates; windows an update; tokens between window starts (0: the context length).
    learning_rate, min_learning_rate, warmup_steps, schedule
        Peak rate; last rate of a cosine; updates of linear warm-up; ``cosine``, ``constant`` or
        ``inverse-sqrt``.
    betas, eps, weight_decay, max_grad_norm
        AdamW and clipping; gains never decay.
    eval_every, eval_batch_size
        Updates between measurements of the losses; windows a measured batch.
    seed, shuffle_seed
        Of the initial values; of the order of windows.
    """

    d_model: int = 128
    n_heads: int = 4
    n_layers: int = 4
    d_ff: int = 0
    context_length: int = 128
    max_seq_len: int = 0
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-6
    dtype: str = "float32"
    steps: int = 200
    batch_size: int = 64
    stride: int = 0
    learning_rate: float = 1e-2
    min_learning_rate: float = 1e-3
    warmup_steps: int = 20
    schedule: str = "cosine"
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    max_grad_norm: float = 1.0
    eval_every: int = 50
    eval_batch_size: int = 32
    seed: int = 1
    shuffle_seed: int = 2
    n_kv_heads: int = 0
    head_size: int = 0
    tied_head: bool = True

    def model_config(self, vocab_size: int) -> ModelConfig:
        """The model for a tokenizer of ``vocab_size`` ids.

        Raises
        ------
        ModelError
            For sizes that make no model.
        """
        d_ff = self.d_ff or -(-8 * self.d_model // 96) * 32
        return ModelConfig(
            vocab_size=vocab_size,
            d_model=self.d_model,
            n_heads=self.n_heads,
            n_layers=self.n_layers,
            d_ff=d_ff,
            max_seq_len=self.max_seq_len or self.context_length,
            rope_theta=self.rope_theta,
            rms_norm_eps=self.rms_norm_eps,
            dtype=self.dtype,
            n_kv_heads=self.n_kv_heads or None,
            head_size=self.head_size or None,
            tied_head=self.tied_head,
        )

    def optimizer_config(self) -> AdamWConfig:
        """AdamW's settings; its own rate is the peak of the schedule."""
        return AdamWConfig(self.learning_rate, self.betas, self.eps, self.weight_decay)

    def trainer_config(self) -> TrainerConfig:
        """One rate an update, and when to measure.

        Raises
        ------
        TrainerError
            For rates, steps or a ceiling that make no plan.
        ConfigError
            For an unknown schedule.
        """
        rate, steps, warmup = self.learning_rate, self.steps, self.warmup_steps
        optimizer = self.optimizer_config()  # refuses a rate that is not positive and finite
        if self.schedule == "cosine":
            low = min(self.min_learning_rate, rate)
            schedule = LearningRateSchedule.warmup_cosine(rate, min(warmup, steps), steps, low)
        elif self.schedule == "inverse-sqrt":
            schedule = LearningRateSchedule.warmup_inverse_sqrt(rate, max(1, warmup), steps)
        elif self.schedule == "constant":
            schedule = LearningRateSchedule.constant(rate, steps)
        else:
            raise ConfigError(
                "InvalidSetting",
                f"schedule must be cosine, constant or inverse-sqrt, got {self.schedule!r}",
                name="schedule",
                value=self.schedule,
            )
        for scheduled in schedule.rates():
            optimizer.with_learning_rate(scheduled)  # the decay product of every rate
        return TrainerConfig.every(schedule, self.eval_every, self.max_grad_norm)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        values = asdict(self)
        values["betas"] = list(self.betas)
        return values
