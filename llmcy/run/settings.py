"""Everything a training run is told, checked as a whole before anything is written."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from llmcy._check import whole_number
from llmcy.config import ModelConfig
from llmcy.errors import ConfigError
from llmcy.optim import AdamWConfig
from llmcy.trainer import LearningRateSchedule, TrainerConfig

__all__ = ["SCHEDULES", "TrainSettings", "make_schedule"]

SCHEDULES = ("cosine", "linear", "wsd", "inverse-sqrt", "constant", "list")


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
    epochs
        Passes over the training windows instead of ``steps``; 0: ``steps`` counts.
    learning_rate, min_learning_rate, warmup_steps, decay_steps, schedule
        Peak rate; last rate of a cosine or a line; updates of linear warm-up; updates of the final
        decay of ``wsd`` (0: a fifth of all); one of `SCHEDULES`.
    learning_rates
        Every rate of the schedule ``list``; their number is the number of updates.
    betas, eps, weight_decay, max_grad_norm
        AdamW and clipping; gains never decay.
    eval_every, eval_at, eval_batch_size
        Updates between measurements of the losses; the steps to measure at instead, ascending;
        windows a measured batch.  Step 0 and the last one are measured anyhow.
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
    epochs: int = 0
    batch_size: int = 64
    stride: int = 0
    learning_rate: float = 1e-2
    min_learning_rate: float = 1e-3
    warmup_steps: int = 20
    decay_steps: int = 0
    schedule: str = "cosine"
    learning_rates: tuple[float, ...] = ()
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    max_grad_norm: float = 1.0
    eval_every: int = 50
    eval_at: tuple[int, ...] = ()
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

    @classmethod
    def for_model(cls, config: ModelConfig, **others: Any) -> TrainSettings:
        """Settings that give ``config`` again, for training on from a model that exists."""
        shape: dict[str, Any] = {
            "d_model": config.d_model,
            "n_heads": config.n_heads,
            "n_layers": config.n_layers,
            "d_ff": config.d_ff,
            "max_seq_len": config.max_seq_len,
            "rope_theta": config.rope_theta,
            "rms_norm_eps": config.rms_norm_eps,
            "dtype": config.dtype,
            "n_kv_heads": config.n_kv_heads or 0,
            "head_size": config.head_size or 0,
            "tied_head": config.tied_head,
        }
        return cls(**(shape | others))

    def optimizer_config(self) -> AdamWConfig:
        """AdamW's settings; its own rate is the peak of the schedule."""
        return AdamWConfig(self.learning_rate, self.betas, self.eps, self.weight_decay)

    def planned_steps(self, batches_per_epoch: int | None = None) -> int:
        """Updates of the run; with ``epochs`` it takes the batches of one epoch to know them."""
        if self.schedule == "list":
            return len(self.learning_rates)
        if self.epochs and batches_per_epoch is not None:
            return self.epochs * batches_per_epoch
        return self.steps

    def trainer_config(self, batches_per_epoch: int | None = None) -> TrainerConfig:
        """One rate an update, and when to measure.

        Parameters
        ----------
        batches_per_epoch
            For ``epochs``; without it the plan for ``steps`` is made, to check the other settings.

        Raises
        ------
        TrainerError
            For rates, steps or a ceiling that make no plan.
        ConfigError
            For an unknown schedule.
        """
        optimizer = self.optimizer_config()  # refuses a rate that is not positive and finite
        if self.epochs < 0:
            raise _invalid("epochs", self.epochs, "must be a whole number")
        schedule = make_schedule(
            self.schedule,
            self.planned_steps(batches_per_epoch),
            learning_rate=self.learning_rate,
            min_learning_rate=self.min_learning_rate,
            warmup_steps=self.warmup_steps,
            decay_steps=self.decay_steps,
            learning_rates=self.learning_rates,
        )
        for scheduled in schedule.rates():
            optimizer.with_learning_rate(scheduled)  # the decay product of every rate
        if not self.eval_at:
            return TrainerConfig.every(schedule, self.eval_every, self.max_grad_norm)
        whole_number("eval_every", self.eval_every, 1)
        measured = self.eval_at
        if self.epochs and batches_per_epoch is None:  # how far the run goes is not known yet
            measured = tuple(step for step in measured if step <= schedule.steps())
        return TrainerConfig.at(schedule, measured, self.max_grad_norm)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> TrainSettings:
        """The inverse of :meth:`to_dict`.

        Raises
        ------
        ConfigError
            ``InvalidSetting`` naming a missing or unknown key.
        """
        known = {field.name for field in fields(cls)}
        for name in sorted(known ^ set(values)):
            word = "unknown" if name in values else "missing"
            raise ConfigError(
                "InvalidSetting",
                f"{word} setting {name!r}",
                name=name,
                value=values.get(name),
            )
        listed = ("betas", "learning_rates", "eval_at")
        return cls(**{**values, **{name: tuple(values[name]) for name in listed}})

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        values = asdict(self)
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def make_schedule(
    name: str,
    steps: int,
    *,
    learning_rate: float,
    min_learning_rate: float,
    warmup_steps: int,
    decay_steps: int,
    learning_rates: tuple[float, ...] = (),
) -> LearningRateSchedule:
    """The schedule of this name; formulas as in :class:`LearningRateSchedule`.

    Raises
    ------
    TrainerError
        For rates or steps that make no schedule.
    ConfigError
        For an unknown name, or rates given to a schedule that has a formula.
    """
    low = min(min_learning_rate, learning_rate)
    warmup = min(warmup_steps, steps)
    if learning_rates and name != "list":
        raise _invalid("schedule", name, "must be 'list' when rates are listed")
    if name == "cosine":
        return LearningRateSchedule.warmup_cosine(learning_rate, warmup, steps, low)
    if name == "linear":
        return LearningRateSchedule.warmup_linear(learning_rate, warmup, steps, low)
    if name == "wsd":
        decay = decay_steps or steps // 5
        return LearningRateSchedule.warmup_stable_decay(learning_rate, warmup, steps, decay, low)
    if name == "inverse-sqrt":
        return LearningRateSchedule.warmup_inverse_sqrt(learning_rate, max(1, warmup_steps), steps)
    if name == "constant":
        return LearningRateSchedule.constant(learning_rate, steps)
    if name == "list":
        return LearningRateSchedule(learning_rates)
    raise _invalid("schedule", name, f"must be one of {', '.join(SCHEDULES)}")


def _invalid(name: str, value: object, rule: str) -> ConfigError:
    return ConfigError("InvalidSetting", f"{name} {rule}, got {value!r}", name=name, value=value)
