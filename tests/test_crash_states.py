"""Publication under a file system that loses and reorders whatever was not forced to the disk."""

import os

import pytest

from llmcy.atomic_file import write_atomic
from tests.crash_states import Recording, recorded

OLD, NEW = b"old content " * 20, b"NEW CONTENT, LONGER " * 20


@pytest.fixture
def in_pieces(monkeypatch):
    """At most a third of the data in one call of write."""
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[: len(NEW) // 3 + 1]))


def careless(path, data, *, file=True, folder=True):
    """A publication routine that leaves one of its steps out."""
    temporary = f"{path}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    done = 0
    while done < len(data):
        done += os.write(descriptor, data[done:])
    if file:
        os.fsync(descriptor)
    os.close(descriptor)
    os.rename(temporary, path)
    if folder:
        descriptor = os.open(os.path.dirname(path), os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def found_at(recording: Recording, name: str):
    """For each moment, all contents that the file may have after a crash then."""
    return [{folder.get(name) for folder in moment.crash_states()} for moment in recording.moments]


@pytest.mark.parametrize("old", [OLD, None])
@pytest.mark.usefixtures("in_pieces")
def test_every_crash_leaves_the_old_or_the_new_file(tmp_path, old):
    target = tmp_path / "file"
    if old is not None:
        target.write_bytes(old)
    with recorded(tmp_path) as recording:
        write_atomic(target, NEW)
    expected = ["open", *["write"] * 3, "fsync", "close", "rename", "open", "fsync", "close"]
    assert recording.calls == ["start", *expected]
    found = found_at(recording, "file")
    assert set().union(*found) == {old, NEW}
    renamed, forced = recording.calls.index("rename"), len(recording.calls) - 2
    assert all(contents == {old} for contents in found[:renamed])
    assert all(contents == {old, NEW} for contents in found[renamed:forced])
    assert all(contents == {NEW} for contents in found[forced:])  # durable from here on


@pytest.mark.usefixtures("in_pieces")
def test_what_a_crash_leaves_beside_the_file_is_a_temporary(tmp_path):
    target = tmp_path / "file"
    target.write_bytes(OLD)
    with recorded(tmp_path) as recording:
        write_atomic(target, NEW)
    names = {
        name for moment in recording.moments for folder in moment.crash_states() for name in folder
    }
    (temporary,) = names - {"file"}
    assert temporary.startswith(".file.tmp-")


@pytest.mark.usefixtures("in_pieces")
def test_the_model_sees_a_file_that_was_not_forced(tmp_path):
    target = tmp_path / "file"
    target.write_bytes(OLD)
    with recorded(tmp_path) as recording:
        careless(str(target), NEW, file=False)
    found = set().union(*found_at(recording, "file"))
    assert {OLD, NEW} < found
    assert b"" in found
    assert any(content and set(content) == {0} for content in found)  # size without data
    assert any(content and NEW.startswith(content) and content != NEW for content in found)
    holes = [c for c in found if c and len(c) == len(NEW) and 0 in c and c.strip(b"\0")]
    assert holes  # later data without the earlier


@pytest.mark.usefixtures("in_pieces")
def test_the_model_sees_a_folder_that_was_not_forced(tmp_path):
    target = tmp_path / "file"
    target.write_bytes(OLD)
    with recorded(tmp_path) as recording:
        careless(str(target), NEW, folder=False)
    assert found_at(recording, "file")[-1] == {OLD, NEW}


def test_the_model_sees_a_file_written_in_place(tmp_path):
    target = tmp_path / "file"
    target.write_bytes(OLD)
    with recorded(tmp_path) as recording:
        descriptor = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        os.write(descriptor, NEW)
        os.fsync(descriptor)
        os.close(descriptor)
    found = set().union(*found_at(recording, "file"))
    assert not found <= {OLD, NEW}
    assert found_at(recording, "file")[-1] == {NEW}


def test_the_model_follows_logs_that_are_cut_and_grown(tmp_path):
    log = tmp_path / "log"
    log.write_bytes(b"one\ntwo\nthr")
    with recorded(tmp_path) as recording:
        descriptor = os.open(log, os.O_RDWR | os.O_CREAT, 0o666)
        os.ftruncate(descriptor, 8)
        os.pwrite(descriptor, b"three\n", 8)
        os.fsync(descriptor)
        os.pwrite(descriptor, b"four\n", 14)
        os.close(descriptor)
    found = found_at(recording, "log")
    assert b"one\ntwo\n" in found[2]
    assert found[4] == {b"one\ntwo\nthree\n"}  # forced
    assert b"one\ntwo\nthree\nfour\n" in found[-1]
    assert all(content.startswith(b"one\ntwo\nthree\n") for content in found[-1])


def test_random_crashes_are_some_of_all(tmp_path):
    target = tmp_path / "file"
    target.write_bytes(OLD)
    with recorded(tmp_path) as recording:
        careless(str(target), NEW, file=False, folder=False)
    last = recording.moments[-1]
    everything = [tuple(sorted(folder.items())) for folder in last.crash_states()]
    some = [tuple(sorted(folder.items())) for folder in last.crash_states(limit=5, seed=1)]
    assert len(some) == 5
    assert set(some) <= set(everything)
    assert len(everything) == 2 * 2 * 4
