"""``llmcy eval``: the test partition of a run once, noted, and again only when told."""

import json
from pathlib import Path

import pytest

from llmcy.errors import FinalEvaluationError, RunError
from llmcy.final_evaluation import evaluator
from llmcy.run import RunDirectory, evaluate_test
from tests.cli.command import llmcy

TINY = (
    "--d-model", 16, "--n-layers", 1, "--n-heads", 2, "--context-length", 16, "--steps", 4,
    "--batch-size", 4, "--eval-every", 2, "--merges", 5, "--max-seq-len", 20, "--quiet",
)  # fmt: skip


def train(folder: Path, *more: object) -> Path:
    text = folder / "text"
    text.mkdir()
    for n in range(40):
        words = " ".join(f"word{(n * k) % 7} and{n}" for k in range(12))
        (text / f"{n:02}.txt").write_text(words + "\n")
    run = folder / "run"
    result = llmcy("train", text, *TINY, "--run", run, *more)
    assert result.returncode == 0, result.stderr
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("eval"))


@pytest.mark.feature("E02X")
def test_the_test_partition_is_opened_once_and_again_only_when_told(run: Path) -> None:
    selected = RunDirectory.open(run).selected_path().read_bytes()
    first = llmcy("eval", run, "--partition", "test", "--json")
    assert first.returncode == 0, first.stderr
    report = json.loads(first.stdout)
    summary = json.loads((run / "summary.json").read_text())
    assert report["selected_step"] == summary["selected_step"]
    assert report["selected_validation_loss"] == summary["validation_loss"]
    assert report["decoder"]["bits_per_byte"] > 0
    assert report["provenance"]["context"] == 16
    # not when told otherwise in silence
    second = llmcy("eval", run, "--partition", "test")
    assert second.returncode != 0
    assert second.stdout == ""
    assert "1 time(s) already" in second.stderr
    noted = json.loads((run / "test.json").read_text())["openings"]
    assert noted == [{"opening": 1, "again": False, "batch_size": 32, "report": report}]
    third = llmcy("eval", run, "--partition", "test", "--again", LLMCY_NUM_THREADS="3")
    assert third.returncode == 0, third.stderr
    assert f"loss {report['decoder']['mean_nll']:.6f}" in third.stdout
    noted = json.loads((run / "test.json").read_text())["openings"]
    assert [(o["opening"], o["again"]) for o in noted] == [(1, False), (2, True)]
    assert noted[1]["report"] == report
    # what was seen reaches nothing of the run
    assert RunDirectory.open(run).selected_path().read_bytes() == selected
    assert json.loads((run / "summary.json").read_text()) == summary


def test_validation_can_be_measured_any_number_of_times(run: Path) -> None:
    summary = json.loads((run / "summary.json").read_text())
    before = sorted(p.name for p in run.iterdir())
    for _ in range(2):
        result = llmcy("eval", run, "--json")
        found = json.loads(result.stdout)
        assert found["loss"] == summary["validation_loss"]
        assert found["bits_per_byte"] == summary["validation_bits_per_byte"]
        assert found["bigram_loss"] == summary["bigram_validation_loss"]
    assert "bits a byte" in llmcy("eval", run, "--partition", "train").stdout
    assert sorted(p.name for p in run.iterdir()) == before


def test_a_failed_evaluation_has_used_the_gate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = RunDirectory.open(train(tmp_path, "--dtype", "float64"))

    def fail(*_: object) -> None:
        raise FinalEvaluationError("DecoderParameterChanged", "a parameter has changed")

    monkeypatch.setattr(evaluator, "watched_evaluation", fail)
    with pytest.raises(FinalEvaluationError):
        evaluate_test(run)
    monkeypatch.undo()
    with pytest.raises(RunError) as caught:
        evaluate_test(run)
    assert (caught.value.kind, caught.value.openings) == ("TestAlreadyOpened", 1)
    assert run.read_json("test.json")["openings"][0]["report"] is None
    assert evaluate_test(run, again=True).slot_count > 0
    # a run whose selected state is not the one of its summary is refused before the gate
    summary = run.read_json("summary.json")
    run.write_json("summary.json", summary | {"fingerprint": "fnv1a64:0"})
    with pytest.raises(RunError) as caught:
        evaluate_test(run, again=True)
    assert caught.value.kind == "RunChanged"
    (run.path / "summary.json").unlink()
    with pytest.raises(RunError) as caught:
        evaluate_test(run, again=True)
    assert caught.value.kind == "NotFinished"
    assert len(run.read_json("test.json")["openings"]) == 2


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    result = llmcy("eval", tmp_path)
    assert result.returncode != 0
    assert "is not a run folder" in result.stderr
