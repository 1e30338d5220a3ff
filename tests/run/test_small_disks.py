"""Runs on disks that are really too small: the old files stay, and the run goes on when there is
room again."""

import os
import resource
import shutil
import signal
import subprocess

import pytest

from llmcy.errors import RunError
from llmcy.run import JobOptions, resume_training, run_training
from llmcy.run.checkpoints import CheckpointFolder, read_checkpoint
from tests.faults import in_child
from tests.run import tiny
from tests.run.tiny import outcome

OPTIONS = JobOptions(checkpoint_every=2, keep_last=2, micro_batch_size=2)
TEXT = tiny.dataset()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    run = tmp_path_factory.mktemp("whole") / "run"
    run_training(TEXT, tiny.settings("float64"), run, OPTIONS)
    return outcome(run)


def check_rest(run, error):
    """The message names a step; it and every other checkpoint are whole; no temporary is left."""
    folder = CheckpointFolder(run, 1, 0)
    assert error.kind == "SaveFailed"
    assert error.step in folder.steps()
    for step in folder.steps():
        read_checkpoint(folder, step)
    assert list(run.rglob(".*")) == []


@pytest.fixture
def disk(tmp_path):
    """A file system of one mebibyte that can grow."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small file system")
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"cannot mount a small file system: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # errors keep maps of it


def fill(disk, leave):
    """Take all room but ``leave`` bytes."""
    held = os.statvfs(disk)
    with (disk / "ballast").open("ab") as file:
        file.write(bytes(max(0, held.f_bavail * held.f_frsize - leave)))


@pytest.mark.parametrize("checked", [True, False], ids=["seen before", "met while writing"])
def test_a_disk_that_fills_up(disk, whole, monkeypatch, checked):
    run = disk / "run"
    asked = iter([False] * 5 + [True])
    with pytest.raises(RunError, match="stopped after step 5"):
        run_training(TEXT, tiny.settings("float64"), run, OPTIONS, stop=lambda: next(asked))
    if not checked:
        monkeypatch.delattr(os, "statvfs")
    for leave in (0, 4096, 12288):
        if checked:
            fill(disk, leave)
        else:
            (disk / "ballast").write_bytes(b"")
            with (disk / "ballast").open("ab") as file:
                size = 1 << 20
                while size >= 4096:
                    try:
                        os.write(file.fileno(), bytes(size))
                    except OSError:
                        size //= 2
                file.truncate(max(0, file.tell() - leave))
        with pytest.raises(RunError) as caught:
            resume_training(run)
        check_rest(run, caught.value)
        (disk / "ballast").unlink()
    monkeypatch.undo()
    resume_training(run)
    assert outcome(run) == whole


def test_a_limit_on_the_size_of_files(tmp_path, whole):
    """Below the size of a checkpoint, so that each one fails in the middle."""
    run = tmp_path / "run"
    asked = iter([False] * 5 + [True])
    with pytest.raises(RunError, match="stopped after step 5"):
        run_training(TEXT, tiny.settings("float64"), run, OPTIONS, stop=lambda: next(asked))
    size = max(path.stat().st_size for path in (run / "checkpoints").iterdir())

    def limited():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size - 1000, size - 1000))
        with pytest.raises(RunError) as caught:
            resume_training(run)
        assert "File too large" in str(caught.value)
        check_rest(run, caught.value)

    assert in_child(limited) == 0
    resume_training(run)
    assert outcome(run) == whole
