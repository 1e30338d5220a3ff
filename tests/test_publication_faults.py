"""Publishing a file while the process dies or the system refuses: the old file or the new one."""

import errno
import os
import resource
import shutil
import signal
import subprocess

import pytest

from llmcy.atomic_file import publish, sweep_temporaries
from llmcy.errors import FileError
from tests.faults import counted, failing_at, failing_from, in_child, killed_at

OLD, NEW = b"the old content " * 9, b"the new content, longer " * 9
CALLS = ["open", "write", "write", "write", "fsync", "close", "rename", "open", "fsync", "close"]
RENAME = CALLS.index("rename")


@pytest.fixture
def target(tmp_path, monkeypatch):
    """An old file; calls of write take a third of the new one each."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[: len(NEW) // 3]))
    path = tmp_path / "folder" / "file"
    path.parent.mkdir()
    path.write_bytes(OLD)
    return path


def test_the_calls_of_a_publication(target):
    with counted() as calls:
        publish(target, NEW)
    assert calls == CALLS
    assert target.read_bytes() == NEW


@pytest.mark.parametrize("nth", range(len(CALLS) + 1))
@pytest.mark.parametrize("exists", [True, False])
def test_killed_at_each_call(target, nth, exists):
    if not exists:
        target.unlink()
    old = OLD if exists else None

    def save():
        with killed_at(nth):
            publish(target, NEW)

    status = in_child(save)
    assert status == (-signal.SIGKILL if nth < len(CALLS) else 0)
    content = target.read_bytes() if target.exists() else None
    assert content == (old if nth <= RENAME else NEW)
    strays = sorted(set(os.listdir(target.parent)) - {"file"})
    assert len(strays) == (1 if 0 < nth <= RENAME else 0)
    assert sweep_temporaries(target.parent) == strays  # what the next start does
    assert set(os.listdir(target.parent)) <= {"file"}
    publish(target, NEW)
    assert target.read_bytes() == NEW


@pytest.mark.parametrize("nth", range(len(CALLS)))
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC, errno.EDQUOT])
def test_each_call_failing(target, nth, code):
    with failing_at(nth, code) as failed, pytest.raises(FileError) as caught:
        publish(target, NEW)
    assert failed == [CALLS[nth]]
    assert caught.value.kind == "Io"
    assert caught.value.cause.errno == code
    assert target.read_bytes() == (OLD if nth <= RENAME else NEW)
    assert os.listdir(target.parent) == ["file"]


@pytest.mark.parametrize("first", range(len(CALLS)))
def test_every_call_failing_from_one_on(target, first):
    with failing_from(first), pytest.raises(FileError):
        publish(target, NEW)
    assert target.read_bytes() == (OLD if first <= RENAME else NEW)
    strays = sorted(set(os.listdir(target.parent)) - {"file"})
    assert len(strays) == (1 if 0 < first <= RENAME else 0)  # it could not be removed either
    assert sweep_temporaries(target.parent) == strays
    assert os.listdir(target.parent) == ["file"]


def test_sweeping_takes_temporaries_only(tmp_path):
    stay = [".file.tmp-1", ".file.tmp-1-2x", "file.tmp-1-2", ".tmp-1-2", ".hidden", "file"]
    for name in [*stay, ".file.tmp-1-2", ".a\nb.tmp-77-0"]:
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / ".folder.tmp-3-4").mkdir()
    (tmp_path / ".link.tmp-3-4").symlink_to("file")
    assert sorted(sweep_temporaries(tmp_path)) == [".a\nb.tmp-77-0", ".file.tmp-1-2"]
    assert sorted(os.listdir(tmp_path)) == sorted([*stay, ".folder.tmp-3-4", ".link.tmp-3-4"])


def test_a_file_size_limit(target):
    def save():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(NEW) - 1, len(NEW) - 1))
        with pytest.raises(FileError) as caught:
            publish(target, NEW)
        assert caught.value.cause.errno == errno.EFBIG

    assert in_child(save) == 0
    assert target.read_bytes() == OLD
    assert os.listdir(target.parent) == ["file"]


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one mebibyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small file system")
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"cannot mount a small file system: {done.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_without_room(small_disk, monkeypatch):
    target = small_disk / "file"
    old, new, small = bytes([1]) * 600_000, bytes([2]) * 700_000, bytes([3]) * 400_000
    publish(target, old)
    with counted() as calls, pytest.raises(FileError) as caught:
        publish(target, new)
    assert (caught.value.kind, caught.value.needed) == ("NoSpace", 700_000)
    assert caught.value.free < 700_000
    assert calls == []  # nothing was begun
    assert target.read_bytes() == old
    monkeypatch.delattr(os, "statvfs")  # somebody else takes the room meanwhile
    with pytest.raises(FileError) as caught:
        publish(target, new)
    assert (caught.value.kind, caught.value.cause.errno) == ("Io", errno.ENOSPC)
    assert target.read_bytes() == old
    assert os.listdir(small_disk) == ["file"]
    publish(target, small)
    assert target.read_bytes() == small


def test_content_in_pieces(target):
    with counted() as calls:
        publish(target, [NEW[:50], memoryview(NEW)[50:120], b"", bytearray(NEW[120:])])
    assert target.read_bytes() == NEW
    assert calls.count("write") == 4  # each takes a third at most
    for nth in range(len(calls)):
        target.write_bytes(OLD)
        with failing_at(nth), pytest.raises(FileError):
            publish(target, [NEW[:50], NEW[50:]])
        assert target.read_bytes() in (OLD, NEW)
        assert os.listdir(target.parent) == ["file"]
