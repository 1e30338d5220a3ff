"""Checkpoint files on the disk: the steps of the save and the errors of checkpoints."""

import errno
import os
import subprocess
import sys
import textwrap

import pytest

from llmcy import atomic_file
from llmcy.checkpoint import Checkpoint
from llmcy.errors import CheckpointError
from tests.checkpoint.states import DIGITS, seal_of


@pytest.fixture
def checkpoint(published):
    return Checkpoint.from_bytes(published)


@pytest.fixture
def replacement(checkpoint):
    """The same state with the sampling stream one draw further."""
    return Checkpoint.from_snapshot(
        DIGITS, seal_of(checkpoint), checkpoint.sampling_rng_state() + 1
    )


def refusal(action, *arguments):
    with pytest.raises(CheckpointError) as caught:
        action(*arguments)
    return caught.value


@pytest.mark.feature("M45")
def test_save_load_replace(checkpoint, replacement, published, tmp_path):
    path = tmp_path / "model.ckpt"
    encoded = checkpoint.save_atomic(path)
    assert encoded == checkpoint.encode()
    assert path.read_bytes() == published
    second = replacement.save_atomic(path)
    loaded = Checkpoint.load(path)
    assert loaded.encode() == second
    assert loaded.sampling_rng_state() == 0x9E3779B97F4A7C39
    assert os.listdir(tmp_path) == ["model.ckpt"]


def test_path_forms(checkpoint, published, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("bare", b"bytes", tmp_path / "pathlike", "./dotted"):
        checkpoint.save_atomic(path)
        assert Checkpoint.load(path).encode().bytes == published


@pytest.mark.feature("M36")
@pytest.mark.parametrize("path", ["", "/", "..", "a/..", "."])
def test_no_file_name_is_found_before_anything_is_encoded(checkpoint, path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Checkpoint, "encode", lambda self: pytest.fail("encoded too early"))
    error = refusal(checkpoint.save_atomic, path)
    assert error.kind == "Layout"
    assert repr(path) in error.text
    assert os.listdir(tmp_path) == []


@pytest.mark.feature("M34")
def test_destination_is_a_directory(checkpoint, tmp_path):
    (tmp_path / "d").mkdir()
    error = refusal(checkpoint.save_atomic, tmp_path / "d")
    assert (error.kind, error.operation) == ("Io", "atomically replace")
    assert error.path == str(tmp_path / "d")
    assert isinstance(error.cause, OSError)
    assert os.listdir(tmp_path) == ["d"]


@pytest.mark.feature("M35")
def test_unsupported_platform(checkpoint, replacement, published, tmp_path, monkeypatch):
    path = tmp_path / "old"
    checkpoint.save_atomic(path)
    monkeypatch.setattr(atomic_file, "RENAME_IS_ATOMIC", False)
    error = refusal(replacement.save_atomic, path)
    assert error.kind == "UnsupportedAtomicReplacement"
    assert path.read_bytes() == published
    assert os.listdir(tmp_path) == ["old"]


@pytest.mark.feature("M33", "M34")
@pytest.mark.parametrize(
    ("function", "nth", "operation", "replaced"),
    [
        ("open", 0, "create temporary", False),
        ("write", 0, "write temporary", False),
        ("fsync", 0, "synchronize temporary", False),
        ("close", 0, "close temporary", False),
        ("rename", 0, "atomically replace", False),
        ("open", 1, "synchronize parent directory", True),
        ("fsync", 1, "synchronize parent directory", True),
    ],
)
def test_injected_failures(
    checkpoint, replacement, tmp_path, monkeypatch, function, nth, operation, replaced
):
    path = tmp_path / "file"
    checkpoint.save_atomic(path)
    real, calls = getattr(os, function), []

    def fail(*arguments):
        calls.append(arguments)
        if len(calls) - 1 == nth:
            if function == "close":
                real(*arguments)
            raise OSError(errno.EIO, "Input/output error")
        return real(*arguments)

    monkeypatch.setattr(os, function, fail)
    error = refusal(replacement.save_atomic, path)
    monkeypatch.undo()
    assert (error.kind, error.operation) == ("Io", operation)
    assert error.cause.errno == errno.EIO
    expected = replacement if replaced else checkpoint
    assert Checkpoint.load(path).encode() == expected.encode()
    assert os.listdir(tmp_path) == ["file"]


@pytest.mark.feature("M37")
def test_occupied_temporary_names(checkpoint, published, tmp_path):
    start = atomic_file._next_serial() + 1
    for serial in range(start, start + 40):
        (tmp_path / f".x.tmp-{os.getpid()}-{serial}").touch()
    checkpoint.save_atomic(tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == published
    start = atomic_file._next_serial() + 1
    for serial in range(start, start + 128):
        (tmp_path / f".x.tmp-{os.getpid()}-{serial}").touch()
    error = refusal(checkpoint.save_atomic, tmp_path / "x")
    assert (error.kind, error.operation) == ("Io", "create unique temporary")
    assert error.path == str(tmp_path / "x")
    assert isinstance(error.cause, FileExistsError)


@pytest.mark.feature("P07")
def test_crash_between_fsync_and_rename(checkpoint, published, tmp_path):
    path = tmp_path / "file"
    checkpoint.save_atomic(path)
    code = textwrap.dedent(
        f"""
        import os
        from llmcy.checkpoint import Checkpoint
        checkpoint = Checkpoint.load({str(path)!r})
        os.rename = lambda *names: os._exit(77)
        checkpoint.save_atomic({str(path)!r})
        """
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 77
    assert Checkpoint.load(path).encode().bytes == published
    left = [name for name in os.listdir(tmp_path) if name.startswith(".file.tmp-")]
    assert len(left) == 1


# --------------------------------------------------------------------------- loading
def test_load_failures(tmp_path):
    error = refusal(Checkpoint.load, tmp_path / "missing")
    assert (error.kind, error.operation) == ("Io", "read")
    assert error.path == str(tmp_path / "missing")
    assert isinstance(error.cause, FileNotFoundError)
    assert refusal(Checkpoint.load, tmp_path).kind == "Io"
    assert refusal(Checkpoint.load, "zero\0byte").kind == "Io"
    (tmp_path / "empty").touch()
    assert refusal(Checkpoint.load, tmp_path / "empty").kind == "Truncated"


@pytest.mark.feature("L06X")
def test_safetensors_does_not_read_the_file(published, tmp_path):
    import safetensors
    from safetensors.numpy import load

    with pytest.raises(safetensors.SafetensorError):
        load(published)


@pytest.mark.feature("M44", "N03")
def test_five_rejections_of_exact_kinds(checkpoint, published):
    from llmcy.checkpoint import TokenizerRecord
    from tests.oracle.checkpoint_file import build, parse

    version = published[:8] + b"\2\0" + published[10:]
    assert refusal(Checkpoint.from_bytes, version).kind == "UnsupportedVersion"
    one_token = TokenizerRecord.literal([b"0"])
    vocabulary = refusal(Checkpoint.from_snapshot, one_token, seal_of(checkpoint), 0)
    assert vocabulary.kind == "VocabularyMismatch"
    parts = parse(published)
    parts.selected_step = 9
    step = refusal(Checkpoint.from_bytes, build(parts))
    assert (step.kind, step.selected, step.optimizer) == ("StepMismatch", 9, 8)
    assert refusal(Checkpoint.from_bytes, published[:-1]).kind == "FileExtent"
    flipped = published[:-1] + bytes([published[-1] ^ 1])
    assert refusal(Checkpoint.from_bytes, flipped).kind == "ChecksumMismatch"
