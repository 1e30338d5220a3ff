"""What a run leaves at its end: the summary, the exported model, the report on test data."""

from __future__ import annotations

from typing import Any

from llmcy.errors import LlmcyError
from llmcy.run.canonical import first_difference
from llmcy.run.checkpoints import read_checkpoint
from llmcy.run.directory import SELECTED_FILES, RunDirectory, json_bytes
from llmcy.run.evaluation import TEST_RECORD, measure_test_again
from llmcy.run.findings import Disproof, Findings
from llmcy.run.model_file import encode_selected
from llmcy.run.training import summarize
from llmcy.run.verify_records import Records
from llmcy.run.verify_states import StateChecker, restored_best
from llmcy.trainer import Best

__all__ = ["check_outcome", "check_test_record"]

SUMMARY = "summary.json"
OPENING = ("opening", "again", "batch_size", "report")


def check_outcome(
    checker: StateChecker, valid: list[int], records: Records, found: Findings
) -> None:
    """The summary and the exported model against the checkpoint of the same history.

    Parameters
    ----------
    checker, records
        Of the run.
    valid
        Steps of the checkpoints that are right.
    found
        Where the result goes.
    """
    run = RunDirectory(checker.run)
    exported = [name for name in SELECTED_FILES if (run.path / name).exists()]
    if not records.right:
        found.not_proved += [f"{name}: the records are disproved" for name in exported]
        return
    if (run.path / SUMMARY).exists():
        step = _summary_step(run, records, found)
    elif exported and checker.plan.steps in valid:
        step = checker.plan.steps  # killed between the two files
    else:
        step = None
        found.not_proved += [f"{name}: the run is not at its end" for name in exported]
    if step is None:
        return
    if step not in valid:
        names = ", ".join([SUMMARY, *exported])
        found.not_proved.append(f"{names}: no valid checkpoint of step {step} is kept")
        return
    _, selected = read_checkpoint(checker.folder, step)
    best = restored_best(selected)
    proved = []
    if (run.path / SUMMARY).exists():
        wrong = _summary_difference(run, checker, records, step, best)
        if wrong is not None:
            found.disproved.append(wrong)
            return
        proved.append(SUMMARY)
        if not exported:
            found.problems.append(f"{SUMMARY}: the exported model beside it is missing")
    tokenizer, seed = checker.dataset.tokenizer, checker.plan.settings.seed
    expected, data = encode_selected(tokenizer, best.state, seed)
    for name in exported:
        if name != expected:
            text = f"{name}: this run exports {expected}"
            found.disproved.append(Disproof(text, name))
            return
        wrong = checker.compare_export(run.path / name, data, selected.step)
        if wrong is not None:
            found.disproved.append(wrong)
            return
        proved.append(name)
    if proved:
        names = " and ".join(proved)
        verb = "they are" if len(proved) > 1 else "it is"
        found.proved.append(f"{names}: {verb} the selected state of step {step}")


def _summary_step(run: RunDirectory, records: Records, found: Findings) -> int | None:
    """The step whose history the summary has."""
    summary = run.read_json(SUMMARY)
    history = summary.get("history") if isinstance(summary, dict) else None
    for step, digest in records.histories.items():
        if digest == history:
            return step
    text = f"{SUMMARY}: history is {history}, which no step of the records has"
    found.disproved.append(Disproof(text, SUMMARY, field="history"))
    return None


def _summary_difference(
    run: RunDirectory, checker: StateChecker, records: Records, step: int, best: Best
) -> Disproof | None:
    summary = run.read_json(SUMMARY)
    history = records.histories[step]
    expected = summarize(run, checker.plan, checker.dataset, checker.epochs, best, history)
    difference = first_difference(expected.to_dict(), summary)
    if difference is not None:
        field, wanted, actual = difference
        text = f"{SUMMARY}: {field} is {actual!r}, the selected state gives {wanted!r}"
        return Disproof(text, SUMMARY, step, field)
    return _form_difference(run, SUMMARY, summary)


def _form_difference(run: RunDirectory, name: str, value: Any) -> Disproof | None:
    if run.read_bytes(name) == json_bytes(value):
        return None
    return Disproof(f"{name}: it is not in the form that a run writes", name)


# --------------------------------------------------------------------------- the test partition
def check_test_record(
    checker: StateChecker, records: Records, found: Findings, *, execute: bool
) -> None:
    """The notes on the final evaluation.

    Parameters
    ----------
    checker, records
        Of the run.
    found
        Where the result goes.
    execute
        Measure again and require the same report; otherwise look at its origin only.
    """
    run = RunDirectory(checker.run)
    if not (run.path / TEST_RECORD).exists():
        return
    value = run.read_json(TEST_RECORD)
    wrong = _openings_problem(value)
    if wrong is None:
        disproof = _form_difference(run, TEST_RECORD, value)
        if disproof is not None:
            found.disproved.append(disproof)
            return
    else:
        field, problem = wrong
        text = f"{TEST_RECORD}: {field} {problem}"
        found.disproved.append(Disproof(text, TEST_RECORD, field=field))
        return
    measured = []
    for opening in value["openings"]:
        number = opening["opening"]
        if opening["report"] is None:
            found.not_proved.append(
                f"{TEST_RECORD}: opening {number} has no report: the evaluation did not come to "
                "its end"
            )
        elif _check_report(checker, records, opening, found, execute=execute):
            measured.append(str(number))
    if measured:
        found.proved.append(
            f"{TEST_RECORD}: opening {', '.join(measured)}: measuring the selected state on the "
            "stored test tokens again gives the report"
        )


def _openings_problem(value: Any) -> tuple[str, str] | None:
    """The first field of the notes that no evaluation writes."""
    if not isinstance(value, dict) or list(value) != ["openings"]:
        return "openings", "is not all it holds"
    if not isinstance(value["openings"], list) or not value["openings"]:
        return "openings", "is no list of evaluations"
    for index, opening in enumerate(value["openings"]):
        where = f"openings[{index}]"
        if not isinstance(opening, dict) or tuple(opening) != OPENING:
            return where, f"does not have the fields {', '.join(OPENING)}"
        for field, expected in (("opening", index + 1), ("again", index > 0)):
            actual = opening[field]
            if type(actual) is not type(expected) or actual != expected:
                return f"{where}.{field}", f"is {actual!r}, expected {expected!r}"
        if type(opening["batch_size"]) is not int or opening["batch_size"] < 1:
            return f"{where}.batch_size", f"is {opening['batch_size']!r}"
        if opening["report"] is not None and not isinstance(opening["report"], dict):
            return f"{where}.report", "is no report"
    return None


def _check_report(
    checker: StateChecker,
    records: Records,
    opening: dict[str, Any],
    found: Findings,
    *,
    execute: bool,
) -> bool:
    """True when the report was made again."""
    report, number = opening["report"], opening["opening"]
    where = f"openings[{number - 1}].report"
    step, loss = report.get("selected_step"), report.get("selected_validation_loss")
    measured = records.evaluations.get(step) if type(step) is int else None
    if measured is None or type(loss) is not float or measured["validation_loss"] != loss:
        if not records.right:
            found.not_proved.append(f"{TEST_RECORD}: the records are disproved")
            return False
        field = "selected_step" if measured is None else "selected_validation_loss"
        text = (
            f"{TEST_RECORD}: {where}.{field} is {report.get(field)!r}, which no measurement of the "
            "run has"
        )
        found.disproved.append(Disproof(text, TEST_RECORD, None, f"{where}.{field}"))
        return False
    assert type(step) is int
    state = checker.model_at(step)
    if state is None:
        found.not_proved.append(
            f"{TEST_RECORD}: opening {number}: no state of its step {step} is kept"
        )
        return False
    if not execute:
        found.not_proved.append(
            f"{TEST_RECORD}: that measuring again gives the report of opening {number}; a replay "
            "does it"
        )
        return False
    try:
        again = measure_test_again(
            checker.plan, checker.dataset, state, step, loss, opening["batch_size"]
        )
    except LlmcyError as error:
        found.problems.append(f"{TEST_RECORD}: opening {number}: {error}")
        return False
    difference = first_difference(again.to_dict(), report)
    if difference is None:
        return True
    field, expected, actual = difference
    text = f"{TEST_RECORD}: {where}.{field} is {actual!r}, measuring again gives {expected!r}"
    found.disproved.append(Disproof(text, TEST_RECORD, step, f"{where}.{field}"))
    return False
