"""Replacing a file in one visible step: the order of system calls and every failure."""

import errno
import os
import shutil
import stat
import subprocess
import sys
import textwrap
import threading

import pytest

from llmcy import atomic_file
from llmcy.atomic_file import MAX_TEMPORARY_ATTEMPTS, check_destination, write_atomic
from llmcy.errors import FileError

OLD, NEW = b"old content", b"new content, longer than the old"


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "file.bin"
    path.write_bytes(OLD)
    return path


def dot_files(folder):
    return sorted(name for name in os.listdir(folder) if name.startswith("."))


def no_space(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


# --------------------------------------------------------------------------- success
def test_replaces_and_creates(target):
    write_atomic(target, NEW)
    assert target.read_bytes() == NEW
    fresh = target.with_name("fresh")
    write_atomic(str(fresh), bytearray(b"abc"))
    write_atomic(os.fsencode(fresh), memoryview(b"abcd"))
    assert fresh.read_bytes() == b"abcd"
    assert dot_files(target.parent) == []


def test_an_empty_file_and_a_typed_buffer_are_written_whole(target):
    import array

    write_atomic(target, b"")
    assert target.read_bytes() == b""
    write_atomic(target, memoryview(array.array("d", [1.5, 2.5])))
    assert len(target.read_bytes()) == 16


def test_bare_name_goes_to_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_atomic("bare", NEW)
    assert (tmp_path / "bare").read_bytes() == NEW
    assert check_destination("bare") == ("bare", ".", "bare")


def test_mode_follows_the_umask_and_not_the_old_file(target):
    target.chmod(0o600)
    before = os.umask(0o027)
    try:
        write_atomic(target, NEW)
    finally:
        os.umask(before)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_symbolic_link_becomes_a_regular_file(target, tmp_path):
    link = tmp_path / "link"
    link.symlink_to(target)
    write_atomic(link, NEW)
    assert not link.is_symlink()
    assert link.read_bytes() == NEW
    assert target.read_bytes() == OLD


def test_name_that_is_not_utf8_is_rendered_lossily_in_the_temporary_name_only(
    tmp_path, monkeypatch
):
    opened = []
    real_open = os.open
    monkeypatch.setattr(os, "open", lambda p, *a: (opened.append(p), real_open(p, *a))[1])
    raw = os.fsencode(tmp_path) + b"/caf\xe9"
    write_atomic(raw, NEW)
    assert os.listdir(os.fsencode(tmp_path)) == [b"caf\xe9"]
    assert os.path.basename(opened[0]).startswith(".caf\N{REPLACEMENT CHARACTER}.tmp-")


# --------------------------------------------------------------------------- destination forms
@pytest.mark.feature("M36")
@pytest.mark.parametrize("path", ["", "/", "..", ".", "a/..", "../..", "//", b"", b"x/.."])
def test_destination_needs_a_file_name(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileError) as caught:
        write_atomic(path, NEW)
    assert caught.value.kind == "NoFileName"
    assert caught.value.path == os.fsdecode(path)
    assert list(tmp_path.iterdir()) == []


def test_zero_byte_in_the_path(tmp_path):
    with pytest.raises(FileError) as caught:
        write_atomic(f"{tmp_path}/a\0b", NEW)
    assert (caught.value.kind, caught.value.operation) == ("Io", "create temporary")
    assert isinstance(caught.value.cause, ValueError)


@pytest.mark.feature("M34")
def test_destination_that_is_a_directory_leaves_no_temporary(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileError) as caught:
        write_atomic(tmp_path / "folder", NEW)
    error = caught.value
    assert (error.kind, error.operation) == ("Io", "atomically replace")
    assert error.path == str(tmp_path / "folder")
    assert isinstance(error.cause, OSError)
    assert os.listdir(tmp_path) == ["folder"]


@pytest.mark.feature("M34")
def test_trailing_slash_leaves_no_temporary(tmp_path):
    with pytest.raises(FileError) as caught:
        write_atomic(f"{tmp_path}/name/", NEW)
    assert caught.value.operation == "atomically replace"
    assert caught.value.path == f"{tmp_path}/name/"
    assert os.listdir(tmp_path) == []


def test_missing_directory(tmp_path):
    with pytest.raises(FileError) as caught:
        write_atomic(tmp_path / "no" / "file", NEW)
    error = caught.value
    assert (error.kind, error.operation) == ("Io", "create temporary")
    assert error.path.startswith(str(tmp_path / "no" / ".file.tmp-"))
    assert error.cause.errno == errno.ENOENT


# --------------------------------------------------------------------------- order of calls
class Recorder:
    """Wraps the functions of ``os`` that matter and writes down each call."""

    NAMES = ("open", "write", "fsync", "close", "rename", "unlink")

    def __init__(self, monkeypatch):
        self.calls = []
        for name in self.NAMES:
            monkeypatch.setattr(os, name, self._wrap(name, getattr(os, name)))

    def _wrap(self, name, real):
        def call(*args):
            self.calls.append((name, args))
            return real(*args)

        return call

    def names(self):
        return [name for name, _ in self.calls]


@pytest.mark.feature("M33")
def test_order_of_calls_as_made(target, monkeypatch):
    recorder = Recorder(monkeypatch)
    write_atomic(target, NEW)
    monkeypatch.undo()
    assert recorder.names() == [
        *("open", "write", "fsync", "close", "rename", "open", "fsync", "close"),
    ]
    (temporary, flags, mode) = recorder.calls[0][1]
    assert flags == os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    assert mode == 0o666
    assert os.path.dirname(temporary) == str(target.parent)
    assert recorder.calls[4][1] == (temporary, str(target))
    assert recorder.calls[5][1] == (str(target.parent), os.O_RDONLY | os.O_CLOEXEC)


@pytest.mark.feature("M33")
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_order_of_calls_as_the_kernel_sees_them(target, tmp_path):
    log = tmp_path / "trace.txt"
    code = f"from llmcy.atomic_file import write_atomic; write_atomic({str(target)!r}, b'x' * 100)"
    filters = "trace=openat,write,fsync,fdatasync,close,rename,renameat,renameat2,unlink"
    command = ["strace", "-f", "-y", "-e", filters, "-o", str(log), sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0 and "ptrace" in done.stderr.lower():
        pytest.skip("this machine does not allow tracing")
    assert done.returncode == 0, done.stderr
    lines = log.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if ".file.bin.tmp-" in line)
    ours = [line.split(None, 1)[1] for line in lines[first:] if str(tmp_path) in line]
    assert [line.split("(")[0] for line in ours] == [
        *("openat", "write", "fsync", "close", "rename", "openat", "fsync", "close"),
    ]
    assert "O_WRONLY|O_CREAT|O_EXCL|O_CLOEXEC, 0666" in ours[0]
    assert "O_RDONLY|O_CLOEXEC" in ours[5]
    assert target.read_bytes() == b"x" * 100


# --------------------------------------------------------------------------- injected failures
def fail_nth(monkeypatch, name, nth, error=None):
    """Let the ``nth`` call of ``os.<name>`` (from 0) fail; return the list of all its calls."""
    real, calls = getattr(os, name), []

    def call(*args):
        calls.append(args)
        if len(calls) - 1 == nth:
            if name == "close":
                real(*args)  # the descriptor is gone even when closing reports a failure
            raise error or OSError(errno.EIO, "Input/output error")
        return real(*args)

    monkeypatch.setattr(os, name, call)
    return calls


STEPS = [
    ("open", 0, "create temporary", OLD),
    ("write", 0, "write temporary", OLD),
    ("fsync", 0, "synchronize temporary", OLD),
    ("close", 0, "close temporary", OLD),
    ("rename", 0, "atomically replace", OLD),
    ("open", 1, "synchronize parent directory", NEW),
    ("fsync", 1, "synchronize parent directory", NEW),
    ("close", 1, "synchronize parent directory", NEW),
]


@pytest.mark.feature("M33", "M34")
@pytest.mark.parametrize(("function", "nth", "operation", "content"), STEPS)
def test_failure_of_each_step(target, monkeypatch, function, nth, operation, content):
    descriptors = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0
    fail_nth(monkeypatch, function, nth)
    with pytest.raises(FileError) as caught:
        write_atomic(target, NEW)
    monkeypatch.undo()
    error = caught.value
    assert (error.kind, error.operation) == ("Io", operation)
    assert error.cause.errno == errno.EIO
    assert error.__cause__ is error.cause
    expected_path = {
        "atomically replace": str(target),
        "synchronize parent directory": str(target.parent),
    }
    if operation in expected_path:
        assert error.path == expected_path[operation]
    else:
        assert os.path.basename(error.path).startswith(".file.bin.tmp-")
    assert target.read_bytes() == content
    assert dot_files(target.parent) == []
    if descriptors:
        assert len(os.listdir("/proc/self/fd")) == descriptors


def test_every_write_of_several_can_fail(target, monkeypatch):
    for nth in range(4):
        with monkeypatch.context() as patch:
            real = os.write
            patch.setattr(os, "write", lambda fd, data, real=real: real(fd, bytes(data[:10])))
            fail_nth(patch, "write", nth, OSError(errno.ENOSPC, "No space left on device"))
            with pytest.raises(FileError) as caught:
                write_atomic(target, NEW)
        assert caught.value.operation == "write temporary"
        assert caught.value.cause.errno == errno.ENOSPC
        assert target.read_bytes() == OLD
        assert dot_files(target.parent) == []


def test_short_writes_are_continued(target, monkeypatch):
    real = os.write
    sizes = []

    def seven_at_a_time(descriptor, data):
        sizes.append(len(data))
        return real(descriptor, bytes(data[:7]))

    monkeypatch.setattr(os, "write", seven_at_a_time)
    write_atomic(target, NEW)
    assert sizes == list(range(len(NEW), 0, -7))
    assert target.read_bytes() == NEW


def test_a_write_that_writes_nothing_is_a_failure(target, monkeypatch):
    monkeypatch.setattr(os, "write", lambda descriptor, data: 0)
    with pytest.raises(FileError) as caught:
        write_atomic(target, NEW)
    assert caught.value.operation == "write temporary"
    assert target.read_bytes() == OLD
    assert dot_files(target.parent) == []


def test_interrupt_removes_the_temporary(target, monkeypatch):
    fail_nth(monkeypatch, "fsync", 0, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        write_atomic(target, NEW)
    assert target.read_bytes() == OLD
    assert dot_files(target.parent) == []


def test_a_failing_removal_does_not_hide_the_first_failure(target, monkeypatch):
    monkeypatch.setattr(os, "rename", no_space)
    monkeypatch.setattr(os, "unlink", no_space)
    with pytest.raises(FileError) as caught:
        write_atomic(target, NEW)
    assert caught.value.operation == "atomically replace"
    assert len(dot_files(target.parent)) == 1


# --------------------------------------------------------------------------- temporary names
def next_serials(count):
    """The serials that the next attempts will use."""
    start = atomic_file._next_serial() + 1
    return range(start, start + count)


@pytest.mark.feature("M37")
def test_occupied_names_are_skipped(target):
    for serial in next_serials(40):
        target.with_name(f".file.bin.tmp-{os.getpid()}-{serial}").write_bytes(b"mine")
    write_atomic(target, NEW)
    assert target.read_bytes() == NEW
    left = dot_files(target.parent)
    assert len(left) == 40
    assert all(target.with_name(name).read_bytes() == b"mine" for name in left)


@pytest.mark.feature("M37")
def test_attempts_are_bounded(target):
    assert MAX_TEMPORARY_ATTEMPTS == 128
    serials = next_serials(MAX_TEMPORARY_ATTEMPTS)
    for serial in serials:
        target.with_name(f".file.bin.tmp-{os.getpid()}-{serial}").write_bytes(b"mine")
    with pytest.raises(FileError) as caught:
        write_atomic(target, NEW)
    error = caught.value
    assert (error.kind, error.operation) == ("Io", "create unique temporary")
    assert error.path == str(target)
    assert isinstance(error.cause, FileExistsError)
    assert target.read_bytes() == OLD
    assert len(dot_files(target.parent)) == 128
    assert atomic_file._next_serial() == serials.stop
    write_atomic(target, NEW)  # the counter has moved past the occupied names
    assert target.read_bytes() == NEW


def test_threads_never_share_a_serial():
    seen = []

    def take():
        seen.extend(atomic_file._next_serial() for _ in range(2000))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(seen)) == 8000


def test_concurrent_writers_leave_one_whole_file(tmp_path):
    target = tmp_path / "shared"
    contents = [bytes([65 + k]) * 5000 for k in range(4)]

    def write(content):
        for _ in range(10):
            write_atomic(target, content)

    threads = [threading.Thread(target=write, args=(content,)) for content in contents]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert target.read_bytes() in contents
    assert os.listdir(tmp_path) == ["shared"]


# --------------------------------------------------------------------------- crash, platform
@pytest.mark.feature("P07")
def test_crash_between_fsync_and_rename_leaves_the_old_file(target):
    code = textwrap.dedent(
        f"""
        import os
        from llmcy.atomic_file import write_atomic
        os.rename = lambda *names: os._exit(77)
        write_atomic({str(target)!r}, {NEW!r})
        """
    )
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == 77
    assert target.read_bytes() == OLD
    (left,) = dot_files(target.parent)
    assert target.with_name(left).read_bytes() == NEW
    write_atomic(target, b"later")
    assert target.read_bytes() == b"later"
    assert dot_files(target.parent) == [left]  # nothing cleans it up


@pytest.mark.feature("M35")
def test_other_platforms_are_refused_before_anything_is_touched(target, monkeypatch):
    monkeypatch.setattr(atomic_file, "RENAME_IS_ATOMIC", False)
    recorder = Recorder(monkeypatch)
    for path in (target, "..", target.parent / "new"):
        with pytest.raises(FileError) as caught:
            write_atomic(path, NEW)
        assert caught.value.kind == "UnsupportedAtomicReplacement"
    assert recorder.calls == []
    assert target.read_bytes() == OLD
    assert os.listdir(target.parent) == ["file.bin"]


def test_a_full_disk_leaves_the_old_file(tmp_path):
    """A real failing write: the file-size limit of a child process."""
    target = tmp_path / "file"
    target.write_bytes(OLD)
    code = textwrap.dedent(
        f"""
        import resource, signal
        from llmcy.atomic_file import write_atomic
        from llmcy.errors import FileError
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            write_atomic({str(target)!r}, bytes(5000))
        except FileError as error:
            print(error.kind, error.operation, type(error.cause).__name__)
        """
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "Io write temporary OSError\n"
    assert target.read_bytes() == OLD
    assert os.listdir(tmp_path) == ["file"]
