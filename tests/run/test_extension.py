"""Updates that are added at the end of a run: once, however often the command is given."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmcy.data import TextDataset
from llmcy.errors import LlmcyError, RunError, TrainerError
from llmcy.optim import LearningRateSchedule
from llmcy.run import Extension, Watcher, resume_training
from llmcy.run.directory import RunDirectory
from llmcy.run.verify import Request, verify_run
from tests.run.forging import edited_json
from tests.run.tiny import records, stop_after, stopped

pytestmark = pytest.mark.usefixtures("fast_disk")

ADDED = Extension(LearningRateSchedule([0.1, 0.05, 0.02]))
DECAY = Extension.by_formula("linear", 4, learning_rate=0.1, warmup_steps=1)


@pytest.fixture
def run(whole: Callable[[str], Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole("float64"), tmp_path / "run"))


@pytest.fixture
def extended(whole: Callable[[str], Path], tmp_path: Path) -> dict[str, bytes]:
    """What the run and its extension leave when nothing happens on the way."""
    run = Path(shutil.copytree(whole("float64"), tmp_path / "undisturbed"))
    resume_training(run, extend=ADDED)
    return files(run)


def files(run: Path) -> dict[str, Any]:
    """Everything of a finished run but information and older checkpoints."""
    names = ("config.json", "summary.json", "evaluations.jsonl", "selected.ckpt")
    held: dict[str, Any] = {name: (run / name).read_bytes() for name in names}
    newest = sorted((run / "checkpoints").iterdir())[-1]
    return held | {newest.name: newest.read_bytes(), "steps": records(run / "steps.jsonl")}


def contents(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def config(run: Path) -> Any:
    return json.loads((run / "config.json").read_text())


def test_an_extension_has_its_own_rates_and_goes_on_where_the_run_ended(
    text: TextDataset, run: Path, whole: Callable[[str], Path], tmp_path: Path
) -> None:
    other = stopped(text, "float64", tmp_path / "b", 17)  # extended while it is not finished
    with pytest.raises(RunError):
        resume_training(other, extend=ADDED, stop=stop_after(1))
    resume_training(other)
    resume_training(run, extend=ADDED)
    for folder in (run, other):
        steps = records(folder / "steps.jsonl")
        assert [line["learning_rate"] for line in steps[24:]] == [0.1, 0.05, 0.02]
        assert [line["epoch"] for line in steps[24:]] == [2, 2, 2]
        assert records(folder / "evaluations.jsonl")[-1]["step"] == 27
        assert steps[:24] == records(whole("float64") / "steps.jsonl")
    assert files(run) == files(other)
    assert config(run)["extensions"] == [
        {"after_step": 24, "steps": 3, "eval_at": [], "schedule": "list"}
    ]
    assert len(config(run)["learning_rates"]) == 27


def test_an_extension_of_an_extension_is_proved(run: Path) -> None:
    resume_training(run, extend=ADDED)
    resume_training(run, extend=DECAY)
    assert [line["step"] for line in records(run / "evaluations.jsonl")] == [
        *(0, 7, 8, 21, 24, 27, 31),
    ]
    resume_training(run, extend=replace(DECAY, eval_at=(33,)))
    assert [line["step"] for line in records(run / "evaluations.jsonl")][-2:] == [33, 35]
    found = verify_run(run, Request("all"))
    assert found.exit_code == 0, "\n".join(found.lines())
    low = 0.1 / 10.0
    assert config(run)["learning_rates"][27:31] == [
        0.1,
        *(low + (0.1 - low) * ((4 - s) / 3) for s in (2, 3, 4)),
    ]


# --------------------------------------------------------------------------- given twice
class Killed(BaseException):
    """Ends a run where it is, with nothing saved."""


def dying_at_step(number: int, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(step: Any) -> None:
        if step.step == number:
            raise Killed

    with pytest.raises(Killed):
        resume_training(run, extend=ADDED, watcher=Watcher(on_step=die))


def dying_at_file(name: str, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(self: RunDirectory, written: str, data: bytes) -> None:
        if written == name:
            raise Killed
        write(self, written, data)

    write = RunDirectory.write_bytes
    with monkeypatch.context() as patch:
        patch.setattr(RunDirectory, "write_bytes", die)
        with pytest.raises(Killed):
            resume_training(run, extend=ADDED)


DEATHS: dict[str, Callable[[Path, pytest.MonkeyPatch], None]] = {
    "before it is planned": lambda run, patch: dying_at_file("config.json", run, patch),
    "at its first step": lambda run, patch: dying_at_step(25, run, patch),
    "in the middle": lambda run, patch: dying_at_step(26, run, patch),
    "at its last step": lambda run, patch: dying_at_step(27, run, patch),
    "before the model is exported": lambda run, patch: dying_at_file("selected.ckpt", run, patch),
    "before the summary": lambda run, patch: dying_at_file("summary.json", run, patch),
}


@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("after", [None, 24])
def test_the_same_command_after_a_kill_adds_nothing_twice(
    run: Path,
    extended: dict[str, bytes],
    monkeypatch: pytest.MonkeyPatch,
    death: str,
    after: int | None,
) -> None:
    DEATHS[death](run, monkeypatch)
    planned = len(config(run)["learning_rates"])
    assert planned == (24 if death == "before it is planned" else 27)
    told: list[str] = []
    watcher = Watcher(on_problem=told.append)
    resume_training(run, extend=replace(ADDED, after=after), watcher=watcher)
    assert files(run) == extended
    assert told == ["the updates to add are in the plan already; none are added"] * (planned == 27)


@pytest.mark.parametrize("death", DEATHS)
def test_plain_resuming_after_a_kill_ends_in_the_same_run(
    run: Path, extended: dict[str, bytes], monkeypatch: pytest.MonkeyPatch, death: str
) -> None:
    DEATHS[death](run, monkeypatch)
    resume_training(run)
    if death != "before it is planned":
        assert files(run) == extended
    else:
        assert len(config(run)["learning_rates"]) == 24


def test_a_finished_extension_can_be_given_again(run: Path) -> None:
    for total in (27, 30):
        resume_training(run, extend=ADDED)
        assert len(records(run / "steps.jsonl")) == total
    assert [entry["after_step"] for entry in config(run)["extensions"]] == [24, 27]


def test_with_its_place_it_is_added_once_for_all(run: Path) -> None:
    placed = replace(ADDED, after=24)
    resume_training(run, extend=placed)
    resume_training(run, extend=replace(DECAY, after=27))
    before = contents(run)
    resume_training(run, extend=placed)
    after = contents(run)
    information = run / "environment.jsonl"
    assert before.pop(information) != after.pop(information)
    assert before == after


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (Extension(LearningRateSchedule([0.1, 0.05])), "steps"),
        (Extension(LearningRateSchedule([0.1, 0.05, 0.03])), "learning_rates[26]"),
        (replace(ADDED, eval_at=(25,)), "eval_at"),
        (Extension.by_formula("constant", 3, learning_rate=0.1), "decay_steps"),
        (Extension(LearningRateSchedule([1e6, 0.05, 0.02])), "learning_rates"),
    ],
)
@pytest.mark.parametrize("after", [None, 24])
def test_other_updates_are_refused_while_those_added_are_not_done(
    run: Path, monkeypatch: pytest.MonkeyPatch, other: Extension, field: str, after: int | None
) -> None:
    dying_at_step(26, run, monkeypatch)
    resume_before = contents(run)
    with pytest.raises(RunError) as caught:
        resume_training(run, extend=replace(other, after=after))
    assert caught.value.kind == "ExtensionRefused"
    assert (caught.value.after, caught.value.last) == (24, 24 + other.schedule.steps())
    assert "3 updates were added after step 24" in str(caught.value)
    assert f"in {field}" in caught.value.problem
    assert ("not done yet" in str(caught.value)) == (after is None)
    assert contents(run) == resume_before


@pytest.mark.parametrize("after", [0, 20, 25, 27])
def test_a_place_where_nothing_was_added_is_refused(run: Path, after: int) -> None:
    before = contents(run)
    with pytest.raises(RunError) as caught:
        resume_training(run, extend=replace(ADDED, after=after))
    assert caught.value.kind == "ExtensionRefused"
    assert f"planned to step 24, and nothing was added after step {after}" in str(caught.value)
    assert contents(run) == before


# --------------------------------------------------------------------------- what makes no plan
@pytest.mark.parametrize(
    ("steps", "kind"),
    [
        ([24], "ValidationStepsNotIncreasing"),
        ([26, 25], "ValidationStepsNotIncreasing"),
        ([3], "ValidationStepsNotIncreasing"),
        ([28], "ValidationStepOutOfRange"),
    ],
)
def test_measuring_elsewhere_is_refused(run: Path, steps: list[int], kind: str) -> None:
    before = contents(run)
    with pytest.raises(TrainerError) as caught:
        resume_training(run, extend=replace(ADDED, eval_at=tuple(steps)))
    assert caught.value.kind == kind
    assert contents(run) == before


@pytest.mark.parametrize(
    ("index", "field", "value"),
    [
        (0, "after_step", 23),
        (0, "steps", 2),
        (0, "eval_at", [26]),
        (0, "schedule", "constant"),
        (1, "learning_rate", 0.2),
        (1, "warmup_steps", 2),
        (1, "schedule", "cosine"),
        (1, "steps", "4"),
        (1, "unknown", 1),
    ],
)
def test_a_changed_extension_is_found(run: Path, index: int, field: str, value: Any) -> None:
    for extension in (ADDED, DECAY):
        resume_training(run, extend=replace(extension, eval_at=()))
    edited_json(run / "config.json", lambda c: c["extensions"][index].update({field: value}))
    with pytest.raises(LlmcyError) as caught:
        resume_training(run)
    assert caught.value.kind == "RunChanged"
    assert verify_run(run).exit_code == 1
