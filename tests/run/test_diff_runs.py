"""``diff`` on runs: the first step that differs, in settings, records and kept states."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llmcy.errors import RunError
from llmcy.run import JobOptions, run_training
from llmcy.run.diff import diff_states
from llmcy.run.diff_runs import diff_paths, diff_runs
from tests.cli.command import llmcy
from tests.run import tiny
from tests.run.forging import edited_record, resealed, state_path

OPTIONS = JobOptions(checkpoint_every=3, keep_last=9, micro_batch_size=2)
TEXT = tiny.dataset()


def settings(**changes):
    return replace(tiny.settings("float32"), epochs=0, steps=9, eval_at=(4, 8), **changes)


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    path = tmp_path_factory.mktemp("diff") / "run"
    run_training(TEXT, settings(), path, OPTIONS)
    return path


@pytest.fixture
def copy(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "copy"))


def test_runs_of_one_configuration_do_not_differ(original, tmp_path):
    again = tmp_path / "again"
    run_training(TEXT, settings(), again, replace(OPTIONS, micro_batch_size=5, keep_last=2))
    found = diff_runs(original, again)
    assert found.equal, "\n".join(found.lines())
    assert found.compared_steps == (6, 9)  # the second run keeps two
    assert found.first_step is None
    assert found.selected.equal
    done = llmcy("diff", original, again)
    assert done.returncode == 0, done.stdout
    assert "states of steps 6, 9: every bit the same" in done.stdout


def test_another_rate_shows_where_it_begins(tmp_path):
    """The fifth rate differs: the fifth record does, and the next kept state after it."""
    rates = [0.5, 0.4, 0.4, 0.3, 0.3, 0.2, 0.2, 0.1, 0.1]
    for name, fifth in (("run", 0.3), ("other", 0.31)):
        rates[4] = fifth
        listed = settings(schedule="list", learning_rates=tuple(rates))
        run_training(TEXT, listed, tmp_path / name, OPTIONS)
    original, other, first = tmp_path / "run", tmp_path / "other", 5
    found = diff_runs(original, other)
    assert not found.equal
    names = [field.name for field in found.settings]
    assert names == ["settings.learning_rates", "learning_rates"]
    updates = next(record for record in found.records if record.file == "steps.jsonl")
    assert updates.first_step == first
    assert "learning_rate" in [field.name for field in updates.fields]
    assert "loss" not in [field.name for field in updates.fields]  # of the state before
    assert found.first_step == first
    assert found.compared_steps[-1] == 3 * -(-first // 3)
    assert not found.state.equal
    done = llmcy("diff", original, other, "--json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["first_step"] == first
    assert report["state"]["tensors"][0]["largest_ulps"] > 0
    text = llmcy("diff", original, other).stdout
    assert f"steps.jsonl: first difference at step {first}" in text
    assert f"first kept state that differs: step {found.compared_steps[-1]}" in text


def test_one_altered_number_of_a_kept_state(original, copy):
    def alter(tensors):
        bits = tensors["second_moment:final_norm.gain"].view(np.uint32)
        bits[2] += 3

    resealed(state_path(copy, 6), alter)
    found = diff_runs(original, copy)
    assert found.first_step == 6
    (tensor,) = found.state.tensors
    assert (tensor.name, tensor.first_index, tensor.largest_ulps) == (
        "second_moment:final_norm.gain",
        (2,),
        3,
    )
    assert tensor.histogram == ((0, 7), (2, 1))
    states = diff_states(state_path(original, 6), state_path(copy, 6))
    assert states.to_dict() == found.state.to_dict()
    assert [f.name for f in states.fields] == [
        "sha256", "tensors.second_moment:final_norm.gain", "tensors_sha256",
    ]  # fmt: skip


def test_one_altered_record(original, copy):
    edited_record(copy, "evaluations.jsonl", 4, train_loss=1.0)
    found = diff_runs(original, copy)
    evaluations = next(record for record in found.records if record.file == "evaluations.jsonl")
    assert evaluations.first_step == found.first_step == 4
    assert [field.name for field in evaluations.fields] == ["train_loss"]
    assert found.state.equal


def test_runs_of_different_lengths(original, copy):
    log = copy / "steps.jsonl"
    log.write_text("".join(log.read_text().splitlines(keepends=True)[:-2]))
    found = diff_runs(original, copy)
    assert not found.equal
    updates = next(record for record in found.records if record.file == "steps.jsonl")
    assert (updates.compared, updates.lengths, updates.first_step) == (7, (9, 7), None)


def test_times_and_options_are_information(original, copy):
    edited_record(copy, "steps.jsonl", 2, wall_seconds=1e9)
    assert diff_runs(original, copy).equal


def test_a_checkpoint_against_a_selected_state(original):
    selected = max((original / "selected").iterdir())
    step = int(selected.stem[5:])
    exported = original / "selected.safetensors"
    found = diff_states(selected, exported)
    assert found.kinds == ("selected state", "model file")
    assert found.equal
    if state_path(original, step).exists():
        assert diff_states(state_path(original, step), selected).equal


def test_what_cannot_be_compared(original, copy, tmp_path):
    with pytest.raises(RunError, match="is a folder") as caught:
        diff_paths(original, state_path(copy, 3))
    assert caught.value.kind == "NotTheSameKind"
    (copy / "steps.jsonl").write_text("[]\n")
    with pytest.raises(RunError, match="line 1") as caught:
        diff_runs(original, copy)
    assert caught.value.kind == "InvalidRecord"
    assert llmcy("diff", original, copy).returncode == 2
    assert llmcy("diff", original, tmp_path / "none").returncode == 2
