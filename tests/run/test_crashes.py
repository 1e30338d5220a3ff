"""Killed processes and lost power: whatever the moment, the run goes on to the same bits."""

import json
import os
import random
import shutil
import signal
import time
from dataclasses import replace

import pytest

from llmcy.errors import RunError
from llmcy.run import JobOptions, resume_training, run_training
from llmcy.run.checkpoints import CheckpointFolder, read_checkpoint
from llmcy.run.job_file import read_state_file
from tests.crash_states import applied, change_entries, recorded
from tests.faults import in_child, started_child
from tests.run import tiny
from tests.run.tiny import records

STEPS = 5
OPTIONS = JobOptions(checkpoint_every=2, keep_last=1, micro_batch_size=3)
TEXT = tiny.dataset()


def settings(dtype="float32"):
    return replace(tiny.settings(dtype), epochs=0, steps=STEPS, eval_at=(3,))


def train(run, dtype="float32"):
    run_training(TEXT, settings(dtype), run, OPTIONS)


def stopped_after(step, run):
    asked = iter([False] * step + [True])
    with pytest.raises(RunError, match=f"stopped after step {step}"):
        run_training(TEXT, settings(), run, OPTIONS, stop=lambda: next(asked))


@pytest.fixture(autouse=True)
def no_power_is_lost(monkeypatch):
    """A killed process loses nothing that it wrote: forcing it to the disk takes time only."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """What uninterrupted runs leave, by dtype."""
    made = {}
    for dtype in ("float32", "float64"):
        run = tmp_path_factory.mktemp(dtype) / "run"
        train(run, dtype)
        made[dtype] = outcome(run)
    return made


def outcome(run):
    """Every file of a finished run but what is information only.

    A process that was killed at the very end may leave the checkpoint before the last one.
    """
    files = {
        str(path.relative_to(run)): path.read_bytes()
        for path in run.rglob("*")
        if path.is_file() and path.name not in ("environment.jsonl", "steps.jsonl")
    }
    for folder in ("checkpoints", "selected"):
        for name in sorted(name for name in files if name.startswith(folder))[:-1]:
            del files[name]
    return files | {"steps.jsonl": records(run / "steps.jsonl")}


def check_final_names(run):
    """No file that has its final name is half-written."""
    for path in run.rglob("*"):
        if path.name.startswith(".") or path.is_dir():
            continue
        if path.name.startswith("step-"):
            read_state_file(path)
        elif path.suffix == ".json":
            json.loads(path.read_text())


def finish(run, dtype="float32"):
    """Continue a run; one that was killed before it was one begins again."""
    check_final_names(run) if run.exists() else None
    if (run / "config.json").exists():
        resume_training(run)
    else:
        if run.exists():
            with pytest.raises(RunError, match=r"no config\.json"):
                resume_training(run)
            shutil.rmtree(run)
        train(run, dtype)


# --------------------------------------------------------------------------- any moment
def test_killed_at_ten_random_moments(whole, tmp_path):
    """Three lives a run at most, each ended after a random time; what they leave is finished."""
    rng = random.Random(35)
    start = time.monotonic()
    assert in_child(lambda: train(tmp_path / "timed")) == 0
    span = time.monotonic() - start
    done = in_one_life = 0
    while done < 10:
        dtype = rng.choice(["float32", "float64"])
        run = tmp_path / f"run-{done}"
        for _ in range(3):
            child = started_child(lambda run=run, dtype=dtype: finish(run, dtype))
            time.sleep(rng.random() * span)
            os.kill(child, signal.SIGKILL)
            status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            assert status in (0, -signal.SIGKILL)
            done += 1
            in_one_life += status == 0
            if run.exists():
                check_final_names(run)
        finish(run, dtype)
        assert outcome(run) == whole[dtype]
        shutil.rmtree(run)
    assert in_one_life < done  # some were killed in time


# --------------------------------------------------------------------------- power failures
@pytest.fixture(scope="module")
def recording(tmp_path_factory):
    """The calls of a run that continues from step 1 to its end, and its folder before them.

    Every call of write takes two thirds of what it is given, so that there is more to lose.
    """
    write, pwrite = os.write, os.pwrite
    folder = tmp_path_factory.mktemp("power")
    run = folder / "run"
    stopped_after(1, run)
    shutil.copytree(run, folder / "before")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: write(fd, two_thirds(data)))
        patch.setattr(os, "pwrite", lambda fd, data, at: pwrite(fd, two_thirds(data), at))
        with recorded(run) as followed:
            resume_training(run)
    return followed, folder / "before", run


def two_thirds(data):
    return bytes(data)[: max(200, len(data) * 2 // 3)]


def published(recording):
    """Every content that a state file had when it got its name."""
    followed, _, _ = recording
    contents = {}
    for moment in followed.moments:
        live = dict(moment.entries)
        for change in moment.changes:
            change_entries(live, change)
        for name, number in live.items():
            if os.path.basename(name).startswith("step-"):
                file = moment.files[number]
                contents.setdefault(name, set()).add(applied(file.durable, file.pending))
    return contents


def crash_folders(recording, limit, seed=1):
    """Distinct folders that a power failure may leave, with the number of the call before it."""
    followed, _, _ = recording
    seen = set()
    for number, moment in enumerate(followed.moments):
        for folder in moment.crash_states(limit, seed + number):
            key = tuple(sorted((name, hash(content)) for name, content in folder.items()))
            if key not in seen:
                seen.add(key)
                yield number, folder


def test_a_power_failure_leaves_old_or_new_state_files(recording):
    known = published(recording)
    count = 0
    for number, folder in crash_folders(recording, 60):
        states = {n: c for n, c in folder.items() if os.path.basename(n).startswith("step-")}
        for name, content in states.items():
            assert content in known[name], (number, name)
        assert any(name.startswith("checkpoints/") for name in states), number
        count += 1
    assert count > 150


def lay_out(folder, before, run):
    shutil.copytree(before, run)
    for path in run.rglob("*"):
        if path.is_file() and path.name != "environment.jsonl":
            path.unlink()
    for name, content in folder.items():
        (run / name).write_bytes(content)


def continued_after_power_failures(recording, whole, tmp_path, limit, every):
    followed, before, _ = recording
    folders = list(crash_folders(recording, limit))
    for number, folder in folders[::every]:
        run = tmp_path / "run"
        lay_out(folder, before, run)
        files = CheckpointFolder(run, 1, 0)
        assert any(valid(files, step) for step in files.steps()), (number, followed.calls[number])
        resume_training(run)
        assert outcome(run) == whole["float32"], (number, followed.calls[number])
        shutil.rmtree(run)
    return len(folders[::every])


def valid(files, step):
    try:
        read_checkpoint(files, step)
    except RunError:
        return False
    return True


def test_a_run_continues_after_a_power_failure(recording, whole, tmp_path):
    assert continued_after_power_failures(recording, whole, tmp_path, 5, 5) > 20


@pytest.mark.slow
def test_a_run_continues_after_any_power_failure(recording, whole, tmp_path):
    assert continued_after_power_failures(recording, whole, tmp_path, 30, 1) > 400
