"""What a run is: everything its results depend on, as ``config.json`` holds it."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from llmcy._version import __version__
from llmcy.config import CONTRACT_VERSION, ModelConfig
from llmcy.data import WindowConfig
from llmcy.errors import LlmcyError, RunError
from llmcy.optim import AdamWConfig, ParameterGroups
from llmcy.run.canonical import first_difference, sha256_hex, with_float_bits
from llmcy.run.options import JobOptions
from llmcy.run.settings import TrainSettings
from llmcy.trainer import LearningRateSchedule, TrainerConfig

__all__ = ["RunPlan"]

FORMAT = "llmcy-run-1"
INITIAL_FIELDS = ("sha256", "parameters", "selected_step", "source")
ORDER_RULE = "reshuffled-epochs-1"  # docs/data.md, "Epoch after epoch"


@dataclass(frozen=True)
class RunPlan:
    """Settings, sizes, rates, measurements, and the digests of the data.

    Attributes
    ----------
    settings
        What was asked for; never changed later.
    model
        The model's configuration.
    rates, validation_steps
        One rate an update; steps to measure at.
    data
        ``corpus``, ``split``, ``tokenizer`` and ``tokens``: SHA-256 of each.
    batches_per_epoch
        Batches of one pass over the training windows.
    options
        How the run was begun; nothing depends on it.
    extensions
        Updates that were added after the run had been planned.
    contract_version
        Of docs/numerics.md.
    initial
        What the run begins with when not at its seed: SHA-256 of ``initial.safetensors``, digest of
        its parameters, and where they came from.
    """

    settings: TrainSettings
    model: ModelConfig
    rates: tuple[float, ...]
    validation_steps: tuple[int, ...]
    data: dict[str, str]
    batches_per_epoch: int
    options: JobOptions
    extensions: tuple[dict[str, Any], ...] = ()
    contract_version: int = CONTRACT_VERSION
    initial: dict[str, Any] | None = None

    @property
    def steps(self) -> int:
        """Planned updates."""
        return len(self.rates)

    @property
    def optimizer(self) -> AdamWConfig:
        """AdamW's own settings."""
        return self.settings.optimizer_config()

    @property
    def groups(self) -> ParameterGroups:
        """Gains do not decay."""
        return ParameterGroups.from_rule(self.model.parameter_shapes())

    @property
    def window_config(self) -> WindowConfig:
        """Windows of the updates."""
        context = self.settings.context_length
        return WindowConfig(context, self.settings.stride or context)

    def trainer_config(self, micro_batch_size: int) -> TrainerConfig:
        """The plan as the trainer takes it; 0 rows are the whole batch."""
        return TrainerConfig(
            LearningRateSchedule(self.rates),
            self.validation_steps,
            self.settings.max_grad_norm,
            micro_batch_size=micro_batch_size or None,
        )

    def identity(self) -> dict[str, Any]:
        """What the history of the run starts from; floats as bits."""
        identity: dict[str, Any] = with_float_bits(
            {
                "contract_version": self.contract_version,
                "settings": self.settings.to_dict(),
                "model": self.model.to_dict(),
                "order": ORDER_RULE,
                "batches_per_epoch": self.batches_per_epoch,
                "data": self.data,
            }
        )
        if self.initial is not None:  # where it came from changes no bit
            identity["initial"] = {"sha256": self.initial["sha256"]}
        return identity

    def schedule_record(self, step: int) -> dict[str, Any]:
        """The planned rates, and where the run stands in them."""
        return {
            "planned_steps": self.steps,
            "rates_sha256": _rates_digest(self.rates),
            "next_rate": self.rates[step] if step < self.steps else None,
        }

    def validation_record(self, step: int) -> dict[str, Any]:
        """The planned measurements, and the next one."""
        return {
            "count": len(self.validation_steps),
            "steps_sha256": _steps_digest(self.validation_steps),
            "next": next((s for s in self.validation_steps if s > step), None),
        }

    def check_described(self, described: dict[str, Any]) -> None:
        """Compare with what a job checkpoint says; a plan may have been extended since.

        Raises
        ------
        RunError
            ``RunChanged`` naming the first field that differs.
        """
        found = first_difference(described["identity"], self.identity())
        if found is not None:
            raise _changed(*found)
        schedule, validation = described["schedule"], described["validation"]
        planned, count = schedule["planned_steps"], validation["count"]
        if _rates_digest(self.rates[:planned]) != schedule["rates_sha256"]:
            raise _changed("learning_rates", "those of the checkpoint", "other ones")
        if _steps_digest(self.validation_steps[:count]) != validation["steps_sha256"]:
            raise _changed("validation_steps", "those of the checkpoint", "other ones")

    def extended(self, schedule: LearningRateSchedule, described: dict[str, Any]) -> RunPlan:
        """The same run with more updates at the end.

        Parameters
        ----------
        schedule
            Rates of the new updates.
        described
            How they were made, for the record.

        Raises
        ------
        OptimizerError
            For a rate that AdamW's settings do not allow.
        """
        for rate in schedule.rates():
            self.optimizer.with_learning_rate(rate)
        last = self.steps + schedule.steps()
        every = self.settings.eval_every
        first = (self.steps // every + 1) * every
        measured = [*self.validation_steps, *range(first, last, every), last]
        entry = {"after_step": self.steps, "steps": schedule.steps(), **described}
        return replace(
            self,
            rates=(*self.rates, *schedule.rates()),
            validation_steps=tuple(measured),
            extensions=(*self.extensions, entry),
        )

    # ------------------------------------------------------------------ config.json
    def to_dict(self) -> dict[str, Any]:
        """The content of ``config.json``."""
        values = {
            "format": FORMAT,
            "llmcy_version": __version__,
            "contract_version": self.contract_version,
            "settings": self.settings.to_dict(),
            "model": self.model.to_dict(),
            "optimizer": self.optimizer.to_dict(),
            "order": ORDER_RULE,
            "batches_per_epoch": self.batches_per_epoch,
            "data": self.data,
            "learning_rates": list(self.rates),
            "validation_steps": list(self.validation_steps),
            "extensions": list(self.extensions),
            "options": self.options.to_dict(),
        }
        if self.initial is not None:
            values["initial"] = self.initial
        return values

    @classmethod
    def from_dict(cls, values: dict[str, Any], vocab_size: int) -> RunPlan:
        """The inverse of :meth:`to_dict`; what follows from something else must agree with it.

        Raises
        ------
        RunError
            ``RunChanged`` naming a field that does not agree.
        """
        try:
            settings = TrainSettings.from_dict(values["settings"])
            planned = settings.trainer_config(values["batches_per_epoch"])
            plan = cls(
                settings,
                settings.model_config(vocab_size),
                tuple(values["learning_rates"]),
                tuple(values["validation_steps"]),
                dict(values["data"]),
                values["batches_per_epoch"],
                JobOptions(**values["options"]),
                tuple(values["extensions"]),
                initial=_initial_record(values.get("initial")),
            )
            plan.trainer_config(0)
        except (LlmcyError, KeyError, TypeError, ValueError) as error:
            raise RunError(
                "RunChanged",
                f"config.json: {type(error).__name__}: {error}",
                cause=error,
                field="config.json",
                expected=None,
                actual=str(error),
            ) from error
        written = plan.to_dict() | {
            "llmcy_version": values.get("llmcy_version"),
            "learning_rates": [*planned.schedule.rates(), *plan.rates[planned.schedule.steps() :]],
            "validation_steps": [
                *planned.validation_steps,
                *plan.validation_steps[len(planned.validation_steps) :],
            ],
        }
        found = first_difference(with_float_bits(written), with_float_bits(values))
        if found is not None:
            raise _changed(*found)
        return plan


def _initial_record(value: Any) -> dict[str, Any] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or set(value) != set(INITIAL_FIELDS):
        raise ValueError(f"initial must have exactly {', '.join(INITIAL_FIELDS)}, got {value!r}")
    return value


def _rates_digest(rates: Sequence[float]) -> str:
    return sha256_hex(struct.pack(f"<{len(rates)}d", *rates))


def _steps_digest(steps: Sequence[int]) -> str:
    return sha256_hex(struct.pack(f"<{len(steps)}Q", *steps))


def _changed(field: str, expected: Any, actual: Any) -> RunError:
    return RunError(
        "RunChanged",
        f"the run has changed: {field} was {expected}, is now {actual}",
        field=field,
        expected=expected,
        actual=actual,
    )
