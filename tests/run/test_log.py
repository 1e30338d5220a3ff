"""Logs: whole lines, found from the end, cut back to a step."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from llmcy.errors import RunError
from llmcy.run import log
from llmcy.run.log import RecordLog, last_record_until


def line(step: int, size: int = 0) -> bytes:
    return (json.dumps({"step": step, "x": "y" * size}) + "\n").encode()


def by_reading_all(data: bytes, step: int) -> tuple[int, int | None]:
    """The slow way."""
    size, found, position = 0, None, 0
    for text in data.splitlines(keepends=True):
        position += len(text)
        if text.endswith(b"\n") and json.loads(text)["step"] <= step:
            size, found = position, json.loads(text)["step"]
    return size, found


@pytest.mark.parametrize("block", [1, 2, 3, 7, 64, 65536])
@pytest.mark.parametrize("size", [0, 5, 100])
@pytest.mark.parametrize("tail", [b"", b'{"step": 9', b"{", b"\xff\xfe"])
def test_the_last_record_is_found_from_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int, size: int, tail: bytes
) -> None:
    monkeypatch.setattr(log, "BLOCK", block)
    path = tmp_path / "log"
    for steps in ([], [0], [1, 2, 3], [0, 7, 14, 21], [4] * 3):
        data = b"".join(line(step, size) for step in steps) + tail
        path.write_bytes(data)
        for step in (-1, 0, 1, 3, 7, 20, 21, 100):
            expected_size, expected = by_reading_all(data, step)
            found_size, record = last_record_until(path, step)
            assert (found_size, record and record["step"]) == (expected_size, expected)


def test_only_the_end_of_a_long_log_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"".join(line(step, 90) for step in range(20000)))
    read = []
    true_open = Path.open

    def counting(self: Path, *args: Any, **kwargs: Any) -> Any:
        file = true_open(self, *args, **kwargs)

        class Counting:
            def __enter__(self) -> "Counting":
                return self

            def __exit__(self, *error: object) -> None:
                file.close()

            def seek(self, *where: int) -> int:
                return int(file.seek(*where))

            def read(self, size: int) -> bytes:
                read.append(size)
                return bytes(file.read(size))

        return Counting()

    monkeypatch.setattr(Path, "open", counting)
    _, record = last_record_until(path, 19990)
    assert record is not None
    assert record["step"] == 19990
    assert sum(read) <= 2 * log.BLOCK < path.stat().st_size / 10


HOLE = bytes(40) + b'"x": 1}\n'  # what a power failure leaves of lines that were not on the disk


@pytest.mark.parametrize(
    "bad", [b"{\n", b"[]\n", b'{"step": "1"}\n', b"\n", b'{"x": 1}\n', HOLE, b"\xff\xfe\n"]
)
def test_lines_that_are_no_records_are_passed_over(tmp_path: Path, bad: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(line(1) + bad + line(7) + bad)
    size, record = last_record_until(path, 5)
    assert (size, record) == (len(line(1)), json.loads(line(1)))
    path.write_bytes(bad)
    assert last_record_until(path, 5) == (0, None)


def test_a_log_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert last_record_until(tmp_path / "missing", 9) == (0, None)
    with pytest.raises(RunError):
        last_record_until(tmp_path, 9)


def test_opening_cuts_and_appending_adds(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(line(1) + line(2) + b'{"st')
    held = RecordLog(path, len(line(1)))
    held.append({"step": 2, "x": 1.5})
    held.synchronize()
    held.close()
    assert path.read_bytes() == line(1) + b'{"step": 2, "x": 1.5}\n'
    with pytest.raises(RunError):
        RecordLog(tmp_path / "no" / "log", 0)


def test_lines_that_could_not_be_written_follow_later_without_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    held = RecordLog(path, 0)
    held.append({"step": 1})
    original, left = os.pwrite, [0]

    def full(descriptor: int, data: Any, offset: int) -> int:
        if left[0] <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= 1
        return original(descriptor, data[:4], offset)  # a part of it

    monkeypatch.setattr(os, "pwrite", full)
    for step in (2, 3):
        left[0] = 2
        with pytest.raises(RunError):
            held.append({"step": step})
        assert path.read_bytes() == b'{"step": 1}\n'
    left[0] = 1000
    held.append({"step": 4})
    assert [json.loads(x)["step"] for x in path.read_bytes().splitlines()] == [1, 2, 3, 4]
    held.close()
