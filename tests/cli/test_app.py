"""The command group: what goes wrong is one line on stderr and a status, never a traceback."""

import os
import subprocess
import sys

import pytest


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "llmcy", *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["selftest", "--trace"], {"LLMCY_ISA": "z80"}, "instruction set 'z80' is not available"),
        (["selftest"], {"LLMCY_NUM_THREADS": "many"}, "LLMCY_NUM_THREADS must be a whole number"),
        (["inspect", "/no/such/file"], {}, "'/no/such/file'"),
    ],
)
def test_an_error_is_one_line(
    arguments: list[str], environment: dict[str, str], words: str
) -> None:
    done = run(*arguments, **environment)
    assert (done.returncode, done.stdout) == (1, "")
    lines = done.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    assert words in lines[0]


def test_a_wrong_command_is_a_usage_error() -> None:
    done = run("no-such-command")
    assert done.returncode == 2
    assert "no-such-command" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_goes_away_is_no_crash() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "llmcy", "selftest", "--trace"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert b"Traceback" not in process.stderr.read()
    process.stderr.close()
    assert process.wait() == 1
