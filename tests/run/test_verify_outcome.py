"""What a run leaves at its end is checked as well: summary, exported model, report on test data."""

import json
import random
import shutil
from pathlib import Path

import pytest

from llmcy.data import Partition
from llmcy.run import Extension, RunDirectory, evaluate_test, load_model, resume_training
from llmcy.run.verify import Request, verify_run
from llmcy.trainer import LearningRateSchedule
from tests.run.forging import ALL, FILES, edited_json, first
from tests.run.tiny import stopped

EXPORTED = {"float32": "selected.safetensors", "float64": "selected.ckpt"}
INFORMATION = (
    "wall_seconds, environment.jsonl, llmcy_version and options in config.json: they are "
    "information, no result depends on them"
)
SIGNATURE = "who made the run: digests find changes, they are no signature"
TEXTS = (
    "documents: the folder has their digests, not their text; give the texts to have them read, "
    "split and encoded again"
)


def exported(run: Path) -> Path:
    (path,) = (run / name for name in EXPORTED.values() if (run / name).exists())
    return path


def test_all_that_is_not_proved_is_said(honest: Path) -> None:
    found = verify_run(honest, ALL)
    assert found.not_proved == [TEXTS, INFORMATION, SIGNATURE]
    found = verify_run(honest)
    assert found.not_proved == [
        TEXTS,
        "that executing steps 0..24 leads to what is stored",
        INFORMATION,
        SIGNATURE,
    ]


# --------------------------------------------------------------------------- summary and export
def test_an_altered_summary(run: Path) -> None:
    whole = (run / "summary.json").read_bytes()
    for field, value in json.loads(whole).items():
        new = value + 1 if isinstance(value, (int, float)) else value[:-1]
        edited_json(run / "summary.json", lambda s, field=field, new=new: s.update({field: new}))
        disproof = first(run, FILES)
        assert (disproof.file, disproof.field) == ("summary.json", field)
        (run / "summary.json").write_bytes(whole)
    (run / "summary.json").write_bytes(whole.replace(b'": ', b'":', 1))
    assert first(run, FILES).file == "summary.json"


def test_an_altered_exported_model(run: Path) -> None:
    path = exported(run)
    data = bytearray(path.read_bytes())
    rng = random.Random(3)
    for at in (len(data) - 1, *(rng.randrange(len(data)) for _ in range(20))):
        data[at] ^= 1
        path.write_bytes(data)
        assert first(run, FILES).file == path.name
        data[at] ^= 1
    path.write_bytes(data[:-1])
    assert first(run, FILES).file == path.name


def test_an_exported_model_that_the_run_does_not_write(run: Path, tmp_path: Path) -> None:
    """It would be the one that is loaded."""
    path = exported(run)
    other = next(name for name in EXPORTED.values() if name != path.name)
    if other == "selected.ckpt":
        shutil.copy(Path(__file__).parents[1] / "golden" / "published.ckpt", run / other)
        assert load_model(run).path.name == other
    else:
        shutil.copy(path, run / other)
    assert first(run, FILES).file == other


def test_a_missing_exported_model_cannot_be_checked(run: Path) -> None:
    exported(run).unlink()
    found = verify_run(run)
    assert found.exit_code == 2
    assert found.problems == ["summary.json: the exported model beside it is missing"]


def test_a_run_that_was_killed_before_its_summary(run: Path) -> None:
    (run / "summary.json").unlink()
    found = verify_run(run)
    assert found.exit_code == 0
    assert f"{exported(run).name}: it is the selected state of step 24" in found.proved
    exported(run).write_bytes(exported(run).read_bytes()[:-1])
    assert first(run, FILES).file == exported(run).name


# --------------------------------------------------------------------------- the test partition
@pytest.fixture
def tested(run: Path) -> Path:
    evaluate_test(RunDirectory(run), batch_size=3)
    evaluate_test(RunDirectory(run), again=True, batch_size=4)
    return run


def leaves(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Every place in nested JSON values that is no container."""
    items = value.items() if isinstance(value, dict) else enumerate(value)  # type: ignore[arg-type]
    found = []
    for key, item in items:
        below = (*path, key)
        found += leaves(item, below) if isinstance(item, (dict, list)) else [below]
    return found


def test_a_report_on_test_data_is_made_again_by_a_replay(tested: Path) -> None:
    before = (tested / "test.json").read_bytes()
    found = verify_run(tested)
    assert found.exit_code == 0
    for number in (1, 2):
        text = f"that measuring again gives the report of opening {number}; a replay does it"
        assert f"test.json: {text}" in found.not_proved
    for request in (ALL, Request((0, 10))):
        found = verify_run(tested, request)
        assert found.exit_code == 0, "\n".join(found.lines())
        assert (
            "test.json: opening 1, 2: measuring the selected state on the stored test tokens again "
            "gives the report"
        ) in found.proved
        assert not any("test.json" in text for text in found.not_proved)
    assert (tested / "test.json").read_bytes() == before


def test_every_number_of_the_report(tested: Path) -> None:
    path = tested / "test.json"
    whole = path.read_bytes()
    value = json.loads(whole)
    # a batch of another size may hold the same windows
    places = [place for place in leaves(value) if place[-1] != "batch_size"]
    assert len(places) > 60
    for place in random.Random(8).sample(places, 30):
        held = value
        for key in place[:-1]:
            held = held[key]
        old = held[place[-1]]
        if isinstance(old, bool):
            held[place[-1]] = not old
        elif isinstance(old, (int, float)):
            held[place[-1]] = old + 1
        else:
            held[place[-1]] = "x" + str(old)
        edited_json(path, lambda v, value=value: v.update(value))
        disproof = first(tested, Request((20, 24)))
        assert disproof.file == "test.json", place
        assert disproof.field is not None
        assert disproof.field.startswith("openings")
        held[place[-1]] = old
    path.write_bytes(whole)
    assert verify_run(tested, Request((20, 24))).exit_code == 0


@pytest.mark.parametrize(
    ("edit", "field"),
    [
        (lambda v: v["openings"].pop(0), "openings[0].opening"),
        (lambda v: v["openings"][1].update(again=False), "openings[1].again"),
        (lambda v: v["openings"][0].update(opening=True), "openings[0].opening"),
        (lambda v: v["openings"][0].update(batch_size=0), "openings[0].batch_size"),
        (lambda v: v["openings"][0].update(report=[]), "openings[0].report"),
        (lambda v: v["openings"][0].pop("report"), "openings[0]"),
        (lambda v: v["openings"].clear(), "openings"),
        (lambda v: v.update(more=1), "openings"),
    ],
)
def test_notes_that_no_evaluation_writes(tested: Path, edit, field: str) -> None:
    edited_json(tested / "test.json", edit)
    disproof = first(tested, FILES)
    assert (disproof.file, disproof.field) == ("test.json", field)


def test_an_evaluation_that_did_not_come_to_its_end(tested: Path) -> None:
    edited_json(tested / "test.json", lambda v: v["openings"][1].update(report=None))
    found = verify_run(tested, Request((0, 10)))
    assert found.exit_code == 0
    assert any("opening 2 has no report" in text for text in found.not_proved)
    assert any(text.startswith("test.json: opening 1: measuring") for text in found.proved)


def test_a_report_from_before_an_extension(tested: Path) -> None:
    step = json.loads((tested / "summary.json").read_text())["selected_step"]
    resume_training(tested, extend=Extension(LearningRateSchedule.constant(1e-9, 3)))
    found = verify_run(tested, ALL)
    assert found.exit_code == 0, "\n".join(found.lines())
    for folder in ("selected", "checkpoints"):
        (tested / folder / f"step-{step:08}.safetensors").unlink(missing_ok=True)
    found = verify_run(tested, Request((0, 10)))
    assert f"test.json: opening 1: no state of its step {step} is kept" in found.not_proved


def test_a_test_document_that_is_not_the_one_measured(tested: Path) -> None:
    """The report belongs to other test tokens than the folder holds."""
    report = json.loads((tested / "test.json").read_text())["openings"][0]["report"]
    split = json.loads((tested / "split.json").read_text())
    ids = [d["id"] for d in split["documents"] if d["partition"] == Partition.TEST.label]
    assert report["document_ids"] == ids
    edited_json(
        tested / "test.json", lambda v: v["openings"][0]["report"].update(fingerprint="0" * 16)
    )
    disproof = first(tested, Request((20, 24)))
    assert disproof.field == "openings[0].report.fingerprint"


# --------------------------------------------------------------------------- other files
def test_files_that_nothing_looks_at_are_named(run: Path) -> None:
    (run / "notes.txt").write_text("mine")
    (run / "checkpoints" / "step-1.safetensors").write_bytes(b"")
    (run / "checkpoints" / "step-00000010.safetensors.bak").write_bytes(b"")
    (run / "selected" / ".step-00000010.safetensors.tmp-12-3").write_bytes(b"")
    (run / "old").mkdir()
    found = verify_run(run)
    assert found.exit_code == 0
    assert (
        "selected/.step-00000010.safetensors.tmp-12-3: left by a killed writer; the next start "
        "removes it"
    ) in found.not_proved
    assert (
        "checkpoints/step-00000010.safetensors.bak, checkpoints/step-1.safetensors, notes.txt, "
        "old: no file of a run; not looked at"
    ) in found.not_proved


def test_parameters_to_begin_with_that_the_run_did_not_have(run: Path) -> None:
    shutil.copy(exported(run), run / "initial.safetensors")
    assert first(run, FILES).file == "initial.safetensors"


def test_a_selected_state_that_no_checkpoint_names(run: Path) -> None:
    (run / "checkpoints" / "step-00000000.safetensors").unlink()
    found = verify_run(run)
    assert found.exit_code == 0
    assert (
        "selected/step-00000000.safetensors: its digests hold, but no valid checkpoint names it"
    ) in found.not_proved
    path = run / "selected" / "step-00000000.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert first(run, FILES).file == "selected/step-00000000.safetensors"


def test_an_unfinished_run_has_no_outcome(text, tmp_path: Path) -> None:
    run = stopped(text, "float32", tmp_path / "run", 9)
    found = verify_run(run)
    assert found.exit_code == 0
    assert not any("summary" in line for line in found.lines())
    shutil.copy(run / "selected" / "step-00000008.safetensors", run / "selected.safetensors")
    found = verify_run(run)
    assert "selected.safetensors: the run is not at its end" in found.not_proved
