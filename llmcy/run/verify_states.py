"""The state files of a run: every digest, and agreement with plan, records and one another."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from safetensors.numpy import load as load_tensors

from llmcy.data import TextDataset
from llmcy.errors import LlmcyError, RunError
from llmcy.run.canonical import first_difference, float_bits, float_from_bits
from llmcy.run.checkpoints import CheckpointFolder, read_checkpoint
from llmcy.run.diff import diff_states
from llmcy.run.findings import Disproof, Findings
from llmcy.run.job_file import (
    StateFile,
    describe_state_file,
    encode_state_file,
    read_state_file,
)
from llmcy.run.plan import RunPlan
from llmcy.run.sessions import Epochs, describe_job, describe_selected
from llmcy.run.state_layout import METADATA_KEY
from llmcy.run.stored_state import read_stored_state
from llmcy.run.tensor_difference import compare_tensors
from llmcy.run.verify_records import Records
from llmcy.state import DecoderModelState
from llmcy.trainer import Best

__all__ = ["StateChecker", "disproof_of", "named_best", "restored_best"]


def disproof_of(error: RunError, folder: Path, step: int | None = None) -> Disproof | None:
    """What an error of reading says about the run; None when it only says that reading failed."""
    if error.kind in ("Io", "NotARun", "Locked"):
        return None
    path = error.fields.get("path")
    file = None if path is None else str(Path(path).relative_to(folder))
    field: Any = error.fields.get("field")
    tensor: str | None = None
    if isinstance(field, str) and field.startswith("tensor "):
        tensor, field = field.removeprefix("tensor "), None
    if step is None:
        step = error.fields.get("step")
    return Disproof(str(error), file, step, field, tensor)


def named_best(step: int, loss: float, digest: str) -> dict[str, Any]:
    """How a checkpoint names the selected state."""
    return {"step": step, "validation_loss": float_bits(loss), "tensors_sha256": digest}


def restored_best(selected: StateFile) -> Best:
    """The best state of a run from its file."""
    loss = float_from_bits(selected.described["validation_loss"])
    return Best.restored(loss, selected.step, selected.model, selected.optimizer)


class _Unreadable(Exception):
    """A file that is not there or cannot be read."""


class StateChecker:
    """Compares state files with what the run must have written.

    Parameters
    ----------
    folder
        The state files.
    plan, dataset, epochs
        What the run is.
    """

    def __init__(
        self, folder: CheckpointFolder, plan: RunPlan, dataset: TextDataset, epochs: Epochs
    ) -> None:
        self.folder = folder
        self.run = folder.checkpoints.parent
        self.plan = plan
        self.dataset = dataset
        self.epochs = epochs

    # ------------------------------------------------------------------ on their own
    def check_identity(self, found: Findings) -> None:
        """The newest readable checkpoint must belong to this configuration."""
        for step in reversed(self.folder.steps()):
            try:
                self.plan.check_described(describe_state_file(self.folder.path(step)))
            except RunError as error:
                if error.kind != "RunChanged":
                    continue
                disproof = disproof_of(error, self.run, step)
                assert disproof is not None
                found.disproved.append(replace(disproof, file="config.json", step=None))
            except (KeyError, TypeError):
                continue
            return

    def check_all(self, records: Records, found: Findings) -> list[int]:
        """Every file; the steps of the checkpoints that are right."""
        right = []
        for step in self.folder.steps():
            try:
                problem = self._check(step, records)
            except OSError as error:
                found.problems.append(f"the checkpoint of step {step}: {error}")
            except _Unreadable as error:
                found.problems.append(str(error))
            else:
                if problem is None:
                    right.append(step)
                else:
                    found.disproved.append(problem)
        if right:
            found.proved.append(
                f"checkpoints of steps {', '.join(map(str, right))}, and the selected states they "
                "name: every digest holds, they fit the plan and the records"
            )
        return right

    def _check(self, step: int, records: Records) -> Disproof | None:
        path = self.folder.path(step)
        name = str(path.relative_to(self.run))
        try:
            job, selected = read_checkpoint(self.folder, step)
            self.plan.check_described(job.described)
        except RunError as error:
            disproof = disproof_of(error, self.run, step)
            if disproof is None:
                raise _Unreadable(str(error)) from error
            return disproof
        except (KeyError, TypeError, ValueError) as error:
            return Disproof(f"{name}: its metadata lacks {error}", name, step)
        history = str(job.described.get("history"))
        if records.right:
            wrong = self._against_records(name, job, selected, records)
            if wrong is not None:
                return wrong
            history = records.histories[step]
        best = restored_best(selected)
        named = str(selected.path.relative_to(self.run))
        expected = self.described_job(step, history, job.described)
        return self._whole_file(
            name, job, expected | {"best": job.described["best"]}
        ) or self._whole_file(named, selected, self.described_selected(best))

    def _against_records(
        self, name: str, job: StateFile, selected: StateFile, records: Records
    ) -> Disproof | None:
        step = job.step
        if step > records.last_step:
            text = f"{name}: it is at step {step}, the records end at step {records.last_step}"
            return Disproof(text, name, step)
        expected, actual = records.histories[step], job.described.get("history")
        if expected != actual:
            return Disproof(
                f"{name}: history is {actual}, the records of {step} steps give {expected}",
                name,
                step,
                "history",
            )
        best = records.best(step)
        assert best is not None  # step 0 is always measured
        named = named_best(best["step"], best["validation_loss"], selected.tensors_sha256)
        difference = first_difference(named, job.described["best"])
        if difference is not None:
            field, expected, actual = difference
            return Disproof(
                f"{name}: best.{field} is {actual}, the measurements give {expected}",
                name,
                step,
                f"best.{field}",
            )
        return None

    def _whole_file(
        self, name: str, job: StateFile, described: Mapping[str, Any]
    ) -> Disproof | None:
        """Encoded again from what was read and what the run is, it must give the same bytes."""
        model = list(job.model.named_arrays())
        data, _ = encode_state_file(model, self.plan.model, job.optimizer, described)
        if data == job.path.read_bytes():
            return None
        return self._metadata_difference(name, job.step, data, job.path) or Disproof(
            f"{name}: it is not in the form that this run writes", name, job.step
        )

    def model_at(self, step: int) -> DecoderModelState | None:
        """Parameters of a step from a selected state or checkpoint of this run, if one is whole."""
        for path in (self.folder.selected_path(step), self.folder.path(step)):
            try:
                state = read_state_file(path)
            except RunError:
                continue
            if state.step == step and state.described.get("identity") == self.plan.identity():
                return state.model
        return None

    # ------------------------------------------------------------------ against a replay
    def described_job(
        self, step: int, history: str, stored: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """What the run wrote at a step: the plan may have been extended since."""
        plan = self.plan
        try:
            assert stored is not None
            planned = int(stored["schedule"]["planned_steps"])
            count = int(stored["validation"]["count"])
        except (AssertionError, KeyError, TypeError, ValueError):
            pass
        else:
            if step <= planned <= plan.steps and 0 < count <= len(plan.validation_steps):
                plan = replace(
                    plan, rates=plan.rates[:planned], validation_steps=plan.validation_steps[:count]
                )
        return describe_job(plan, self.epochs, self.dataset.tokenizer, step, history)

    def stored_description(self, path: Path) -> dict[str, Any] | None:
        """The metadata of a state file, whether or not its digests hold."""
        try:
            return _metadata(path.read_bytes())
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def described_selected(self, best: Best) -> dict[str, Any]:
        """What the run wrote about a selected state."""
        return describe_selected(self.plan, self.dataset.tokenizer, best)

    def compare(self, path: Path, data: bytes, step: int) -> Disproof | None:
        """Compare a stored file with the bytes a replay gives; name the first difference."""
        stored = path.read_bytes()
        if stored == data:
            return None
        name = str(path.relative_to(self.run))
        try:
            read_state_file(path)
            damage = ""
        except RunError as error:
            damage = f" ({error})"
        tensor = self._tensor_difference(name, step, data, path, damage)
        if tensor is not None:
            return tensor
        return self._metadata_difference(name, step, data, path) or Disproof(
            f"{name}: not the bytes that a replay gives{damage}", name, step
        )

    def compare_export(self, path: Path, data: bytes, step: int) -> Disproof | None:
        """Compare an exported model with what the selected state gives; name the difference."""
        if path.read_bytes() == data:
            return None
        name = path.name
        where = f"{name}: not the selected state of step {step}"
        with TemporaryDirectory() as scratch:
            expected = Path(scratch, name)
            expected.write_bytes(data)
            try:
                difference = diff_states(expected, path)
            except LlmcyError as error:
                return Disproof(f"{where}: {error}", name, step)
        if difference.tensors:
            tensor = difference.tensors[0]
            index = list(tensor.first_index or ())
            text = f"{where}: tensor {tensor.name} differs, first at index {index}"
            return Disproof(text, name, step, None, tensor.name, tensor.first_index)
        field = difference.fields[0] if difference.fields else None
        text = where if field is None else f"{where}: {field.line()}"
        return Disproof(text, name, step, None if field is None else field.name)

    def _tensor_difference(
        self, name: str, step: int, data: bytes, path: Path, damage: str
    ) -> Disproof | None:
        replayed = load_tensors(data)
        try:
            stored = read_stored_state(path)
            for tensor in stored.names:
                if tensor not in replayed:
                    continue
                difference = compare_tensors(tensor, replayed[tensor], stored.tensor(tensor))
                if difference is not None:
                    where = list(difference.first_index or ())
                    values = difference.first_values or (None, None)
                    return Disproof(
                        f"{name}: step {step}, tensor {tensor}, index {where}: stored "
                        f"{values[1]!r}, the replay gives {values[0]!r}; {difference.differing} "
                        f"values of this tensor differ, by up to {difference.largest_ulps} ulp",
                        name,
                        step,
                        None,
                        tensor,
                        difference.first_index,
                    )
        except RunError as error:
            return Disproof(f"{name}: step {step}: {error}{damage}", name, step)
        return None

    def _metadata_difference(
        self, name: str, step: int, data: bytes, path: Path
    ) -> Disproof | None:
        try:
            expected, actual = (_metadata(content) for content in (data, path.read_bytes()))
        except (ValueError, KeyError, TypeError):
            return None
        for skipped in ("sha256",):  # follows from the others
            expected.pop(skipped, None)
            actual.pop(skipped, None)
        difference = first_difference(expected, actual)
        if difference is None:
            return None
        field, wanted, stored = difference
        return Disproof(
            f"{name}: step {step}, {field} is {stored!r}, expected {wanted!r}", name, step, field
        )


def _metadata(data: bytes) -> dict[str, Any]:
    length = int.from_bytes(data[:8], "little")
    described: dict[str, Any] = json.loads(
        json.loads(data[8 : 8 + length])["__metadata__"][METADATA_KEY]
    )
    return described
