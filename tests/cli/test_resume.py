"""``llmcy resume``, and what ``llmcy train`` does about checkpoints, signals and full disks."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from llmcy.rng import SplitMix64
from llmcy.run import RunDirectory, load_model
from tests.cli.command import llmcy
from tests.run.tiny import WORDS, records

TINY = (
    "--d-model", 16, "--n-layers", 1, "--n-heads", 2, "--context-length", 16, "--batch-size", 5,
    "--eval-every", 4, "--merges", 20, "--learning-rate", 0.01,
)  # fmt: skip
STOPPED, NOT_SAVED = 75, 74
DYING_AT_STEP = """
import os, sys
from llmcy.run import job
original = job.Job._record
def record(self, done, seconds):
    original(self, done, seconds)
    if done.step == {step}:
        os.kill(os.getpid(), {signal})
job.Job._record = record
from llmcy.cli.app import main
main()
"""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    rng = SplitMix64(5)
    for n in range(40):
        words = [WORDS[rng.below(len(WORDS))] for _ in range(60)]
        (folder / f"{n:02}.txt").write_text(" ".join(words) + "\n")
    return folder


@pytest.fixture(scope="module")
def whole(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("whole") / "run"
    result = llmcy("train", text, *TINY, "--steps", 10, "--run", run)
    assert result.returncode == 0, result.stderr
    return run


@pytest.fixture(scope="module")
def long_run(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("long") / "run"
    result = llmcy("train", text, *TINY, "--steps", 300, "--run", run, "--quiet")
    assert result.returncode == 0, result.stderr
    return run


def same_run(a: Path, b: Path) -> bool:
    return (
        records(a / "steps.jsonl") == records(b / "steps.jsonl")
        and (a / "evaluations.jsonl").read_bytes() == (b / "evaluations.jsonl").read_bytes()
        and (a / "summary.json").read_bytes() == (b / "summary.json").read_bytes()
        and RunDirectory.open(a).selected_path().read_bytes()
        == RunDirectory.open(b).selected_path().read_bytes()
    )


def interrupted(text: Path, run: Path, number: signal.Signals, steps: int) -> Any:
    """Send a signal to a training command as soon as its third step is recorded."""
    command = [sys.executable, "-m", "llmcy", "train", text, *TINY, "--steps", steps, "--run", run]
    process = subprocess.Popen(
        [str(part) for part in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    log = run / "steps.jsonl"
    while process.poll() is None and not (log.exists() and log.read_bytes().count(b"\n") >= 3):
        time.sleep(0.005)
    process.send_signal(number)
    stdout, stderr = process.communicate()
    return process.returncode, stdout, stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_saves_and_stops_with_a_status_of_its_own(
    text: Path, long_run: Path, tmp_path: Path, number: signal.Signals
) -> None:
    run = tmp_path / "run"
    status, _, stderr = interrupted(text, run, number, 300)
    assert status == STOPPED, stderr
    assert len(stderr.strip().splitlines()) == 1
    step = int(re.search(r"stopped after step (\d+) of 300", stderr)[1])  # type: ignore[index]
    assert f"llmcy resume {run}" in stderr
    assert (run / "checkpoints" / f"step-{step:08}.safetensors").exists()
    assert records(run / "steps.jsonl")[-1]["step"] == step
    # the records are those of a run that nobody interrupted
    assert records(run / "steps.jsonl") == records(long_run / "steps.jsonl")[:step]


def test_resuming_by_command_ends_in_the_same_run(text: Path, whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    code = DYING_AT_STEP.format(step=7, signal=int(signal.SIGKILL))
    arguments = ["train", text, *TINY, "--steps", 10, "--run", run, "--checkpoint-every", 3]
    killed = subprocess.run([sys.executable, "-c", code, *map(str, arguments)])
    assert killed.returncode == -signal.SIGKILL
    assert load_model(run).selected_step == 4
    result = llmcy("resume", run, "--micro-batch-size", 2, LLMCY_NUM_THREADS="1")
    assert result.returncode == 0, result.stderr
    assert "after step 6 of 10" in result.stdout
    assert same_run(run, whole)
    summary = json.loads((run / "summary.json").read_text())
    assert result.stdout.splitlines()[-2:] == [
        f"history    {summary['history']}",
        f"parameters {summary['fingerprint']}",
    ]
    environment = [json.loads(x) for x in (run / "environment.jsonl").read_text().splitlines()]
    assert [e["options"]["micro_batch_size"] for e in environment] == [0, 2]
    assert [e["options"]["checkpoint_every"] for e in environment] == [3, 3]
    assert environment[1]["arguments"][:2] == ["resume", str(run)]


def test_micro_batches_and_options_do_not_reach_the_result(
    text: Path, whole: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    result = llmcy(
        "train", text, *TINY, "--steps", 10, "--run", run, "--micro-batch-size", 1,
        "--checkpoint-every", 2, "--keep-last", 1, "--keep-every", 4, "--on-save-error", "continue",
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert same_run(run, whole)
    assert sorted(p.name for p in (run / "checkpoints").iterdir()) == [
        f"step-{step:08}.safetensors" for step in (0, 4, 8, 10)
    ]


def test_extending_by_command(whole: Path, text: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert llmcy("train", text, *TINY, "--steps", 10, "--run", run).returncode == 0
    result = llmcy("resume", run, "--extend", 4, "--learning-rate", 0.004, "--schedule", "linear")
    assert result.returncode == 0, result.stderr
    steps = records(run / "steps.jsonl")
    low = 0.004 / 10.0
    assert [line["learning_rate"] for line in steps[10:]] == [
        low + (0.004 - low) * ((4 - k) / 4) for k in (1, 2, 3, 4)
    ]
    assert steps[:10] == records(whole / "steps.jsonl")
    assert [r["step"] for r in records(run / "evaluations.jsonl")] == [0, 4, 8, 10, 12, 14]
    rates = tmp_path / "rates.txt"
    rates.write_text("0.001\n\n0x1p-10\n")
    assert llmcy("resume", run, "--learning-rates", rates).returncode == 0
    steps = records(run / "steps.jsonl")
    assert [line["learning_rate"] for line in steps[14:]] == [0.001, 2.0**-10]
    assert json.loads((run / "config.json").read_text())["extensions"][1] == {
        "after_step": 14, "steps": 2, "eval_at": [], "schedule": "list",
    }  # fmt: skip


def test_extending_to_a_step_may_be_asked_for_again(whole: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(whole, tmp_path / "run"))
    command = ("resume", run, "--extend-to", 15, "--learning-rate", 0.004, "--eval-at", "11,12")
    killed = subprocess.run(
        [sys.executable, "-c", DYING_AT_STEP.format(step=13, signal=int(signal.SIGKILL))]
        + [str(part) for part in command]
    )
    assert killed.returncode == -signal.SIGKILL
    for _ in range(2):  # to its end, and once more
        result = llmcy(*command)
        assert result.returncode == 0, result.stderr
        assert result.stderr == (
            "warning: the updates to add are in the plan already; none are added\n"
        )
        steps = records(run / "steps.jsonl")
        assert [line["learning_rate"] for line in steps[10:]] == [0.004] * 5
        measured = [r["step"] for r in records(run / "evaluations.jsonl")]
        assert measured == [0, 4, 8, 10, 11, 12, 15]
    result = llmcy(*command[:-2], "--min-learning-rate", 0.001)
    assert result.returncode == 1
    assert "5 updates were added after step 10" in result.stderr


def test_rates_and_epochs_of_a_new_run(text: Path, tmp_path: Path) -> None:
    rates = tmp_path / "rates.txt"
    rates.write_text("0.01\n0.02\n0.005\n")
    result = llmcy("train", text, *TINY, "--learning-rates", rates, "--run", tmp_path / "a")
    assert result.returncode == 0, result.stderr
    steps = records(tmp_path / "a" / "steps.jsonl")
    assert [line["learning_rate"] for line in steps] == [0.01, 0.02, 0.005]
    result = llmcy("train", text, *TINY, "--epochs", 2, "--batch-size", 64, "--run",
                   tmp_path / "b", "--schedule", "wsd", "--decay-steps", 3)  # fmt: skip
    assert result.returncode == 0, result.stderr
    steps = records(tmp_path / "b" / "steps.jsonl")
    n = json.loads((tmp_path / "b" / "config.json").read_text())["batches_per_epoch"]
    assert len(steps) == 2 * n
    assert [line["epoch"] for line in steps] == [0] * n + [1] * n


REFUSED = {
    "missing": (("missing",), "is not a run folder"),
    "no rate": (("RUN", "--extend", 3), "--learning-rate: added updates need it"),
    "no rate to a step": (("RUN", "--extend-to", 13), "--learning-rate: added updates need it"),
    "a step that is planned": (
        ("RUN", "--extend-to", 9, "--learning-rate", 0.1),
        "--extend-to: the run is planned to step 10 already",
    ),
    "two ends": (
        ("RUN", "--extend-to", 12, "--extend", 2, "--learning-rate", 0.1),
        "takes the place of --extend",
    ),
    "steps to measure at": (("RUN", "--eval-at", "12"), "it goes with --extend"),
    "no added step": (
        ("RUN", "--extend", 3, "--learning-rate", 0.1, "--eval-at", "10"),
        "validation steps must increase, got 10 after 10",
    ),
    "rate without steps": (("RUN", "--learning-rate", 0.1), "it must be at least 1"),
    "fewer": (("RUN", "--extend", -1, "--learning-rate", 0.1), "it must be at least 1"),
    "zero rate": (
        ("RUN", "--extend", 1, "--learning-rate", 0),
        "the learning rate of step 1 must be finite and > 0",
    ),
    "decay": (("RUN", "--extend", 1, "--learning-rate", 99), "learning_rate * weight_decay"),
    "keep": (("RUN", "--keep-last", 0), "keep_last must be a whole number"),
    "rates": (("RUN", "--learning-rates", "/dev/null"), "needs at least one rate"),
    "threads": (("RUN", "--threads", 0), "n_threads"),
    "a file": (("RUN/config.json",), "a run continues from its folder"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_request_is_one_line_and_changes_nothing(whole: Path, name: str) -> None:
    arguments, message = REFUSED[name]
    given = [str(a).replace("RUN", str(whole)) for a in arguments]
    before = {p: p.read_bytes() for p in whole.rglob("*") if p.is_file()}
    result = llmcy("resume", *given)
    assert result.returncode == 1, result.stdout
    assert len(result.stderr.strip().splitlines()) == 1
    assert message in result.stderr
    assert {p: p.read_bytes() for p in whole.rglob("*") if p.is_file()} == before


def test_a_version_1_checkpoint_is_refused_with_the_reason(text: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert llmcy("train", text, *TINY, "--steps", 2, "--dtype", "float64", "--run", run
                 ).returncode == 0  # fmt: skip
    result = llmcy("resume", run / "selected.ckpt")
    assert result.returncode == 1
    assert "a version-1 checkpoint holds a model and its optimizer, but no schedule" in (
        result.stderr
    )


@pytest.mark.parametrize("size", [50000, 70000])
def test_a_file_size_limit_stops_with_a_status_of_its_own(
    text: Path, tmp_path: Path, size: int
) -> None:
    """Enough for the data of the run; not for a checkpoint, or not for the growing records."""
    run = tmp_path / "run"

    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    wide = ("--d-model", 32) if size == 50000 else ("--d-model", 8, "--checkpoint-every", 5)
    result = llmcy("train", text, *TINY, *wide, "--steps", 120, "--run", run, preexec=limit)
    assert result.returncode == NOT_SAVED, result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert "cannot save the" in result.stderr
    assert not list(run.rglob(".*"))
    for folder in ("checkpoints", "selected"):
        for path in (run / folder).iterdir():
            assert load_model(path).model.n_parameters > 0  # whole
    result = llmcy("resume", run)
    assert result.returncode == 0, result.stderr
    assert records(run / "steps.jsonl")[-1]["step"] == 120


def test_a_damaged_checkpoint_is_named_on_stderr(text: Path, whole: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert llmcy("train", text, *TINY, "--steps", 10, "--run", run, "--checkpoint-every", 4
                 ).returncode == 0  # fmt: skip
    newest = run / "checkpoints" / "step-00000010.safetensors"
    os.truncate(newest, newest.stat().st_size - 100)
    result = llmcy("resume", run)
    assert result.returncode == 0, result.stderr
    assert result.stderr.startswith("warning: skipped a checkpoint: ")
    assert str(newest) in result.stderr
    assert "after step 8 of 10" in result.stdout
    assert same_run(run, whole)
