"""A run whose files cannot be written: it stops with the old files whole, or goes on, as asked."""

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from llmcy.data import TextDataset
from llmcy.errors import FileError, RunError
from llmcy.run import (
    JobOptions,
    RunDirectory,
    StopRequest,
    Watcher,
    load_model,
    resume_training,
    run_training,
)
from llmcy.run.checkpoints import CheckpointFolder, read_checkpoint
from llmcy.run.job_file import read_state_file
from tests.run.tiny import STEPS, dataset, outcome, records, settings

EVERY = JobOptions(checkpoint_every=1, keep_last=1)
TRUE = {name: getattr(os, name) for name in ("open", "write", "pwrite", "fsync", "rename", "close")}


TRUE["fsync"] = lambda descriptor: None  # these tests count the calls; no power is lost


@pytest.fixture(scope="module", autouse=True)
def fast_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", TRUE["fsync"])
        yield


@pytest.fixture(scope="module")
def text() -> TextDataset:
    return dataset()


@pytest.fixture(scope="module")
def whole(text: TextDataset, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    run_training(text, settings("float32"), run, EVERY)
    return run


def valid_steps(run: Path) -> list[int]:
    """Steps of the checkpoints in a folder; every one of them must be whole."""
    folder = CheckpointFolder(run, 1, 0)
    for step in folder.steps():
        read_checkpoint(folder, step)
    return folder.steps()


class FailingCalls:
    """Makes calls of one kind fail: with number ``nth``, or from it on."""

    def __init__(self, name: str, nth: int, *, for_good: bool) -> None:
        self.name, self.nth, self.for_good = name, nth, for_good
        self.count = 0
        self.failed = 0
        self.active = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.active:
            self.count += 1
            if self.count == self.nth or (self.for_good and self.count > self.nth):
                self.failed += 1
                if self.name == "close":
                    TRUE["close"](*args)  # a close that fails has closed the file all the same
                raise OSError(errno.ENOSPC, "No space left on device")
        return TRUE[self.name](*args, **kwargs)


@pytest.mark.parametrize("name", ["write", "pwrite", "fsync", "rename"])
@pytest.mark.parametrize("nth", [1, 2, 5, 17])
def test_a_failed_call_stops_the_run_and_leaves_one_that_continues(
    text: TextDataset,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    nth: int,
) -> None:
    run = tmp_path / "run"
    failing = FailingCalls(name, nth, for_good=True)
    failing.active = False
    monkeypatch.setattr(os, name, failing)

    def from_now_on(step: Any) -> None:
        failing.active = step.step >= 3

    with pytest.raises(RunError) as caught:
        run_training(text, settings("float32"), run, EVERY, watcher=Watcher(on_step=from_now_on))
    assert caught.value.kind == "SaveFailed"
    assert "No space left on device" in str(caught.value)
    assert f"step {caught.value.step} is saved" in str(caught.value)
    failing.active = False
    present = valid_steps(run)
    assert caught.value.step in present
    assert not list((run / "checkpoints").glob(".*"))
    resume_training(run)
    assert outcome(run) == outcome(whole)
    assert valid_steps(run) == [STEPS]


@pytest.mark.parametrize("name", ["write", "pwrite", "fsync", "rename", "close"])
def test_a_run_that_may_continue_ends_as_if_nothing_had_happened(
    text: TextDataset,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    run = tmp_path / "run"
    failing = FailingCalls(name, 1, for_good=True)
    failing.active = False
    monkeypatch.setattr(os, name, failing)
    told: list[str] = []

    def for_a_while(step: Any) -> None:
        failing.active = 4 <= step.step < 19

    options = JobOptions(checkpoint_every=1, keep_last=1, on_save_error="continue")
    watcher = Watcher(on_step=for_a_while, on_problem=told.append)
    run_training(text, settings("float32"), run, options, watcher=watcher)
    assert failing.failed >= 15
    assert len(told) >= 15
    assert any("cannot save the checkpoint of step 9" in line for line in told)
    assert outcome(run) == outcome(whole)


def test_a_last_checkpoint_that_fails_is_an_error_even_so(
    text: TextDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = FailingCalls("rename", 1, for_good=True)
    failing.active = False
    monkeypatch.setattr(os, "rename", failing)

    def at_the_end(step: Any) -> None:
        failing.active = step.step == STEPS

    options = JobOptions(checkpoint_every=10, on_save_error="continue")
    with pytest.raises(RunError) as caught:
        run_training(
            text,
            settings("float32"),
            tmp_path / "run",
            options,
            watcher=Watcher(on_step=at_the_end),
        )
    assert (caught.value.kind, caught.value.step) == ("SaveFailed", 20)


def test_a_full_disk_is_seen_before_anything_is_written(
    text: TextDataset, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    original = os.statvfs

    def full(path: Any) -> Any:
        held = original(path)
        # 4 KiB are left: enough for records, not for a checkpoint
        return os.statvfs_result((held[0], 1024, held[2], 4, 4, *held[5:]))

    def fill(step: Any) -> None:
        if step.step == 6:
            monkeypatch.setattr(os, "statvfs", full)

    with pytest.raises(RunError) as caught:
        run_training(text, settings("float32"), run, EVERY, watcher=Watcher(on_step=fill))
    assert caught.value.kind == "SaveFailed"
    assert isinstance(caught.value.cause, FileError)
    assert caught.value.cause.kind == "NoSpace"
    assert "the disk has 4096 free" in str(caught.value)
    assert valid_steps(run) == [5]
    assert not list((run / "checkpoints").glob(".*"))
    monkeypatch.undo()
    resume_training(run)
    assert outcome(run) == outcome(whole)


# --------------------------------------------------------------------------- what is kept
@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (JobOptions(checkpoint_every=1, keep_last=1), [24]),
        (JobOptions(checkpoint_every=1, keep_last=3), [22, 23, 24]),
        (JobOptions(checkpoint_every=4, keep_last=2, keep_every=8), [0, 8, 16, 20, 24]),
        (JobOptions(checkpoint_every=0, keep_last=5), [0, 24]),
        (JobOptions(checkpoint_every=5, keep_last=2), [20, 24]),
    ],
)
def test_retention(
    text: TextDataset, whole: Path, tmp_path: Path, options: JobOptions, kept: list[int]
) -> None:
    run = tmp_path / "run"
    run_training(text, settings("float32"), run, options)
    assert valid_steps(run) == kept
    # a selected state stays exactly as long as a checkpoint names it
    named = {
        read_state_file(path).described["best"]["step"] for path in (run / "checkpoints").iterdir()
    }
    assert {read_state_file(path).step for path in (run / "selected").iterdir()} == named
    assert 21 in named
    assert outcome(run)["last checkpoint"] == outcome(whole)["last checkpoint"]


def test_nothing_is_removed_before_its_successor_is_durable(
    text: TextDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every removal there is a newer checkpoint, whole, whose folder has been synchronised."""
    run = tmp_path / "run"
    events: list[tuple[str, str]] = []

    def renamed(source: Any, target: Any) -> None:
        TRUE["rename"](source, target)
        events.append(("rename", os.fspath(target)))

    def synchronised(descriptor: int) -> None:
        events.append(("fsync", os.readlink(f"/proc/self/fd/{descriptor}")))
        TRUE["fsync"](descriptor)

    unlink = os.unlink

    def removed(path: Any, *args: Any, **kwargs: Any) -> None:
        path = Path(path)
        if path.suffix == ".safetensors" and not path.name.startswith("."):
            after = [kind for kind, target in events if "checkpoints" in target][-2:]
            assert after == ["rename", "fsync"], events[-4:]
            if path.parent.name == "checkpoints":
                assert max(valid_steps(run)) > read_state_file(path).step
        unlink(path, *args, **kwargs)

    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr(os, "fsync", synchronised)
    monkeypatch.setattr(os, "unlink", removed)
    run_training(text, settings("float32"), run, EVERY)
    assert valid_steps(run) == [STEPS]


def test_the_selected_state_is_durable_before_the_checkpoint_that_names_it(
    text: TextDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    seen = []

    def renamed(source: Any, target: Any) -> None:
        target = Path(target)
        if target.parent.name == "checkpoints":
            best = read_state_file(Path(source)).described["best"]
            named = run / "selected" / f"step-{best['step']:08}.safetensors"
            assert read_state_file(named).tensors_sha256 == best["tensors_sha256"]
            seen.append(best["step"])
        TRUE["rename"](source, target)

    monkeypatch.setattr(os, "rename", renamed)
    run_training(text, settings("float32"), run, EVERY)
    assert sorted(set(seen)) == [0, 7, 8, 21]


def test_a_leftover_that_is_not_valid_does_not_cost_a_valid_checkpoint(
    text: TextDataset, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    calls = iter(range(STEPS + 1))
    with pytest.raises(RunError):
        run_training(text, settings("float32"), run, EVERY, stop=lambda: next(calls) == 6)
    (run / "checkpoints" / "step-00000020.safetensors").write_bytes(b"half a file")
    for _ in range(5):
        with pytest.raises(RunError) as caught:
            resume_training(run, stop=lambda: True)
        folder = CheckpointFolder(run, 1, 0)
        valid = [step for step in folder.steps() if step != 20]
        assert valid == [caught.value.step]
        read_checkpoint(folder, valid[0])
    resume_training(run)
    assert outcome(run) == outcome(whole)
    assert valid_steps(run) == [STEPS]


# --------------------------------------------------------------------------- signals
def test_the_first_signal_asks_and_nothing_else() -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    for number in (signal.SIGINT, signal.SIGTERM):
        with StopRequest() as stop:
            assert not stop()
            os.kill(os.getpid(), number)
            assert stop()
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_beside_the_main_thread_signals_are_left_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    asked: list[bool] = []

    def enter() -> None:
        with StopRequest() as stop:
            asked.append(stop() or signal.getsignal(signal.SIGINT) is not before)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert asked == [False]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_does_not_wait(number: signal.Signals) -> None:
    code = f"""
        import os, time
        from llmcy.run import StopRequest
        with StopRequest() as stop:
            os.kill(os.getpid(), {int(number)})
            assert stop()
            os.kill(os.getpid(), {int(number)})
            time.sleep(60)
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code)])
    assert result.returncode == -number


# --------------------------------------------------------------------------- the folder itself
def test_a_folder_that_was_not_made_to_the_end_is_no_run(
    text: TextDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"

    def renamed(source: Any, target: Any) -> None:
        if Path(target).name == "config.json":
            raise KeyboardInterrupt
        TRUE["rename"](source, target)

    monkeypatch.setattr(os, "rename", renamed)
    with pytest.raises(KeyboardInterrupt):
        run_training(text, settings("float32"), run)
    assert {p.name for p in run.iterdir()} >= {"tokens.bin", "tokens.json", "split.json"}
    for use in (resume_training, load_model, RunDirectory.open):
        with pytest.raises(RunError) as caught:
            use(run)
        assert caught.value.kind == "NotARun"


def test_wall_seconds_are_the_only_thing_that_differs(
    text: TextDataset, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    run_training(text, settings("float32"), run, EVERY)
    for path in whole.rglob("*"):
        if path.is_file() and path.name not in ("steps.jsonl", "environment.jsonl", "config.json"):
            assert (run / path.relative_to(whole)).read_bytes() == path.read_bytes(), path
    assert records(run / "steps.jsonl") == records(whole / "steps.jsonl")


def test_a_disk_that_is_full_at_the_very_end(
    text: TextDataset, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last checkpoint is saved, the summary is not: the status says so, resuming ends it."""
    run = tmp_path / "run"

    def renamed(source: Any, target: Any) -> None:
        if Path(target).name == "summary.json":
            raise OSError(errno.ENOSPC, "No space left on device")
        TRUE["rename"](source, target)

    monkeypatch.setattr(os, "rename", renamed)
    with pytest.raises(RunError) as caught:
        run_training(text, settings("float32"), run, EVERY)
    assert (caught.value.kind, caught.value.step) == ("SaveFailed", STEPS)
    monkeypatch.setattr(os, "rename", TRUE["rename"])
    resume_training(run)
    assert outcome(run) == outcome(whole)
