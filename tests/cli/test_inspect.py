"""``llmcy inspect`` as a user runs it."""

import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

PUBLISHED = Path(__file__).resolve().parent.parent / "golden" / "published.ckpt"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "llmcy", "inspect", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.feature("K12", "N01", "N02")
def test_summary_and_table() -> None:
    done = run(str(PUBLISHED))
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0].endswith("4c 4c 4d 43 50 33 35 00 01 00 04 03 02 01 35 0b")
    assert "length = shape x width: yes; last end = file length: yes" in done.stdout
    rows = [
        line.split() for line in lines if "Moment" in line or "Token" in line or "Model" in line
    ]
    assert len(rows) == 38
    assert rows[0][0] == "2869"
    assert all(row[0] == before[1] for before, row in pairwise(rows))
    assert rows[-1][1] == "6330"


def test_fields() -> None:
    lines = run(str(PUBLISHED), "--fields").stdout.splitlines()
    start = next(i for i, line in enumerate(lines) if line.split() == ["offset", "width", "field"])
    end = next(i for i, line in enumerate(lines) if line.split() == ["start", "end", "record"])
    assert end - start - 2 == 384
    assert lines[start + 1].split(None, 2)[:2] == ["0", "8"]


def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.ckpt"
    damaged.write_bytes(PUBLISHED.read_bytes()[:-1])
    done = run(str(damaged))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: header of 2869 and payload of 3461 bytes")
    missing = run(str(tmp_path / "missing"))
    assert missing.returncode == 1
    assert "missing" in missing.stderr
    assert len(missing.stderr.splitlines()) == 1
