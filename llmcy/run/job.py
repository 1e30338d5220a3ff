"""A run at work: the session, its folder, its history, and the checkpoints in between."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from llmcy.data import MiniBatchEpoch, TextDataset
from llmcy.errors import LlmcyError, RunError
from llmcy.model import Decoder
from llmcy.run.checkpoints import CheckpointFolder, read_checkpoint
from llmcy.run.directory import RunDirectory
from llmcy.run.extension import Extension, extended_plan
from llmcy.run.history import chained, evaluation_record, history_start, step_record
from llmcy.run.initial import read_initial
from llmcy.run.job_file import StateFile
from llmcy.run.log import RecordLog, last_record_until
from llmcy.run.options import JobOptions
from llmcy.run.plan import RunPlan
from llmcy.run.sessions import describe_job, describe_selected, make_epochs, open_session
from llmcy.trainer import Advance, LossCheckpoint, TrainingStep

__all__ = ["Added", "Job", "Watcher"]

Added = Extension | Callable[[RunPlan], Extension]
STEPS, EVALUATIONS = "steps.jsonl", "evaluations.jsonl"


@dataclass(frozen=True)
class Watcher:
    """Who is told what a run does.

    Attributes
    ----------
    on_start
        The model, the first update epoch, and the numbers of finished and of planned updates.
    on_step, on_checkpoint
        Every update; every measurement.
    on_save
        The step of every checkpoint that became durable.
    on_problem
        One line of text for what went wrong without ending the run.
    """

    on_start: Callable[[Decoder, MiniBatchEpoch, int, int], object] | None = None
    on_step: Callable[[TrainingStep], object] | None = None
    on_checkpoint: Callable[[LossCheckpoint], object] | None = None
    on_save: Callable[[int], object] | None = None
    on_problem: Callable[[str], object] | None = None


class Job:
    """A run that is open: it stands after a step, and :meth:`run` takes it to the end.

    Parameters
    ----------
    directory
        The run folder, complete and locked.
    plan, dataset
        What ``config.json`` and the stored data say.
    options
        How to carry it out.
    watcher
        Who is told.
    extend
        Updates to add, or what tells them from the plan.  Unless they had been added before,
        :attr:`plan` is then a longer one, which the caller writes down.

    Raises
    ------
    RunError
        ``RunChanged``, ``NoValidCheckpoint``, ``InvalidRecord``, ``ExtensionRefused``, ``Io``.

    Notes
    -----
    The newest valid checkpoint decides where the run stands; without any the run stands before
    step 0.  Log lines beyond it are cut off, the run will write them again.
    """

    def __init__(
        self,
        directory: RunDirectory,
        plan: RunPlan,
        dataset: TextDataset,
        options: JobOptions,
        watcher: Watcher,
        extend: Added | None = None,
    ) -> None:
        self.directory = directory
        self.plan = plan
        self.dataset = dataset
        self.options = options
        self._watcher = watcher
        self.epochs = make_epochs(dataset, plan.settings)
        self.folder = CheckpointFolder(directory.path, options.keep_last, options.keep_every)
        directory.sweep()
        self.folder.sweep()
        held = self._newest_valid()
        if extend is not None:
            self._extend(extend, held)
        initial = read_initial(directory.path, plan) if held is None else None
        self.session = open_session(
            self.plan, self.epochs, held, options.micro_batch_size, initial=initial
        )
        if held is None:
            self.history = history_start(plan.identity())
            sizes = 0, 0
        else:
            job, selected = held
            self.history = job.described["history"]
            self.folder.know(job.step, selected.step, selected.tensors_sha256)
            sizes = self._log_sizes(job)
        self._saved_at = self.session.step
        self._steps = RecordLog(directory.path / STEPS, sizes[0])
        self._evaluations = RecordLog(directory.path / EVALUATIONS, sizes[1])

    def close(self) -> None:
        """Close the logs."""
        self._steps.close()
        self._evaluations.close()

    # ------------------------------------------------------------------ finding the place
    def _newest_valid(self) -> tuple[StateFile, StateFile] | None:
        """The newest checkpoint that everything agrees with, and the selected state it names."""
        problems = []
        for step in reversed(self.folder.steps()):
            try:
                held = read_checkpoint(self.folder, step)
                self.plan.check_described(held[0].described)
                self._log_sizes(held[0])
            except RunError as error:
                if error.kind == "RunChanged":
                    raise
                problems.append(str(error))
                continue
            for problem in problems:
                self._tell(f"skipped a checkpoint: {problem}")
            return held
        if problems:
            raise RunError(
                "NoValidCheckpoint",
                f"{str(self.directory.path)!r} has no valid checkpoint: {'; '.join(problems)}",
                path=str(self.directory.path),
                problems=tuple(problems),
            )
        return None

    def _extend(self, extend: Added, held: tuple[StateFile, StateFile] | None) -> None:
        """Take the longer plan; after a kill the run may have it already."""
        plan = self.plan
        if not isinstance(extend, Extension):
            extend = extend(plan)
        finished = held is not None and held[0].step == plan.steps and self._summarized(held[0])
        self.plan = extended_plan(plan, extend, finished=finished)
        if self.plan is plan:
            self._tell("the updates to add are in the plan already; none are added")

    def _summarized(self, job: StateFile) -> bool:
        """Has the run been concluded at this checkpoint?"""
        try:
            summary = self.directory.read_json("summary.json")
        except RunError:
            return False
        return isinstance(summary, dict) and summary.get("history") == job.described["history"]

    def _log_sizes(self, job: StateFile) -> tuple[int, int]:
        """Bytes of both logs up to a checkpoint, whose last line must be the checkpoint's."""
        step = job.step
        steps_path = self.directory.path / STEPS
        evaluations_path = self.directory.path / EVALUATIONS
        steps_size, last_step = last_record_until(steps_path, step)
        evaluations_size, last_evaluation = last_record_until(evaluations_path, step)
        reached = 0 if last_step is None else last_step["step"]
        if reached != step:
            raise _invalid_record(
                steps_path, step, f"it ends at step {reached}, the checkpoint is at step {step}"
            )
        measured = max(s for s in self.plan.validation_steps if s <= step)
        if last_evaluation is None or last_evaluation["step"] != measured:
            raise _invalid_record(
                evaluations_path, step, f"it has no measurement of step {measured}"
            )
        last = last_evaluation if measured == step else last_step
        assert last is not None
        if last.get("history") != job.described["history"]:
            raise _invalid_record(
                evaluations_path if measured == step else steps_path,
                step,
                f"the record of step {step} does not have the history of the checkpoint",
            )
        return steps_size, evaluations_size

    # ------------------------------------------------------------------ running
    def run(self, stop: Callable[[], bool]) -> None:
        """Do every step that is left, or stop after the one at which ``stop`` says so.

        Raises
        ------
        RunError
            ``Stopped`` when it was asked to; ``SaveFailed`` when something could not be written.
        TrainerError
            As :class:`TrainingSession`.
        """
        session = self.session
        if self._watcher.on_start is not None:
            self._watcher.on_start(
                session.model, self.epochs.update.epoch(0), session.step or 0, self.plan.steps
            )
        while not session.finished:
            started = time.monotonic()
            done = session.advance()
            self._record(done, time.monotonic() - started)
            last = session.finished
            asked = stop() and not last
            if last or asked or self._due(done.step):
                self._save(must=last or asked)
            if asked:
                raise RunError(
                    "Stopped",
                    f"stopped after step {done.step} of {self.plan.steps} as asked; "
                    f"llmcy resume {self.directory.path} continues",
                    path=str(self.directory.path),
                    step=done.step,
                    planned=self.plan.steps,
                )

    def _due(self, step: int) -> bool:
        every = self.options.checkpoint_every
        return step == 0 or (every > 0 and step % every == 0)

    def _record(self, done: Advance, seconds: float) -> None:
        if done.update is not None:
            record = step_record(done.update, self.epochs.update.position(done.step))
            self.history, line = chained(self.history, record, wall_seconds=round(seconds, 6))
            self._append(self._steps, done.step, line)
            if self._watcher.on_step is not None:
                self._watcher.on_step(done.update)
        if done.measurement is not None:
            self.history, line = chained(self.history, evaluation_record(done.measurement))
            self._append(self._evaluations, done.step, line)
            if self._watcher.on_checkpoint is not None:
                self._watcher.on_checkpoint(done.measurement)

    def _append(self, log: RecordLog, step: int, line: dict[str, Any]) -> None:
        try:
            log.append(line)
        except RunError as error:
            self._failed(f"the record of step {step}", error, must=False)

    def _save(self, *, must: bool) -> None:
        """Publish a checkpoint of where the session stands."""
        session = self.session
        step, best = session.step, session.best
        assert step is not None
        assert best is not None  # step 0 is always measured
        try:
            self._steps.synchronize()  # records first: a checkpoint never runs ahead of them
            self._evaluations.synchronize()
            self.folder.save(
                [(name, p.data) for name, p in session.model.named_parameters()],
                session.optimizer.lent_snapshot(),
                best,
                describe_job(self.plan, self.epochs, self.dataset.tokenizer, step, self.history),
                describe_selected(self.plan, self.dataset.tokenizer, best),
            )
        except (LlmcyError, OSError, MemoryError) as error:
            self._failed(f"the checkpoint of step {step}", error, must=must)
            return
        self._saved_at = step
        if self._watcher.on_save is not None:
            self._watcher.on_save(step)

    def _failed(self, what: str, error: Exception, *, must: bool) -> None:
        text = f"cannot save {what}: {error}"
        if self.options.on_save_error == "continue" and not must:
            self._tell(text)
            return
        saved = self._saved_at
        held = "no checkpoint has been saved" if saved is None else f"step {saved} is saved"
        raise RunError(
            "SaveFailed",
            f"{text}; {held}",
            cause=error,
            path=str(self.directory.path),
            step=saved,
        ) from error

    def _tell(self, text: str) -> None:
        if self._watcher.on_problem is not None:
            self._watcher.on_problem(text)


def _invalid_record(path: Any, step: int, problem: str) -> RunError:
    return RunError(
        "InvalidRecord", f"{str(path)!r}: {problem}", path=str(path), step=step, problem=problem
    )
