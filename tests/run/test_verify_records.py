"""One altered record, rate or setting is found and named."""

import json
import random

import numpy as np
import pytest

from llmcy.run.settings import TrainSettings
from llmcy.run.verify import verify_run
from tests.run.forging import FILES, edited_json, edited_record, first, lines, rechain, write_lines


@pytest.mark.parametrize(
    ("log", "field"),
    [
        ("steps.jsonl", "loss"),
        ("steps.jsonl", "norm_before"),
        ("steps.jsonl", "norm_after"),
        ("steps.jsonl", "scale"),
        ("evaluations.jsonl", "train_loss"),
        ("evaluations.jsonl", "validation_loss"),
    ],
)
def test_one_number_of_a_record(run, log, field):
    step = 8
    old = next(r for r in lines(run / log) if r["step"] == step)[field]
    new = float(np.nextafter(old, 9.0))
    edited_record(run, log, step, **{field: new})
    disproof = first(run, FILES)
    assert (disproof.file, disproof.step, disproof.field) == (log, step, f"{field}_hex")
    edited_record(run, log, step, **{f"{field}_hex": new.hex()})
    disproof = first(run, FILES)
    assert (disproof.file, disproof.step, disproof.field) == (log, step, "history")
    rechain(run)
    found = verify_run(run)
    if field == "validation_loss":  # it decided about the selected state of step 10
        assert found.first.field == "best.validation_loss"
    else:
        assert found.exit_code == 0  # every digest fits
    disproof = first(run)
    assert (disproof.file, disproof.step, disproof.field) == (log, step, field)
    assert repr(old) in disproof.text
    assert repr(new) in disproof.text


@pytest.mark.parametrize("field", ["windows_sha256", "tokens", "rows", "clipped"])
def test_other_fields_of_a_record(run, field):
    (record,) = (r for r in lines(run / "steps.jsonl") if r["step"] == 9)
    value = {str: lambda v: "0" + v[1:], int: lambda v: v + 1, bool: lambda v: not v}
    new = value[type(record[field])](record[field])
    if new == record[field]:
        new = "1" + new[1:]
    edited_record(run, "steps.jsonl", 9, **{field: new})
    disproof = first(run, FILES)
    assert (disproof.step, disproof.field) == (9, "history")
    rechain(run)
    disproof = first(run)
    assert (disproof.step, disproof.field) == (9, field)


def test_records_lost_repeated_and_exchanged(run):
    log = run / "steps.jsonl"
    whole = lines(log)
    for altered, step in (
        (whole[:5] + whole[6:], 6),
        ([*whole[:5], whole[4], *whole[5:]], 6),
        ([*whole[:5], whole[6], whole[5], *whole[7:]], 6),
        (whole[:-1], 24),
        ([*whole, whole[-1]], 25),
        ([], 1),
    ):
        write_lines(log, altered)
        disproof = first(run, FILES)
        assert disproof.step == step or f"end at step {step - 1}" in disproof.text
    write_lines(log, whole)
    assert verify_run(run).exit_code == 0
    log.unlink()
    assert verify_run(run).exit_code == 1


def test_a_record_that_was_written_differently(run):
    log = run / "steps.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"step": 3,', b'"step":3,', 1))
    assert "line 3" in first(run, FILES).text


def test_one_rate(run):
    config = run / "config.json"
    whole = config.read_bytes()

    def rate(values):
        values["learning_rates"][4] += 2.0**-50

    edited_json(config, rate)
    assert first(run, FILES).field == "learning_rates[4]"
    config.write_bytes(whole)
    peak = json.loads(whole)["settings"]["learning_rate"]
    edited_record(run, "steps.jsonl", 5, learning_rate=peak / 3, learning_rate_hex=(peak / 3).hex())
    disproof = first(run, FILES)
    assert (disproof.step, disproof.field) == (5, "learning_rate")


def test_a_setting_changed_with_all_that_follows_from_it(run):
    """The rates fit the setting; the checkpoints and records come from another one."""

    def edit(values):
        values["settings"]["learning_rate"] *= 2
        settings = TrainSettings.from_dict(values["settings"])
        planned = settings.trainer_config(values["batches_per_epoch"])
        values["learning_rates"] = list(planned.schedule.rates())
        values["optimizer"] = settings.optimizer_config().to_dict()

    edited_json(run / "config.json", edit)
    disproof = first(run, FILES)
    assert (disproof.file, disproof.field) == ("config.json", "settings.learning_rate")


def test_every_setting_is_held_fast(run):
    config = run / "config.json"
    whole = config.read_bytes()
    for name, value in json.loads(whole)["settings"].items():
        new = {"dtype": "float16", "schedule": "wsd"}.get(name)
        if new is None:
            new = [0.5, 0.5] if isinstance(value, list) else value + type(value)(1)
        edited_json(config, lambda c, name=name, new=new: c["settings"].update({name: new}))
        found = verify_run(run)
        assert found.exit_code == 1, name
        config.write_bytes(whole)


@pytest.mark.parametrize(
    "name", ["steps.jsonl", "evaluations.jsonl", "tokens.json", "summary.json"]
)
def test_flipped_bits_of_the_text_files(run, name):
    path = run / name
    whole = path.read_bytes()
    rng = random.Random(name)
    free = (b'"wall_seconds": ',)
    checked = 0
    for _ in range(60):
        at = rng.randrange(len(whole))
        line = whole[:at].rpartition(b"\n")[2] + whole[at:].partition(b"\n")[0]
        column = at - (whole.rfind(b"\n", 0, at) + 1)
        if any(mark in line and column >= line.find(mark) for mark in free):
            continue
        data = bytearray(whole)
        data[at] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        assert verify_run(run).exit_code != 0, (at, whole[at - 20 : at + 20])
        checked += 1
    assert checked > 20
