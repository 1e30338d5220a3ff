"""The state files of a run folder: published one by one, kept by a rule, found again when valid."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from llmcy.atomic_file import publish, sweep_temporaries
from llmcy.errors import LlmcyError, RunError
from llmcy.optim import OptimizerSnapshot
from llmcy.run.job_file import (
    Array,
    StateFile,
    describe_state_file,
    encode_state_pieces,
    read_state_file,
)
from llmcy.trainer import Best

__all__ = ["CheckpointFolder", "newest_selected", "read_checkpoint", "step_of"]

CHECKPOINTS, SELECTED = "checkpoints", "selected"
_NAME = re.compile(r"step-(\d{8,})\.safetensors")


def step_of(path: Path) -> int | None:
    """The step in the name of a state file; None for other names."""
    match = _NAME.fullmatch(path.name)
    return None if match is None else int(match[1])


def _listed(folder: Path) -> list[tuple[int, Path]]:
    """(step, path) of every state file by name, ascending; unreadable folders hold none."""
    found = []
    with suppress(FileNotFoundError):
        for path in folder.iterdir():
            step = step_of(path)
            if step is not None:
                found.append((step, path))
    return sorted(found)


def newest_selected(run: Path) -> Path | None:
    """The selected state with the highest step in a run folder."""
    listed = _listed(run / SELECTED)
    return listed[-1][1] if listed else None


class CheckpointFolder:
    """Job checkpoints and selected states of one run.

    Parameters
    ----------
    run
        The run folder; ``checkpoints/`` and ``selected/`` in it must exist.
    keep_last, keep_every
        The newest ``keep_last`` checkpoints stay (>= 1), and those whose step is a multiple of
        ``keep_every`` (0: none for that reason).  A selected state stays as long as a checkpoint
        that stays names it.
    """

    def __init__(self, run: Path, keep_last: int, keep_every: int) -> None:
        self.checkpoints = run / CHECKPOINTS
        self.selected = run / SELECTED
        self._keep_last = keep_last
        self._keep_every = keep_every
        self._names: dict[int, int] = {}  # step of a checkpoint -> step of the state it names
        self._selected: tuple[int, str] | None = None  # of the newest durable selected state

    def sweep(self) -> list[str]:
        """Remove what killed writers left half-written."""
        return sweep_temporaries(self.checkpoints) + sweep_temporaries(self.selected)

    def steps(self) -> list[int]:
        """Steps of the checkpoints present, ascending."""
        return [step for step, _ in _listed(self.checkpoints)]

    def selected_steps(self) -> list[int]:
        """Steps of the selected states present, ascending."""
        return [step for step, _ in _listed(self.selected)]

    def path(self, step: int) -> Path:
        """Where the checkpoint of ``step`` is or will be."""
        return self.checkpoints / f"step-{step:08}.safetensors"

    def selected_path(self, step: int) -> Path:
        """Where the selected state of ``step`` is or will be."""
        return self.selected / f"step-{step:08}.safetensors"

    # ------------------------------------------------------------------ writing
    def save(
        self,
        parameters: list[tuple[str, Array]],
        optimizer: OptimizerSnapshot,
        best: Best,
        described: Mapping[str, Any],
        selected_described: Mapping[str, Any],
    ) -> Path:
        """Make the selected state durable, then the checkpoint that names it, then remove old ones.

        Raises
        ------
        LlmcyError
            What went wrong; the checkpoints present before are whole.
        """
        config = best.state.model.config
        if self._selected is None or self._selected[0] != best.step:
            data, digest = encode_state_pieces(
                best.state.model, config, best.state.optimizer, selected_described
            )
            publish(self.selected_path(best.step), data)
            self._selected = best.step, digest
        named = {
            "step": best.step,
            "validation_loss": best.validation_loss,
            "tensors_sha256": self._selected[1],
        }
        data, _ = encode_state_pieces(parameters, config, optimizer, {**described, "best": named})
        path = self.path(optimizer.step)
        publish(path, data)
        self._names[optimizer.step] = best.step
        self._retain(optimizer.step)
        return path

    def know(self, step: int, best_step: int, best_digest: str) -> None:
        """Tell what the checkpoint a run continues from names; its files are durable."""
        self._names[step] = best_step
        self._selected = best_step, best_digest

    def _retain(self, newest: int) -> None:
        """Remove the files that no rule keeps; their successor, ``newest``, is on the disk.

        Checkpoints with a higher step are leftovers that were not valid: they count for nothing and
        stay until the run gets there and replaces them.
        """
        present = [step for step in self.steps() if step <= newest]
        kept = set(present[-self._keep_last :])
        if self._keep_every:
            kept |= {step for step in present if step % self._keep_every == 0}
        for step in present:
            if step not in kept:
                _remove(self.path(step))
        named = {self.named_by(step) for step in kept}
        if None in named:  # a checkpoint that cannot be read may name any of them
            return
        for step, path in _listed(self.selected):
            if step not in named and step <= newest:
                _remove(path)

    def named_by(self, step: int) -> int | None:
        """The step of the selected state that a checkpoint names; None if it cannot be read."""
        if step not in self._names:
            try:
                self._names[step] = int(describe_state_file(self.path(step))["best"]["step"])
            except (LlmcyError, KeyError, TypeError, ValueError):
                return None
        return self._names[step]


def _remove(path: Path) -> None:
    try:
        os.unlink(path)
    except FileNotFoundError:
        pass
    except OSError as error:
        raise RunError(
            "Io",
            f"cannot remove {str(path)!r}: {error.strerror}",
            cause=error,
            operation="remove",
            path=str(path),
        ) from error


def read_checkpoint(folder: CheckpointFolder, step: int) -> tuple[StateFile, StateFile]:
    """A job checkpoint and the selected state it names, both checked.

    Raises
    ------
    RunError
        As :func:`read_state_file`; ``InvalidJobFile`` when the two do not belong together.
    """
    job = read_state_file(folder.path(step), "job")
    named = job.described["best"]
    selected = read_state_file(folder.selected_path(int(named["step"])), "selected")
    for field, expected, actual in (
        ("step", step, job.step),
        ("best.step", named["step"], selected.step),
        ("best.tensors_sha256", named["tensors_sha256"], selected.tensors_sha256),
        (
            "best.validation_loss",
            named["validation_loss"],
            selected.described.get("validation_loss"),
        ),
        ("model", job.described["model"], selected.described["model"]),
    ):
        if expected != actual:
            raise RunError(
                "InvalidJobFile",
                f"{str(job.path)!r}: {field}: expected {expected}, found {actual}",
                path=str(job.path),
                field=field,
                problem=f"expected {expected}, found {actual}",
            )
    return job, selected
