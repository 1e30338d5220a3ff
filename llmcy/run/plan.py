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
from llmcy.run.settings import TrainSettings, make_schedule
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

    def extended(
        self, schedule: LearningRateSchedule, described: dict[str, Any], eval_at: Sequence[int] = ()
    ) -> RunPlan:
        """The same run with more updates at the end.

        Parameters
        ----------
        schedule
            Rates of the new updates.
        described
            How they were made, for the record.
        eval_at
            Steps of the run to measure at, all of them new.  Without any the cadence of the
            settings goes on; a run whose steps were listed has none.  The last step is measured.

        Raises
        ------
        OptimizerError
            For a rate that AdamW's settings do not allow.
        TrainerError
            For steps to measure at that do not increase or are outside the new stretch.
        """
        for rate in schedule.rates():
            self.optimizer.with_learning_rate(rate)
        last = self.steps + schedule.steps()
        measured = list(eval_at)
        if not measured and not self.settings.eval_at:
            every = self.settings.eval_every
            measured = list(range((self.steps // every + 1) * every, last, every))
        if not measured or measured[-1] != last:
            measured.append(last)
        entry = {
            "after_step": self.steps,
            "steps": schedule.steps(),
            "eval_at": list(eval_at),
            **described,
        }
        longer = replace(
            self,
            rates=(*self.rates, *schedule.rates()),
            validation_steps=(*self.validation_steps, *measured),
            extensions=(*self.extensions, entry),
        )
        longer.trainer_config(0)  # refuses steps that make no plan
        return longer

    def extended_to(self, last: int) -> int:
        """The step after which the extension begins, or would begin, that ends at step ``last``."""
        for entry in self.extensions:
            if entry["after_step"] + entry["steps"] == last:
                return int(entry["after_step"])
        return self.steps

    def until(self, after: int) -> RunPlan:
        """The plan before the extension that begins after a step.

        Raises
        ------
        KeyError
            When none does.
        """
        for index, entry in enumerate(self.extensions):
            if entry["after_step"] == after:
                return replace(
                    self,
                    rates=self.rates[:after],
                    validation_steps=tuple(s for s in self.validation_steps if s <= after),
                    extensions=self.extensions[:index],
                )
        raise KeyError(after)

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
                planned.schedule.rates(),
                planned.validation_steps,
                dict(values["data"]),
                values["batches_per_epoch"],
                JobOptions(**values["options"]),
                initial=_initial_record(values.get("initial")),
            )
            for entry in values["extensions"]:
                listed = values["learning_rates"][plan.steps :]
                plan = plan.extended(*_extension(entry, listed))
        except (LlmcyError, KeyError, TypeError, ValueError) as error:
            raise RunError(
                "RunChanged",
                f"config.json: {type(error).__name__}: {error}",
                cause=error,
                field="config.json",
                expected=None,
                actual=str(error),
            ) from error
        written = plan.to_dict() | {"llmcy_version": values.get("llmcy_version")}
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


def _extension(
    entry: dict[str, Any], listed: Sequence[float]
) -> tuple[LearningRateSchedule, dict[str, Any], Sequence[int]]:
    """What :meth:`RunPlan.extended` was called with, from its entry and the rates from there on."""
    described = dict(entry)
    steps, eval_at = described.pop("steps"), described.pop("eval_at")
    del described["after_step"]
    if described["schedule"] == "list":
        return LearningRateSchedule(listed[:steps]), described, eval_at
    formula = {name: value for name, value in described.items() if name != "schedule"}
    return make_schedule(described["schedule"], steps, **formula), described, eval_at


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
