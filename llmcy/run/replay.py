"""Executing steps of a run again, and comparing every record and kept state with what is stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llmcy.run.canonical import first_difference
from llmcy.run.checkpoints import read_checkpoint
from llmcy.run.findings import Disproof, Findings
from llmcy.run.history import (
    UNCHAINED,
    evaluation_record,
    history_start,
    next_history,
    step_record,
)
from llmcy.run.initial import read_initial
from llmcy.run.job_file import encode_state_file
from llmcy.run.sessions import open_session
from llmcy.run.verify_records import EVALUATIONS, STEPS, Records
from llmcy.run.verify_states import StateChecker, named_best
from llmcy.trainer import Advance, TrainingSession

__all__ = ["Replay", "Segment"]

Segment = tuple[int, int]
"""Steps from one kept state to another; 0 is the beginning, from the seed or the initial model."""


class Replay:
    """Executes segments of a run again.

    Parameters
    ----------
    checker
        The run and its state files.
    records
        What the logs say.
    found
        Where results go.
    progress
        Called with every step that was executed.
    """

    def __init__(
        self,
        checker: StateChecker,
        records: Records,
        found: Findings,
        progress: Callable[[int], object] | None = None,
    ) -> None:
        self._checker = checker
        self._records = records
        self._found = found
        self._progress = progress
        self._selected: tuple[int, bytes, str] | None = None  # step, file, digest of its tensors

    def segment(self, segment: Segment) -> bool:
        """Execute the steps of one segment; True when everything had the same bits.

        Ends at the first difference.

        Raises
        ------
        LlmcyError
            When the state at its beginning cannot be read, or a step fails.
        """
        start, end = segment
        session, history = self._begin(start)
        present = set(self._checker.folder.steps())
        updates = measurements = 0
        kept: list[int] = []
        while session.step != end:
            done = session.advance()
            history, wrong = self._compare_records(done, history)
            if wrong is None and done.step in present:
                wrong = self._compare_state(session, done.step, history)
                kept.append(done.step)
            if wrong is not None:
                self._found.disproved.append(wrong)
                return False
            updates += done.update is not None
            measurements += done.measurement is not None
            if self._progress is not None:
                self._progress(done.step)
        states = f"the kept states of steps {', '.join(map(str, kept))}" if kept else "no state"
        self._found.proved.append(
            f"replay of steps {start}..{end}: {updates} updates and {measurements} measurements "
            f"executed again; every record line, and every parameter and moment of {states}, has "
            "the same bits"
        )
        return True

    def _begin(self, start: int) -> tuple[TrainingSession, str]:
        plan = self._checker.plan
        held, history, initial = None, history_start(plan.identity()), None
        if start == 0:
            initial = read_initial(self._checker.run, plan)
        else:
            held = read_checkpoint(self._checker.folder, start)
            history = str(held[0].described["history"])
        rows = plan.options.micro_batch_size
        session = open_session(plan, self._checker.epochs, held, rows, initial=initial)
        return session, history

    def _compare_records(self, done: Advance, history: str) -> tuple[str, Disproof | None]:
        step = done.step
        if done.update is not None:
            record = step_record(done.update, self._checker.epochs.update.position(step))
            history = next_history(history, record)
            wrong = self._compare_record(STEPS, step, record, self._records.updates.get(step))
            if wrong is not None:
                return history, wrong
        if done.measurement is not None:
            record = evaluation_record(done.measurement)
            history = next_history(history, record)
            stored = self._records.evaluations.get(step)
            return history, self._compare_record(EVALUATIONS, step, record, stored)
        return history, None

    def _compare_record(
        self, name: str, step: int, record: dict[str, Any], stored: dict[str, Any] | None
    ) -> Disproof | None:
        if stored is None:
            if not self._records.right:
                return None  # the logs are disproved from an earlier line on
            return Disproof(f"{name}: the record of step {step} is missing", name, step)
        held = {key: value for key, value in stored.items() if key not in UNCHAINED}
        difference = first_difference(record, held)
        if difference is None:
            return None
        field, replayed, written = difference
        return Disproof(
            f"{name}: step {step}, {field}: stored {written!r}, the replay gives {replayed!r}",
            name,
            step,
            field,
        )

    def _compare_state(self, session: TrainingSession, step: int, history: str) -> Disproof | None:
        checker = self._checker
        config, best = checker.plan.model, session.best
        assert best is not None  # step 0 is always measured
        if self._selected is None or self._selected[0] != best.step:
            selected, digest = encode_state_file(
                best.state.model,
                config,
                best.state.optimizer,
                checker.described_selected(best),
            )
            self._selected = best.step, selected, digest
        _, selected, digest = self._selected
        path = checker.folder.path(step)
        described = checker.described_job(step, history, checker.stored_description(path))
        data, _ = encode_state_file(
            [(name, parameter.data) for name, parameter in session.model.named_parameters()],
            config,
            session.optimizer.snapshot(),
            described | {"best": named_best(best.step, best.validation_loss, digest)},
        )
        wrong = checker.compare(path, data, step)
        selected_path = checker.folder.selected_path(best.step)
        if wrong is None and selected_path.exists():
            wrong = checker.compare(selected_path, selected, best.step)
        return wrong
