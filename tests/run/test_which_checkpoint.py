"""A run continues from the newest checkpoint that everything agrees with."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmcy.errors import RunError
from llmcy.run import Watcher, resume_training
from tests.run.tiny import outcome

pytestmark = pytest.mark.usefixtures("fast_disk")


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
    (broken_off / "selected" / "step-00000008.safetensors").unlink()
    told: list[str] = []
    resume_training(broken_off, watcher=Watcher(on_problem=told.append))
    assert len(told) == 2
    assert all("selected/step-00000008" in text for text in told)
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
