"""A run that was stopped and continued is the run that was not."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmcy.data import MiniBatchEpoch, TextDataset
from llmcy.errors import RunError
from llmcy.run import JobOptions, Watcher, load_model, resume_training, run_training
from llmcy.run.job_file import read_state_file
from llmcy.tokenizer import BytePairTokenizer
from llmcy.trainer import Updater
from tests.run.tiny import OPTIONS, STEPS, outcome, records, settings, stop_after, stopped

DTYPES = ["float64", "float32"]
pytestmark = pytest.mark.usefixtures("fast_disk")


def in_a_new_process(code: str, *arguments: object) -> None:
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr


RESUME = """
    import os, sys
    os.fsync = lambda descriptor: None  # nothing here is about a disk that loses power
    from llmcy.run import resume_training
    for path in sys.argv[1:]:
        resume_training(path)
"""


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_run_has_what_the_tests_are_about(whole: Callable[[str], Path], dtype: str) -> None:
    run = whole(dtype)
    steps, evaluations = records(run / "steps.jsonl"), records(run / "evaluations.jsonl")
    assert [line["step"] for line in steps] == list(range(1, STEPS + 1))
    assert [line["epoch"] for line in steps] == [0] * 12 + [1] * 12
    assert [line["rows"] for line in steps] == ([5] * 11 + [1]) * 2
    orders = [[line["windows_sha256"] for line in steps[k : k + 12]] for k in (0, 12)]
    assert not set(orders[0]) & set(orders[1])
    assert [line["step"] for line in evaluations] == [0, 7, 8, 21, 24]
    assert [line["best_so_far"] for line in evaluations] == [True, True, True, True, False]
    assert any(line["clipped"] for line in steps)
    assert not all(line["clipped"] for line in steps)


@pytest.mark.parametrize("dtype", DTYPES)
def test_stopping_after_any_step_changes_nothing(
    text: TextDataset, whole: Callable[[str], Path], tmp_path: Path, dtype: str
) -> None:
    folders = [stopped(text, dtype, tmp_path / str(k), k) for k in range(STEPS)]
    complete = tmp_path / str(STEPS)  # stopping after the last step is finishing
    run_training(text, settings(dtype), complete, OPTIONS, stop=stop_after(STEPS))
    folders.append(complete)
    in_a_new_process(RESUME, *folders)
    expected = outcome(whole(dtype))
    for folder in folders:
        found = outcome(folder)
        assert found.keys() == expected.keys()
        for name in expected:
            assert found[name] == expected[name], (folder.name, name)


@pytest.mark.parametrize("dtype", DTYPES)
def test_three_breaks_in_a_row(
    text: TextDataset, whole: Callable[[str], Path], tmp_path: Path, dtype: str
) -> None:
    run = stopped(text, dtype, tmp_path / "run", 3)
    for step in (10, 11, 16):  # every part in a process of its own
        in_a_new_process(
            """
            import sys
            from llmcy.errors import RunError
            from llmcy.run import resume_training
            run, more = sys.argv[1], int(sys.argv[2])
            calls = iter(range(1, 100))
            try:
                resume_training(run, stop=lambda: next(calls) == more)
            except RunError as error:
                assert error.kind == "Stopped", error
            """,
            run,
            step - records(run / "steps.jsonl")[-1]["step"],
        )
        assert records(run / "steps.jsonl")[-1]["step"] == step
    in_a_new_process(RESUME, run)
    assert outcome(run) == outcome(whole(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_way_does_not_matter(
    text: TextDataset, whole: Callable[[str], Path], tmp_path: Path, dtype: str
) -> None:
    """Other options, cadences and micro-batches, before and after the break."""
    run = stopped(text, dtype, tmp_path / "run", 13, JobOptions(checkpoint_every=1, keep_last=1))
    resume_training(run, JobOptions(checkpoint_every=0, keep_last=9, micro_batch_size=3))
    assert outcome(run) == outcome(whole(dtype))


@pytest.mark.parametrize("k", [1, 6, 12, 19])
def test_lines_beyond_the_checkpoint_are_written_again(
    text: TextDataset, whole: Callable[[str], Path], tmp_path: Path, k: int
) -> None:
    """What a kill leaves: records after the newest checkpoint, the last one unfinished."""
    run = stopped(text, "float64", tmp_path / "run", k)
    for name in ("steps.jsonl", "evaluations.jsonl"):
        lines = (whole("float64") / name).read_bytes().splitlines(keepends=True)
        beyond = [line for line in lines if json.loads(line)["step"] > k][:3]
        with (run / name).open("ab") as file:
            file.write(b"".join(beyond)[:-20])
    for folder in ("", "checkpoints", "selected"):
        (run / folder / ".step-00000099.safetensors.tmp-123-0").write_bytes(b"half")
    resume_training(run)
    assert outcome(run) == outcome(whole("float64"))
    assert not list(run.rglob(".*"))


def test_a_run_without_any_checkpoint_begins_anew(
    text: TextDataset, whole: Callable[[str], Path], tmp_path: Path
) -> None:
    run = stopped(text, "float32", tmp_path / "run", 4)
    for path in (run / "checkpoints").iterdir():
        path.unlink()
    resume_training(run)
    assert outcome(run) == outcome(whole("float32"))


def test_a_finished_run_stays_as_it_is(
    text: TextDataset, whole: Callable[[str], Path], tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(whole("float64"), run)
    before = {p.name: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    resume_training(run)
    after = {p.name: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    assert before.pop("environment.jsonl") != after.pop("environment.jsonl")
    assert before == after


def test_how_often_one_measures_changes_no_parameter(text: TextDataset, tmp_path: Path) -> None:
    states = []
    cadences: list[dict[str, Any]] = [{"eval_every": every} for every in (1, 7, 1000)]
    for number, cadence in enumerate([*cadences, {"eval_at": (5, 6, 23)}]):
        run = tmp_path / str(number)
        run_training(text, settings("float32", **{"eval_at": (), **cadence}), run, OPTIONS)
        states.append(read_state_file(run / "checkpoints" / f"step-{STEPS:08}.safetensors"))
    first = states[0]
    for other in states[1:]:
        assert other.tensors_sha256 == first.tensors_sha256
        assert other.model.equal_bits(first.model)
        assert other.optimizer.state.equal_bits(first.optimizer.state)


def test_the_best_model_so_far_can_be_used_while_a_run_is_not_finished(broken_off: Path) -> None:
    loaded = load_model(broken_off)
    assert loaded.selected_step == 8
    at_12 = load_model(broken_off / "checkpoints" / "step-00000012.safetensors")
    assert at_12.selected_step == 12
    assert at_12.fingerprint != loaded.fingerprint
    assert at_12.tokenizer.vocab_size == loaded.model.config.vocab_size


@pytest.mark.skipif(os.name != "posix", reason="file locks of Unix")
def test_two_processes_cannot_train_into_one_folder(broken_off: Path) -> None:
    def second(step: object) -> None:
        with pytest.raises(RunError) as caught:
            resume_training(broken_off)
        assert caught.value.kind == "Locked"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        resume_training(broken_off, watcher=Watcher(on_step=second))
    resume_training(broken_off)  # the lock went with its holder


def test_a_killed_process_leaves_a_run_that_continues(
    text: TextDataset, whole: Callable[[str], Path], tmp_path: Path
) -> None:
    run = stopped(text, "float32", tmp_path / "run", 2)
    code = """
        import os, signal, sys
        from llmcy.run import Watcher, resume_training
        def kill(step):
            if step.step == 17:
                os.kill(os.getpid(), signal.SIGKILL)
        resume_training(sys.argv[1], watcher=Watcher(on_step=kill))
    """
    result = subprocess.run([sys.executable, "-c", textwrap.dedent(code), str(run)])
    assert result.returncode == -signal.SIGKILL
    assert records(run / "steps.jsonl")[-1]["step"] == 17
    resume_training(run)
    assert outcome(run) == outcome(whole("float32"))


def test_continuing_does_again_only_what_is_missing(
    text: TextDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No update is repeated, no text is tokenized, and the tokens stay in their file."""
    run = stopped(text, "float32", tmp_path / "run", 20)
    updated: list[int] = []
    original = Updater.update

    def counted(self: Updater, step: int, *arguments: Any) -> Any:
        updated.append(step)
        return original(self, step, *arguments)

    def refused(*arguments: Any) -> Any:
        raise AssertionError("text was tokenized again")

    monkeypatch.setattr(Updater, "update", counted)
    monkeypatch.setattr(BytePairTokenizer, "encode", refused)
    monkeypatch.setattr(BytePairTokenizer, "encode_document", refused)
    documents = []
    true_build = MiniBatchEpoch.build.__func__  # type: ignore[attr-defined]

    def watched(cls: Any, partition: Any, held: Any, *arguments: Any) -> Any:
        documents.extend(held)
        return true_build(cls, partition, held, *arguments)

    monkeypatch.setattr(MiniBatchEpoch, "build", classmethod(watched))
    resume_training(run)
    assert updated == [21, 22, 23, 24]
    assert documents
    for document in documents:
        base = document.token_ids
        while not isinstance(base, np.memmap):
            assert base.base is not None
            base = base.base
        assert base.filename == str(run / "tokens.bin") or base.filename == run / "tokens.bin"
