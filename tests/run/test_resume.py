"""A run that was stopped and continued is the run that was not."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from llmcy.data import MiniBatchEpoch, TextDataset
from llmcy.errors import RunError
from llmcy.optim import LearningRateSchedule
from llmcy.run import (
    Extension,
    JobOptions,
    Watcher,
    load_model,
    resume_training,
    run_training,
)
from llmcy.run.job_file import read_state_file
from llmcy.tokenizer import BytePairTokenizer
from llmcy.trainer import Updater
from tests.run.tiny import OPTIONS, STEPS, dataset, outcome, records, settings

DTYPES = ["float64", "float32"]


@pytest.fixture(scope="module", autouse=True)
def fast_disk() -> Iterator[None]:
    """Nothing here is about a disk that loses power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="module")
def text() -> TextDataset:
    return dataset()


@pytest.fixture(scope="module")
def whole(text: TextDataset, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of the run without a break, made once a dtype."""
    made: dict[str, Path] = {}

    def run(dtype: str) -> Path:
        if dtype not in made:
            made[dtype] = tmp_path_factory.mktemp("whole") / "run"
            run_training(text, settings(dtype), made[dtype], OPTIONS)
        return made[dtype]

    return run


def stop_after(*steps: int) -> Callable[[], bool]:
    """Says stop after the steps given, counted by the calls."""
    calls = iter(range(STEPS + 1))
    return lambda: next(calls) in steps


def stopped(
    text: TextDataset, dtype: str, path: Path, step: int, options: JobOptions = OPTIONS
) -> Path:
    with pytest.raises(RunError) as caught:
        run_training(text, settings(dtype), path, options, stop=stop_after(step))
    assert (caught.value.kind, caught.value.step) == ("Stopped", step)
    return path


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
    assert [line["step"] for line in evaluations] == [0, 7, 14, 21, 24]
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
    in_a_new_process(
        """
        import sys
        from llmcy.errors import RunError
        from llmcy.run import resume_training
        for more in (7, 1, 5):  # to step 10, step 11, step 16
            calls = iter(range(1, 100))
            try:
                resume_training(sys.argv[1], stop=lambda: next(calls) == more)
            except RunError as error:
                assert error.kind == "Stopped", error
                print(error.step)
        """,
        run,
    )
    assert records(run / "steps.jsonl")[-1]["step"] == 16
    resume_training(run)
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


# --------------------------------------------------------------------------- which checkpoint
@pytest.fixture
def broken_off(text: TextDataset, tmp_path: Path) -> Path:
    """Stopped after step 12, with checkpoints of 5, 10 and 12 and three selected states' worth."""
    return stopped(text, "float64", tmp_path / "run", 12, replace(OPTIONS, keep_last=9))


DAMAGES: dict[str, Callable[[bytearray], Any]] = {
    "cut": lambda data: data.__delitem__(slice(len(data) // 2, None)),
    "empty": lambda data: data.clear(),
    "a byte added": lambda data: data.append(0),
    "a moment altered": lambda data: data.__setitem__(-3, data[-3] ^ 1),
    "the header altered": lambda data: data.__setitem__(60, data[60] ^ 1),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_checkpoint_is_reported_and_skipped(
    broken_off: Path, whole: Callable[[str], Path], name: str
) -> None:
    for step in (10, 12):
        path = broken_off / "checkpoints" / f"step-{step:08}.safetensors"
        data = bytearray(path.read_bytes())
        DAMAGES[name](data)
        path.write_bytes(data)
    told: list[str] = []
    seen: list[int] = []
    watcher = Watcher(
        on_problem=told.append, on_start=lambda model, epoch, done, planned: seen.append(done)
    )
    resume_training(broken_off, watcher=watcher)
    assert seen == [5]
    assert len(told) == 2
    assert "step-00000012" in told[0]
    assert "step-00000010" in told[1]
    assert outcome(broken_off) == outcome(whole("float64"))


def test_a_checkpoint_whose_selected_state_is_gone_is_skipped(
    broken_off: Path, whole: Callable[[str], Path]
) -> None:
    (broken_off / "selected" / "step-00000007.safetensors").unlink()
    told: list[str] = []
    resume_training(broken_off, watcher=Watcher(on_problem=told.append))
    assert len(told) == 2
    assert all("selected/step-00000007" in text for text in told)
    assert outcome(broken_off) == outcome(whole("float64"))


def test_a_checkpoint_ahead_of_the_records_is_skipped(
    broken_off: Path, whole: Callable[[str], Path]
) -> None:
    path = broken_off / "steps.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:11]))
    told: list[str] = []
    resume_training(broken_off, watcher=Watcher(on_problem=told.append))
    assert len(told) == 1
    assert "ends at step 11, the checkpoint is at step 12" in told[0]
    assert outcome(broken_off) == outcome(whole("float64"))


def test_no_valid_checkpoint_is_an_error_that_names_them_all(broken_off: Path) -> None:
    for path in (broken_off / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    before = (broken_off / "steps.jsonl").read_bytes()
    with pytest.raises(RunError) as caught:
        resume_training(broken_off)
    assert caught.value.kind == "NoValidCheckpoint"
    assert len(caught.value.problems) == 4
    assert (broken_off / "steps.jsonl").read_bytes() == before


# --------------------------------------------------------------------------- what may not change
def edit_config(run: Path, *keys: str, value: Any) -> None:
    config = json.loads((run / "config.json").read_text())
    held = config
    for key in keys[:-1]:
        held = held[key]
    held[keys[-1]] = value
    (run / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("keys", "value", "field"),
    [
        (("settings", "batch_size"), 4, "identity.settings.batch_size"),
        (("settings", "weight_decay"), 0.2, "optimizer.weight_decay"),
        (("settings", "seed"), 9, "settings.seed"),
        (("settings", "max_grad_norm"), 2.0, "settings.max_grad_norm"),
        (("settings", "steps"), 9999, "settings.steps"),
        (("model", "d_ff"), 16, "model.d_ff"),
        (("optimizer", "eps"), 1e-7, "optimizer.eps"),
        (("contract_version",), 99, "contract_version"),
        (("learning_rates",), [0.1] * 24, "learning_rates[0]"),
        (("validation_steps",), [0, 8, 14, 21, 24], "validation_steps[1]"),
        (("data", "corpus"), "0" * 64, "data.corpus"),
        (("settings", "schedule"), "stair", "config.json"),
    ],
)
def test_a_changed_configuration_is_refused_by_name(
    broken_off: Path, keys: tuple[str, ...], value: Any, field: str
) -> None:
    edit_config(broken_off, *keys, value=value)
    logs = [(broken_off / n).read_bytes() for n in ("steps.jsonl", "evaluations.jsonl")]
    with pytest.raises(RunError) as caught:
        resume_training(broken_off)
    assert caught.value.kind == "RunChanged"
    assert field.removeprefix("identity.") in caught.value.field
    assert [(broken_off / n).read_bytes() for n in ("steps.jsonl", "evaluations.jsonl")] == logs


def test_one_changed_token_is_refused_by_document(broken_off: Path) -> None:
    path = broken_off / "tokens.bin"
    data = bytearray(path.read_bytes())
    index = json.loads((broken_off / "tokens.json").read_text())["documents"]
    position = 4 * (sum(d["tokens"] for d in index[:3]) + 2)
    data[position] ^= 1
    path.write_bytes(data)
    with pytest.raises(RunError) as caught:
        resume_training(broken_off)
    assert caught.value.kind == "InvalidTokens"
    assert repr(index[3]["id"]) in str(caught.value)


@pytest.mark.parametrize("change", ["shorter", "listed digest", "whole digest", "format", "cut"])
def test_other_tokens_are_refused(broken_off: Path, change: str) -> None:
    path, index_path = broken_off / "tokens.bin", broken_off / "tokens.json"
    index = json.loads(index_path.read_text())
    if change == "shorter":
        path.write_bytes(path.read_bytes()[:-4])
    elif change == "cut":
        path.write_bytes(path.read_bytes()[:-1])
    elif change == "listed digest":
        index["documents"][0]["sha256"] = "0" * 64
    elif change == "whole digest":
        index["sha256"] = "0" * 64
    else:
        index["format"] = "llmcy-tokens-0"
    index_path.write_text(json.dumps(index))
    with pytest.raises(RunError) as caught:
        resume_training(broken_off)
    assert caught.value.kind == "InvalidTokens"


def test_another_tokenizer_or_split_is_refused(broken_off: Path) -> None:
    original = (broken_off / "tokenizer.json").read_bytes()
    record = json.loads(original)
    record["pairs"][0], record["pairs"][1] = record["pairs"][1], record["pairs"][0]
    (broken_off / "tokenizer.json").write_text(json.dumps(record))
    with pytest.raises(RunError) as caught:
        resume_training(broken_off)
    assert caught.value.field == "data.tokenizer"
    (broken_off / "tokenizer.json").write_bytes(original)
    split = json.loads((broken_off / "split.json").read_text())
    split["documents"][0]["sha256"] = "0" * 64
    (broken_off / "split.json").write_text(json.dumps(split))
    with pytest.raises(RunError) as caught:
        resume_training(broken_off)
    assert caught.value.field == "data.split"
    split = json.loads((broken_off / "split.json").read_text())


def test_data_of_another_run_is_refused(broken_off: Path, tmp_path: Path) -> None:
    other = stopped(dataset(2), "float64", tmp_path / "other", 2)
    for name in ("tokens.bin", "tokens.json"):
        shutil.copy(other / name, broken_off / name)
    with pytest.raises(RunError) as caught:
        resume_training(broken_off)
    assert caught.value.field == "data.tokens"


def test_files_are_refused_with_the_reason(whole: Callable[[str], Path], tmp_path: Path) -> None:
    run = whole("float64")
    for file, reason in (
        (run / "selected.ckpt", "version-1 checkpoint"),
        (run / "checkpoints" / "step-00000024.safetensors", "continues from its folder"),
    ):
        with pytest.raises(RunError) as caught:
            resume_training(file)
        assert caught.value.kind == "NotResumable"
        assert reason in str(caught.value)
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(RunError) as caught:
            resume_training(path)
        assert caught.value.kind == "NotARun"


def test_a_version_1_file_in_the_place_of_a_checkpoint_is_skipped(
    broken_off: Path, whole: Callable[[str], Path]
) -> None:
    shutil.copy(
        whole("float64") / "selected.ckpt",
        broken_off / "checkpoints" / "step-00000013.safetensors",
    )
    told: list[str] = []
    resume_training(broken_off, watcher=Watcher(on_problem=told.append))
    assert len(told) == 1
    assert "no schedule, no place in the data and no history" in told[0]
    assert outcome(broken_off) == outcome(whole("float64"))


# --------------------------------------------------------------------------- going on
def test_an_extension_has_its_own_rates_and_goes_on_where_the_run_ended(
    text: TextDataset, whole: Callable[[str], Path], tmp_path: Path
) -> None:
    runs = tmp_path / "a", tmp_path / "b"
    extension = Extension(LearningRateSchedule([0.1, 0.05, 0.02]), {"schedule": "list"})
    shutil.copytree(whole("float64"), runs[0])
    resume_training(runs[0], extend=extension)
    stopped(text, "float64", runs[1], 17)  # extended while it is not finished
    with pytest.raises(RunError):
        resume_training(runs[1], extend=extension, stop=stop_after(1))
    resume_training(runs[1])
    for run in runs:
        steps = records(run / "steps.jsonl")
        assert [line["learning_rate"] for line in steps[24:]] == [0.1, 0.05, 0.02]
        assert [line["epoch"] for line in steps[24:]] == [2, 2, 2]
        assert records(run / "evaluations.jsonl")[-1]["step"] == 27
        assert steps[:24] == records(whole("float64") / "steps.jsonl")
    last = "checkpoints/step-00000027.safetensors"
    assert (runs[0] / last).read_bytes() == (runs[1] / last).read_bytes()
    config = json.loads((runs[0] / "config.json").read_text())
    assert config["extensions"] == [{"after_step": 24, "steps": 3, "schedule": "list"}]
    assert len(config["learning_rates"]) == 27


def test_how_often_one_measures_changes_no_parameter(text: TextDataset, tmp_path: Path) -> None:
    states = []
    for every in (1, 7, 1000):
        run = tmp_path / str(every)
        run_training(text, settings("float32", eval_every=every), run, OPTIONS)
        states.append(read_state_file(run / "checkpoints" / f"step-{STEPS:08}.safetensors"))
    first = states[0]
    for other in states[1:]:
        assert other.tensors_sha256 == first.tensors_sha256
        assert other.model.equal_bits(first.model)
        assert other.optimizer.state.equal_bits(first.optimizer.state)


def test_the_best_model_so_far_can_be_used_while_a_run_is_not_finished(broken_off: Path) -> None:
    loaded = load_model(broken_off)
    assert loaded.selected_step == 7
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
