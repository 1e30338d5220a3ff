"""A killed process, anywhere: what is left ends in the bits of the run without a kill."""

import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from llmcy.data import TextDataset
from llmcy.errors import RunError
from llmcy.optim import LearningRateSchedule
from llmcy.run import Extension, JobOptions, resume_training, run_training
from llmcy.run.checkpoints import CheckpointFolder, read_checkpoint
from tests.faults import killed_at
from tests.run.tiny import dataset, outcome, records, settings

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

OPTIONS = JobOptions(checkpoint_every=3, keep_last=2, micro_batch_size=2)


@pytest.fixture(scope="module")
def text() -> TextDataset:
    return dataset()


@pytest.fixture(scope="module")
def whole(text: TextDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    run_training(text, settings("float64"), run, OPTIONS)
    return run


def in_a_child(work: Callable[[], object], kill_after: float | None = None) -> int:
    """Do something in a forked process; how it ended."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            os._exit(1)
        os._exit(0)
    if kill_after is not None:
        time.sleep(kill_after)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def dying_at(nth: int, work: Callable[[], object]) -> int:
    """Do something in a child that dies in its ``nth`` call that touches a file."""

    def doomed() -> None:
        with killed_at(nth):
            work()

    return in_a_child(doomed)


def check_files(run: Path) -> None:
    """Under its final name every file is whole."""
    if not (run / "checkpoints").exists():
        return
    folder = CheckpointFolder(run, 1, 0)
    for step in folder.steps():
        read_checkpoint(folder, step)


def carry_on(text: TextDataset, run: Path) -> None:
    """What somebody does after a crash: resume, or begin again when there is no run yet."""
    try:
        resume_training(run)
    except RunError as error:
        if error.kind != "NotARun":
            raise
        shutil.rmtree(run, ignore_errors=True)
        run_training(text, settings("float64"), run, OPTIONS)


def fresh(text: TextDataset, run: Path) -> Callable[[], object]:
    return lambda: run_training(text, settings("float64"), run, OPTIONS)


def die_and_carry_on(text: TextDataset, whole: Path, run: Path, nth: int) -> int:
    status = dying_at(nth, fresh(text, run))
    check_files(run)
    carry_on(text, run)
    assert outcome(run) == outcome(whole), nth
    assert not list(run.rglob(".*")), nth
    return status


@pytest.mark.parametrize("nth", [1, 7, 21, 30, 40, 47, 55, 63, 70, 79, 90, 101, 118, 126, 139, 150])
def test_dying_at_some_calls(text: TextDataset, whole: Path, tmp_path: Path, nth: int) -> None:
    assert die_and_carry_on(text, whole, tmp_path / "run", nth) == -signal.SIGKILL


@pytest.mark.slow
def test_dying_at_every_call(text: TextDataset, whole: Path, tmp_path: Path) -> None:
    nth, status = 0, -signal.SIGKILL
    while status == -signal.SIGKILL:
        nth += 1
        status = die_and_carry_on(text, whole, tmp_path / str(nth), nth)
        shutil.rmtree(tmp_path / str(nth))
    assert status == 0
    assert nth > 150


def test_dying_again_and_again_while_continuing(
    text: TextDataset, whole: Path, tmp_path: Path
) -> None:
    """Every continuation dies too, a few calls further each time, until one reaches the end."""
    run = tmp_path / "run"
    assert dying_at(60, fresh(text, run)) == -signal.SIGKILL
    deaths = 0
    for nth in range(10, 400, 14):
        check_files(run)
        if dying_at(nth, lambda: resume_training(run)) == 0:
            break
        deaths += 1
    assert deaths >= 4
    resume_training(run)
    assert outcome(run) == outcome(whole)


@pytest.mark.slow
def test_two_hundred_random_moments(text: TextDataset, whole: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(int.from_bytes(os.urandom(4), "little"))
    started = time.monotonic()
    assert in_a_child(fresh(text, tmp_path / "timed")) == 0
    length = time.monotonic() - started
    kills = 0
    while kills < 200:
        run = tmp_path / f"run-{kills}"
        status = in_a_child(fresh(text, run), kill_after=float(rng.uniform(0, length)))
        while status == -signal.SIGKILL and kills < 200:
            kills += 1
            check_files(run)
            if not (run / "config.json").exists():
                break
            work = lambda run=run: resume_training(run)  # noqa: E731
            status = in_a_child(work, kill_after=float(rng.uniform(0, length)))
        carry_on(text, run)
        assert outcome(run) == outcome(whole)
        shutil.rmtree(run)


# --------------------------------------------------------------------------- adding updates
ADDED = Extension(LearningRateSchedule([0.1, 0.05, 0.02]), eval_at=(26,))


def extended(run: Path) -> dict[str, object]:
    """What a run and its extension have in common with others of the same plan."""
    files = ("config.json", "evaluations.jsonl", "selected.ckpt", "summary.json")
    last = run / "checkpoints" / "step-00000027.safetensors"
    held: dict[str, object] = {name: (run / name).read_bytes() for name in files}
    return held | {"steps": records(run / "steps.jsonl"), "last": last.read_bytes()}


def dying_while_extending(whole: Path, tmp_path: Path, nth: int) -> tuple[int, dict[str, object]]:
    """The command dies at its ``nth`` call and is given again until it comes to its end."""
    run = Path(shutil.copytree(whole, tmp_path / f"extended-{nth}"))
    status = dying_at(nth, lambda: resume_training(run, extend=ADDED))
    check_files(run)
    if (run / "steps.jsonl").read_bytes().count(b"\n") < 27:
        assert dying_at(nth + 3, lambda: resume_training(run, extend=ADDED)) in (0, -signal.SIGKILL)
    again = Extension(ADDED.schedule, eval_at=ADDED.eval_at, after=24)
    resume_training(run, extend=again)  # it may have come to its end, so its place is said
    found = extended(run)
    assert not list(run.rglob(".*")), nth
    shutil.rmtree(run)
    return status, found


@pytest.fixture(scope="module")
def undisturbed(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    run = Path(shutil.copytree(whole, tmp_path_factory.mktemp("extended") / "run"))
    resume_training(run, extend=ADDED)
    return extended(run)


@pytest.mark.parametrize("nth", [0, 2, 4, 6, 9, 13, 18, 24, 31])
def test_dying_while_updates_are_added(
    whole: Path, undisturbed: dict[str, object], tmp_path: Path, nth: int
) -> None:
    status, found = dying_while_extending(whole, tmp_path, nth)
    assert status == -signal.SIGKILL
    assert found == undisturbed


@pytest.mark.slow
def test_dying_at_every_call_while_updates_are_added(
    whole: Path, undisturbed: dict[str, object], tmp_path: Path
) -> None:
    nth, status = 0, -signal.SIGKILL
    while status == -signal.SIGKILL:
        status, found = dying_while_extending(whole, tmp_path, nth)
        assert found == undisturbed, nth
        nth += 1
    assert status == 0
    assert nth > 35
