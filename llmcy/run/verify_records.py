"""The two logs of a run, read whole and checked against each other and against the plan."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from llmcy.data import ReshuffledEpochs
from llmcy.run.findings import Disproof, Findings
from llmcy.run.history import history_start, next_history
from llmcy.run.plan import RunPlan

__all__ = ["EVALUATIONS", "STEPS", "Records", "check_records"]

STEPS, EVALUATIONS = "steps.jsonl", "evaluations.jsonl"
Record = dict[str, Any]


@dataclass
class Records:
    """The records of a run, by step, as far as they are right.

    Attributes
    ----------
    updates, evaluations
        By step.
    histories
        The digest after everything that happened at a step, computed from the records.
    last_step
        The last step that is complete; -1 when none is.
    right
        False when something in the logs is disproved; what follows it is not looked at.
    """

    updates: dict[int, Record] = field(default_factory=dict)
    evaluations: dict[int, Record] = field(default_factory=dict)
    histories: dict[int, str] = field(default_factory=dict)
    last_step: int = -1
    right: bool = True

    def best(self, step: int) -> Record | None:
        """The measurement up to a step with the smallest validation loss, the earliest if equal."""
        measured = [self.evaluations[s] for s in sorted(self.evaluations) if s <= step]
        return min(measured, key=lambda record: float(record["validation_loss"]), default=None)


class _Wrong(Exception):
    """``tail`` marks what a crash may leave behind the last saved step."""

    def __init__(self, disproof: Disproof, *, tail: bool = False) -> None:
        super().__init__(disproof.text)
        self.disproof = disproof
        self.tail = tail


def check_records(
    folder: Path, plan: RunPlan, update: ReshuffledEpochs, saved: int, found: Findings
) -> Records:
    """Check every line: its order, its own fields, the rate and place planned, and the chain.

    Parameters
    ----------
    folder
        The run folder.
    plan, update
        What the run was to do.
    saved
        Step of the newest checkpoint, -1 without one.  A crash may leave lines behind it that are
        no records or lack their neighbours in the other log.
    found
        Where the result goes.

    Raises
    ------
    OSError
        When a log that exists cannot be read.
    """
    records = Records()
    try:
        _walk(folder, plan, update, records, found)
    except _Wrong as wrong:
        if wrong.tail and records.last_step >= saved:
            found.not_proved.append(
                f"{wrong.disproof.text}; it lies behind the newest checkpoint and is cut off when "
                "the run continues"
            )
        else:
            records.right = False
            found.disproved.append(wrong.disproof)
    if records.last_step >= 0:
        found.proved.append(
            f"records: {len(records.updates)} updates and {len(records.evaluations)} measurements "
            f"up to step {records.last_step} follow the plan and one another, "
            f"history {records.histories[records.last_step]}"
        )
    return records


def _walk(
    folder: Path, plan: RunPlan, update: ReshuffledEpochs, records: Records, found: Findings
) -> None:
    steps = _lines(folder / STEPS, found)
    evaluations = _lines(folder / EVALUATIONS, found)
    history = history_start(plan.identity())
    measured = frozenset(plan.validation_steps)
    best: float | None = None
    for step in range(plan.steps + 1):
        if step > 0:
            line = next(steps, None)
            if line is None:
                break
            _check_line(STEPS, line, step)
            _check_update(line, step, plan, update)
            history = _chain(STEPS, line, step, history)
            records.updates[step] = line
        if step in measured:
            line = next(evaluations, None)
            if line is None:
                break
            _check_line(EVALUATIONS, line, step)
            loss = float(line["validation_loss"])
            better = best is None or loss < best
            _expect(EVALUATIONS, step, "best_so_far", better, line.get("best_so_far"))
            best = loss if better else best
            history = _chain(EVALUATIONS, line, step, history)
            records.evaluations[step] = line
        records.histories[step] = history
        records.last_step = step
    for name, rest in ((STEPS, steps), (EVALUATIONS, evaluations)):
        line = next(rest, None)
        if line is not None:
            raise _Wrong(
                Disproof(
                    f"{name} has a record of step {line.get('step')!r} where the run has none "
                    f"(step {records.last_step} is the last complete one)",
                    name,
                    records.last_step + 1,
                ),
                tail=records.last_step < plan.steps,
            )


def _lines(path: Path, found: Findings) -> Iterator[Record]:
    """Every whole line; what a kill left after the last line feed is no record."""
    data = path.read_bytes() if path.exists() else b""
    *lines, rest = data.split(b"\n")
    if rest:
        found.not_proved.append(
            f"{path.name} ends in the middle of a line; the run cuts it off when it continues"
        )
    for number, text in enumerate(lines, 1):
        try:
            line = json.loads(text)
            if not isinstance(line, dict):
                raise ValueError("it is not an object")
            if json.dumps(line).encode("ascii") != text:
                raise ValueError("it is not in the form that is written")
        except (ValueError, RecursionError) as error:
            disproof = Disproof(f"{path.name}, line {number} is no record: {error}", path.name)
            raise _Wrong(disproof, tail=True) from error
        yield line


def _check_line(name: str, line: Record, step: int) -> None:
    """The step, and that decimals and hexadecimal digits say the same."""
    _expect(name, step, "step", step, line.get("step"))
    for key, value in line.items():
        if not key.endswith("_hex"):
            continue
        decimal = line.get(key.removesuffix("_hex"))
        if not isinstance(decimal, float) or decimal.hex() != value:
            raise _wrong_field(name, step, key, decimal, value)
    needed = ("validation_loss", "train_loss") if name == EVALUATIONS else ("loss",)
    for key in needed:
        if not isinstance(line.get(key), float) or f"{key}_hex" not in line:
            raise _wrong_field(name, step, key, "a number in both forms", line.get(key))


def _check_update(line: Record, step: int, plan: RunPlan, update: ReshuffledEpochs) -> None:
    position = update.position(step)
    for key, expected in (
        ("learning_rate", plan.rates[step - 1]),
        ("epoch", position.epoch),
        ("batch", position.cursor),
    ):
        _expect(STEPS, step, key, expected, line.get(key))


def _chain(name: str, line: Record, step: int, history: str) -> str:
    try:
        following = next_history(history, line)
    except ValueError as error:  # a number that canonical JSON does not have
        raise _Wrong(
            Disproof(f"{name}, step {step}: the record is not canonical: {error}", name, step)
        ) from error
    if line.get("history") != following:
        raise _Wrong(
            Disproof(
                f"{name}, step {step}: the chain breaks here: the record, or one before it, or the "
                f"configuration is not what it was (history is {line.get('history')}, the records "
                f"give {following})",
                name,
                step,
                "history",
            )
        )
    return following


def _expect(name: str, step: int, field: str, expected: Any, actual: Any) -> None:
    if type(expected) is not type(actual) or expected != actual:
        raise _wrong_field(name, step, field, expected, actual)


def _wrong_field(name: str, step: int, field: str, expected: Any, actual: Any) -> _Wrong:
    text = f"{name}, step {step}: {field} is {actual!r}, expected {expected!r}"
    return _Wrong(Disproof(text, name, step, field))
