"""``llmcy train`` and ``llmcy sample``: what they write, that it repeats, how they refuse."""

import json
import os
import resource
import signal
from pathlib import Path

import numpy as np
import pytest

from llmcy import available_isas
from llmcy.checkpoint import Checkpoint
from llmcy.run import RunDirectory, load_model
from tests.cli.command import llmcy

TINY = (
    "--d-model", 16, "--n-layers", 1, "--n-heads", 2, "--context-length", 16, "--steps", 6,
    "--batch-size", 4, "--eval-every", 4, "--merges", 20,
)  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of forty small files of invented sentences."""
    folder = tmp_path_factory.mktemp("text")
    words = [
        "the",
        "cat",
        "dog",
        "sees",
        "a",
        "tree",
        "and",
        "runs",
        "over",
        "green",
        "hills",
        "while",
        "rain",
        "falls",
    ]
    rng = np.random.default_rng(5)
    for n in range(40):
        (folder / f"{n:02}.txt").write_text(" ".join(rng.choice(words, 60)) + "\n")
    return folder


def last_line(output: str) -> str:
    return output.strip().splitlines()[-1]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_same_digest_on_every_instruction_set_and_thread_count(
    text: Path, tmp_path: Path, dtype: str
) -> None:
    digests, files = set(), set()
    for isa in available_isas():
        for threads in ("1", "2", "3"):
            run = tmp_path / f"{isa}-{threads}"
            result = llmcy(
                "train", text, *TINY, "--dtype", dtype, "--run", run,
                LLMCY_ISA=isa, LLMCY_NUM_THREADS=threads,
            )  # fmt: skip
            assert result.returncode == 0, result.stderr
            digests.add(last_line(result.stdout))
            files.add(RunDirectory.open(run).selected_path().read_bytes())
    assert len(digests) == len(files) == 1
    assert last_line(result.stdout).startswith("parameters fnv1a64:")


def test_the_run_folder_tells_the_whole_run(text: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = llmcy("train", text, *TINY, "--run", run)
    assert result.returncode == 0, result.stderr
    assert {p.name for p in run.iterdir()} == {
        "config.json", "split.json", "tokenizer.json", "tokens.bin", "tokens.json",
        "environment.jsonl", "steps.jsonl", "evaluations.jsonl", "checkpoints", "selected",
        "selected.safetensors", "summary.json",
    }  # fmt: skip
    config = json.loads((run / "config.json").read_text())
    assert config["contract_version"] == 1
    assert len(config["learning_rates"]) == 6
    assert config["validation_steps"] == [0, 4, 6]
    steps = [json.loads(line) for line in (run / "steps.jsonl").read_text().splitlines()]
    assert [s["step"] for s in steps] == [1, 2, 3, 4, 5, 6]
    assert all(float.fromhex(s["loss_hex"]) == s["loss"] for s in steps)
    assert all(s["rows"] == 4 for s in steps)
    assert len({s["windows_sha256"] for s in steps}) == 6
    evaluations = [json.loads(x) for x in (run / "evaluations.jsonl").read_text().splitlines()]
    assert [e["step"] for e in evaluations] == [0, 4, 6]
    summary = json.loads((run / "summary.json").read_text())
    best = min(evaluations, key=lambda e: e["validation_loss"])
    assert summary["selected_step"] == best["step"]
    assert summary["validation_loss"] == best["validation_loss"]
    assert summary["history"] == evaluations[-1]["history"]
    assert f"step {summary['selected_step']}, validation loss" in result.stdout
    split = json.loads((run / "split.json").read_text())
    assert len(split["documents"]) == 40
    loaded = load_model(run)
    assert loaded.fingerprint == summary["fingerprint"] == last_line(result.stdout).split()[1]
    assert loaded.model.n_parameters == summary["parameters"]


def test_losses_are_measured_at_the_steps_listed(text: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    result = llmcy("train", text, *TINY, "--eval-at", "1, 2,5", "--run", run)
    assert result.returncode == 0, result.stderr
    lines = (run / "evaluations.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [0, 1, 2, 5, 6]
    config = json.loads((run / "config.json").read_text())
    assert config["settings"]["eval_at"] == [1, 2, 5]
    assert config["validation_steps"] == [0, 1, 2, 5, 6]
    epochs = ("--epochs", 1, "--steps", 1, "--batch-size", 32, "--eval-at", "2")
    result = llmcy("train", text, *TINY, *epochs, "--run", tmp_path / "epochs")  # further than 1
    assert result.returncode == 0, result.stderr
    config = json.loads((tmp_path / "epochs" / "config.json").read_text())
    assert config["validation_steps"] == [0, 2, config["batches_per_epoch"]]
    for wrong in ("", "1,", "1;2", "-1", "1.5"):
        result = llmcy("train", text, *TINY, "--eval-at", wrong, "--run", tmp_path / "wrong")
        assert result.returncode == 2
        assert "expected whole numbers as 3,7,20" in result.stderr
    assert not (tmp_path / "wrong").exists()


def test_a_float64_run_leaves_a_version_1_checkpoint(text: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert llmcy("train", text, *TINY, "--dtype", "float64", "--run", run).returncode == 0
    checkpoint = Checkpoint.load(run / "selected.ckpt")
    summary = json.loads((run / "summary.json").read_text())
    assert checkpoint.selected_step == summary["selected_step"]
    assert checkpoint.model_state.fingerprint() == summary["fingerprint"]
    assert load_model(run / "selected.ckpt").fingerprint == summary["fingerprint"]


def test_sampling_repeats_and_follows_its_seed(text: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert llmcy("train", text, *TINY, "--run", run).returncode == 0
    ask = ("sample", run, "--prompt", "the ", "--max-new-tokens", 10)
    first, again = llmcy(*ask, "--seed", 3), llmcy(*ask, "--seed", 3, LLMCY_NUM_THREADS="3")
    assert first.returncode == 0, first.stderr
    assert first.stdout == again.stdout
    assert first.stdout.startswith("the ")
    assert len({llmcy(*ask, "--seed", seed).stdout for seed in range(4)}) > 1
    greedy = {llmcy(*ask, "--temperature", 0, "--seed", seed).stdout for seed in range(2)}
    assert len(greedy) == 1
    whole_file = llmcy("sample", run / "selected.safetensors", *ask[2:], "--seed", 3)
    assert whole_file.stdout == first.stdout


def test_two_runs_without_a_name_get_folders_of_their_own(text: Path, tmp_path: Path) -> None:
    for _ in range(2):
        assert llmcy("train", text, *TINY, "--quiet", cwd=tmp_path).returncode == 0
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == ["run-001", "run-002"]


REFUSED = {
    "heads": (("--n-heads", 3), "d_model 16 is not divisible by n_heads 3"),
    "odd head": (("--n-heads", 16), "head width d_model / n_heads must be even"),
    "zero rate": (("--learning-rate", 0), "learning_rate must be finite and > 0, got 0.0"),
    "no steps": (("--steps", 0), "needs at least one rate"),
    "measured later": (("--eval-at", "2,9"), "validation step 9 is beyond the last update, 6"),
    "measured twice": (("--eval-at", "2,2"), "validation steps must increase, got 2 after 2"),
    "ceiling": (("--max-grad-norm", 0), "max_grad_norm must be finite and > 0, got 0.0"),
    "context": (("--context-length", 4000), "needs 4001 tokens, the longest document has"),
    "fractions": (
        ("--validation-fraction", 0.6, "--test-fraction", 0.5),
        "leave nothing to train on",
    ),
    "batch": (("--batch-size", 0), "batch_size"),
    "threads": (("--threads", 0), "n_threads must be a whole number from 1 to 256, got 0"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_bad_setting_is_one_line_and_writes_nothing(
    text: Path, tmp_path: Path, name: str
) -> None:
    arguments, message = REFUSED[name]
    result = llmcy("train", text, *TINY, *arguments, "--run", tmp_path / "run")
    assert result.returncode == 1, result.stdout
    assert len(result.stderr.strip().splitlines()) == 1
    assert message in result.stderr
    assert not (tmp_path / "run").exists()


def test_an_empty_or_missing_corpus_is_named(tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.touch()
    for source in (empty, tmp_path / "missing.txt", tmp_path):
        if source == tmp_path:
            empty.unlink()
        result = llmcy("train", source, *TINY, "--run", tmp_path / "run")
        assert result.returncode == 1
        assert len(result.stderr.strip().splitlines()) == 1
        assert source.name in result.stderr
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_not_empty_is_left_alone(text: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    result = llmcy("train", text, *TINY, "--run", tmp_path)
    assert result.returncode == 1
    assert "exists and is not empty" in result.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["precious"]


def test_an_unwritable_place_is_named(text: Path) -> None:
    result = llmcy("train", text, *TINY, "--run", "/proc/nowhere/run")
    assert result.returncode == 1
    assert "cannot create run folder '/proc/nowhere/run'" in result.stderr


def test_no_space_for_a_file_is_one_clear_error(text: Path, tmp_path: Path) -> None:
    def limit() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))

    result = llmcy("train", text, *TINY, "--run", tmp_path / "run", preexec=limit)
    assert result.returncode == 1
    assert len(result.stderr.strip().splitlines()) == 1
    assert "cannot write" in result.stderr
    assert "split.json" in result.stderr
    names = {p.name for p in (tmp_path / "run").iterdir()}
    assert names == {"checkpoints", "selected"}  # whole files only, no temporary


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_output_that_cannot_be_written_does_not_pass_for_success(
    text: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    assert llmcy("train", text, *TINY, "--run", run).returncode == 0
    with open("/dev/full", "w") as full:
        import subprocess
        import sys

        result = subprocess.run(
            [sys.executable, "-m", "llmcy", "sample", str(run)], stdout=full, stderr=subprocess.PIPE
        )
    assert result.returncode != 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--temperature", -1), "temperature"),
        (("--temperature", "nan"), "temperature"),
        (("--top-k", 0), "top_k"),
        (("--top-k", 10**6), "top_k"),
        (("--max-new-tokens", -1), "max_new_tokens"),
        (("--prompt", "the cat " * 40), "prompt"),
        (("--prompt-ids", "0 x"), "--prompt-ids must be whole numbers"),
        (("--prompt-ids", "0 999999"), "999999"),
        (("--prompt-ids", ""), "prompt"),
    ],
)
def test_a_bad_request_for_a_sample_is_one_line(
    text: Path,
    tmp_path_factory: pytest.TempPathFactory,
    arguments: tuple[object, ...],
    message: str,
) -> None:
    run = tmp_path_factory.getbasetemp() / "sampled-run"
    if not run.exists():
        assert llmcy("train", text, *TINY, "--run", run).returncode == 0
    result = llmcy("sample", run, *arguments)
    assert result.returncode == 1
    assert len(result.stderr.strip().splitlines()) == 1
    assert message in result.stderr


def test_a_damaged_model_file_is_named(text: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert llmcy("train", text, *TINY, "--run", run).returncode == 0
    file = run / "selected.safetensors"
    data = bytearray(file.read_bytes())
    data[-3] ^= 0x40
    file.write_bytes(data)
    result = llmcy("sample", run)
    assert result.returncode == 1
    assert str(file) in result.stderr
    file.write_bytes(data[: len(data) // 2])
    assert "neither a version-1 checkpoint nor a safetensors file" in llmcy("sample", run).stderr
    assert "is not a run folder" in llmcy("sample", tmp_path).stderr
    assert "cannot read" in llmcy("sample", tmp_path / "missing").stderr
