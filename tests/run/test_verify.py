"""``verify``: honest runs are proved, and what was proved and what not is said."""

import json

import pytest
from click.testing import CliRunner

from llmcy.cli.verify import verify
from llmcy.errors import RunError
from llmcy.optim import LearningRateSchedule
from llmcy.run import Extension, resume_training, run_training
from llmcy.run.verify import Request, parse_replay, verify_run
from tests.cli.command import llmcy
from tests.run import tiny
from tests.run.forging import ALL, changed, edited_json, gate, resealed, state_path


def everything(folder):
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_an_honest_run_is_proved_and_nothing_is_touched(honest):
    before = everything(honest)
    found = verify_run(honest, ALL)
    assert found.exit_code == 0, "\n".join(found.lines())
    assert everything(honest) == before
    text = "\n".join(found.proved)
    assert "24 updates and 5 measurements up to step 24" in text
    assert "checkpoints of steps 0, 10, 15, 20, 24" in text
    assert "replay of steps 0..24: 24 updates and 5 measurements executed again" in text
    assert "summary.json and selected." in text
    assert not any("executing" in line for line in found.not_proved)


def test_without_a_replay_the_steps_are_not_proved(honest):
    found = verify_run(honest)
    assert found.exit_code == 0
    assert "that executing steps 0..24 leads to what is stored" in found.not_proved


def test_one_segment(honest):
    found = verify_run(honest, Request((10, 20)))
    assert found.exit_code == 0
    (replayed,) = (line for line in found.proved if line.startswith("replay"))
    assert "replay of steps 10..20: 10 updates" in replayed
    assert "steps 15, 20" in replayed
    assert "that executing steps 0..10, 21..24 leads to what is stored" in found.not_proved


def test_random_segments_follow_their_seed(honest):
    chosen = []
    for seed in range(8):
        found = verify_run(honest, Request(sample=2, seed=seed))
        assert (found.exit_code, found.seed) == (0, seed)
        assert f"seed        {seed}" in found.lines()
        segments = [line.split(":")[0] for line in found.proved if line.startswith("replay")]
        assert len(segments) == 2
        again = verify_run(honest, Request(sample=2, seed=seed))
        assert segments == [s.split(":")[0] for s in again.proved if s.startswith("replay")]
        chosen.append(tuple(segments))
    assert len(set(chosen)) > 1
    assert len([p for p in verify_run(honest, Request(sample=99)).proved if "replay" in p]) == 4
    assert verify_run(honest, Request(sample=1)).seed is not None


def test_an_unfinished_run(tmp_path):
    asked = iter([False] * 8 + [True])
    with pytest.raises(RunError, match="stopped after step 8"):
        run_training(
            tiny.dataset(),
            tiny.settings("float32"),
            tmp_path / "run",
            tiny.OPTIONS,
            stop=lambda: next(asked),
        )
    found = verify_run(tmp_path / "run", ALL)
    assert found.exit_code == 0, "\n".join(found.lines())
    assert "the run is not finished: it stands at step 8 of 24" in found.not_proved
    with (tmp_path / "run" / "steps.jsonl").open("a") as file:
        file.write('{"step": 9, "lo')
    found = verify_run(tmp_path / "run", ALL)
    assert found.exit_code == 0
    assert any("in the middle of a line" in line for line in found.not_proved)


def test_an_extended_run(run):
    resume_training(run, extend=Extension(LearningRateSchedule.constant(0.05, 6)))
    found = verify_run(run, ALL)
    assert found.exit_code == 0, "\n".join(found.lines())
    assert any("replay of steps 0..30" in line for line in found.proved)
    kept = sorted(int(p.stem[5:]) for p in (run / "checkpoints").iterdir())
    assert 20 in kept  # written under the plan of 24 updates
    edited_json(run / "config.json", lambda c: c["learning_rates"].__setitem__(27, 0.06))
    found = verify_run(run)
    assert found.first.field == "learning_rates"
    assert any((d.step, d.field) == (28, "learning_rate") for d in found.disproved)


def test_what_cannot_be_checked(run, tmp_path):
    assert verify_run(tmp_path / "nothing").exit_code == 2
    found = verify_run(run, Request((5, 10)))
    assert found.exit_code == 2
    assert "no checkpoint of step 5 is kept (kept: 0, 10, 15, 20, 24)" in found.problems[0]
    selected = max((run / "selected").iterdir())
    selected.rename(tmp_path / "aside")
    assert verify_run(run).exit_code == 2
    (tmp_path / "aside").rename(selected)
    edited_json(run / "config.json", lambda c: c.update(contract_version=99))
    found = verify_run(run)
    assert (found.exit_code, "contract" in found.problems[0]) == (2, True)


@pytest.mark.parametrize("text", ["", "x", "5", "5..", "..5", "5..5", "6..5", "-1..5", "1..2..3"])
def test_ranges_that_are_none(text):
    with pytest.raises(ValueError, match="expected all, or A"):
        parse_replay(text)


def invoked(*arguments):
    """The command in this process: its status and output."""
    done = CliRunner().invoke(verify, [str(argument) for argument in arguments])
    return done.exit_code, done.output


def test_the_command(run):
    done = llmcy("verify", run, "--replay", "all")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "verdict     proved"
    resealed(state_path(run, 20), changed(gate(run), 4))
    status, output = invoked(run, "--replay", "15..20", "--json")
    assert status == 1
    (disproof,) = json.loads(output)["disproved"]
    assert disproof["step"] == 20
    assert disproof["tensor"] == gate(run)
    assert disproof["index"] == [0, 4]
    done = llmcy("verify", run, "--replay", "15..20")  # the process ends with the same status
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "verdict     disproved"
    status, output = invoked(run, "--replay", "1..2")
    assert (status, output.splitlines()[-1]) == (2, "verdict     not checked")
    assert invoked(run / "none")[0] == 2
    assert invoked(run, "--replay", "2..1")[0] == 2
