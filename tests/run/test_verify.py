"""``verify``: honest runs are proved; whatever is altered is found and named."""

import hashlib
import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from llmcy.data import BatchDocument, SplitRule, prepare_dataset, read_sources
from llmcy.errors import RunError
from llmcy.optim import LearningRateSchedule
from llmcy.run import Extension, JobOptions, resume_training, run_training
from llmcy.run.settings import TrainSettings
from llmcy.run.stored_state import read_stored_state
from llmcy.run.verify import Request, parse_replay, verify_run
from tests.cli.command import llmcy
from tests.run import tiny
from tests.run.forging import (
    edited_json,
    edited_record,
    lines,
    rechain,
    resealed,
    state_path,
    write_lines,
)

ALL = Request("all")


@pytest.fixture(scope="module", params=["float32", "float64"])
def honest(request, tmp_path_factory):
    """A finished run with checkpoints of steps 0, 10, 15, 20 and 24."""
    path = tmp_path_factory.mktemp("verify") / "run"
    options = JobOptions(checkpoint_every=5, keep_last=3, keep_every=10, micro_batch_size=2)
    run_training(tiny.dataset(), tiny.settings(request.param), path, options)
    return path


@pytest.fixture
def run(honest, tmp_path):
    """A copy to alter."""
    return Path(shutil.copytree(honest, tmp_path / "run"))


def first(path, request=ALL):
    found = verify_run(path, request)
    assert found.exit_code == 1, "\n".join(found.lines())
    return found.first


def everything(folder):
    return {
        str(path.relative_to(folder)): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in folder.rglob("*")
        if path.is_file()
    }


# --------------------------------------------------------------------------- honest runs
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
    assert "that executing steps 1..10, 21..24 leads to what is stored" in found.not_proved


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


# --------------------------------------------------------------------------- one moment
def changed(name, flat):
    """Another bit in the middle of one number's digits: more than a later step can round away."""

    def alter(tensors):
        bits = tensors[name].reshape(-1).view(f"u{tensors[name].itemsize}")
        bits[flat] ^= bits.dtype.type(1 << (18 if bits.itemsize == 4 else 45))

    return alter


def gate(run):
    names = read_stored_state(state_path(run, 20)).names
    return next(n for n in names if n.startswith("second_moment") and "gate" in n)


def test_one_moment_is_named_by_its_digest_and_by_the_replay(run):
    name = gate(run)
    path = state_path(run, 20)
    data = bytearray(path.read_bytes())
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    start = 8 + int.from_bytes(data[:8], "little") + header[name]["data_offsets"][0]
    data[start + 5 * (8 if header[name]["dtype"] == "F64" else 4)] ^= 1
    path.write_bytes(data)
    disproof = first(run, Request())
    assert (disproof.step, disproof.tensor) == (20, name)
    found = verify_run(run, ALL)
    indexed = next(d for d in found.disproved if d.index is not None)
    width = header[name]["shape"][1]
    assert (indexed.step, indexed.tensor, indexed.index) == (20, name, divmod(5, width))
    assert "by up to 1 ulp" in indexed.text


@pytest.mark.parametrize("prefix", ["", "first_moment:", "second_moment:"])
def test_one_value_under_new_digests_is_found_by_the_replay_only(run, prefix):
    name = prefix + gate(run).removeprefix("second_moment:")
    resealed(state_path(run, 15), changed(name, 7))
    assert verify_run(run).exit_code == 0  # every digest fits
    disproof = first(run)
    assert (disproof.step, disproof.tensor, disproof.index) == (15, name, divmod(7, 12))
    assert first(run, Request((10, 15))).tensor == name
    onward = first(run, Request((15, 20)))  # the altered state does not lead to the next one
    assert onward.step > 15
    assert verify_run(run, Request((0, 10))).exit_code == 0


def test_the_selected_state_and_the_exported_model(run):
    selected = sorted((run / "selected").iterdir())[-1]
    resealed(selected, changed("final_norm.gain", 3))
    disproof = first(run, Request())
    assert disproof.field == "best.tensors_sha256"


@pytest.mark.parametrize("name", ["selected.ckpt", "selected.safetensors"])
def test_the_exported_model(run, name):
    path = run / name
    if not path.exists():
        pytest.skip("the other dtype")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    assert first(run, Request()).file == name


# --------------------------------------------------------------------------- one record
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
    disproof = first(run, Request())
    assert (disproof.file, disproof.step, disproof.field) == (log, step, f"{field}_hex")
    edited_record(run, log, step, **{f"{field}_hex": new.hex()})
    disproof = first(run, Request())
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
    disproof = first(run, Request())
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
        disproof = first(run, Request())
        assert disproof.step == step or f"end at step {step - 1}" in disproof.text
    write_lines(log, whole)
    assert verify_run(run).exit_code == 0
    log.unlink()
    assert verify_run(run).exit_code == 1


def test_a_record_that_was_written_differently(run):
    log = run / "steps.jsonl"
    log.write_bytes(log.read_bytes().replace(b'"step": 3,', b'"step":3,', 1))
    assert "line 3" in first(run, Request()).text


# --------------------------------------------------------------------------- one rate
def test_one_rate(run):
    config = run / "config.json"
    whole = config.read_bytes()

    def rate(values):
        values["learning_rates"][4] += 2.0**-50

    edited_json(config, rate)
    assert first(run, Request()).field == "learning_rates[4]"
    config.write_bytes(whole)
    peak = json.loads(whole)["settings"]["learning_rate"]
    edited_record(run, "steps.jsonl", 5, learning_rate=peak / 3, learning_rate_hex=(peak / 3).hex())
    disproof = first(run, Request())
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
    disproof = first(run, Request())
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


# --------------------------------------------------------------------------- one token
def test_one_token(run):
    tokens, index, config = run / "tokens.bin", run / "tokens.json", run / "config.json"
    listed = json.loads(index.read_text())["documents"]
    data = bytearray(tokens.read_bytes())
    at = 4 * (listed[0]["tokens"] + 3)  # in the second document
    data[at] ^= 1
    tokens.write_bytes(data)
    disproof = first(run, Request())
    assert listed[1]["id"] in disproof.text
    assert disproof.file == "tokens.bin"

    def fit(values):
        part = data[4 * listed[0]["tokens"] :][: 4 * listed[1]["tokens"]]
        values["documents"][1]["sha256"] = hashlib.sha256(part).hexdigest()
        values["sha256"] = hashlib.sha256(data).hexdigest()

    edited_json(index, fit)
    assert first(run, Request()).field == "data.tokens"
    edited_json(config, lambda c: c["data"].update(tokens=hashlib.sha256(data).hexdigest()))
    disproof = first(run, Request())
    assert (disproof.file, disproof.field) == ("config.json", "data.tokens")


def test_the_tokenizer_and_the_split(run):
    for name, edit, word in (
        ("tokenizer.json", lambda t: t["pairs"].pop(), "vocab_size"),
        ("tokenizer.json", lambda t: t["pairs"].reverse(), "tokenizer"),
        ("split.json", lambda s: s["documents"][2].update(sha256="0" * 64), "split"),
        ("split.json", lambda s: s["source"].update(kind="told"), "split"),
    ):
        whole = (run / name).read_bytes()
        edited_json(run / name, edit)
        disproof = first(run, Request())
        assert word in disproof.field, disproof
        (run / name).write_bytes(whole)
    assert verify_run(run).exit_code == 0


# --------------------------------------------------------------------------- one document
@pytest.fixture(scope="module")
def from_texts(tmp_path_factory):
    """A run whose texts are files, and the files."""
    folder = tmp_path_factory.mktemp("texts")
    texts = folder / "texts"
    texts.mkdir()
    rng = random.Random(5)
    for number in range(24):
        (texts / f"{number:02}.txt").write_text(" ".join(rng.choices(tiny.WORDS, k=24)))
    rule = SplitRule(validation=0.25, test=0.1)
    dataset = prepare_dataset(read_sources([texts]), rule, 30)
    settings = replace(tiny.settings("float32"), epochs=0, steps=2, eval_at=())
    run_training(dataset, settings, folder / "run", tiny.OPTIONS)
    return folder / "run", texts


def test_documents_read_again(from_texts, tmp_path):
    run, original = from_texts
    texts = Path(shutil.copytree(original, tmp_path / "texts"))
    found = verify_run(run, Request(sources=[texts]))
    assert found.exit_code == 0, "\n".join(found.lines())
    assert any(line.startswith("documents: 24 read again") for line in found.proved)
    document = texts / "03.txt"
    text = document.read_text()
    document.write_text(text.replace("a", "A", 1))
    assert first(run, Request(sources=[texts])).field == "sha256 of 03.txt"
    document.write_text(text + "!")
    assert first(run, Request(sources=[texts])).field == "bytes of 03.txt"
    document.unlink()
    assert first(run, Request(sources=[texts])).field == "number of documents"
    assert verify_run(run, Request(sources=[tmp_path / "gone"])).exit_code == 2


def test_tokens_that_do_not_come_from_the_documents(from_texts, tmp_path):
    """A forger who trains on other tokens and writes down honest digests of the documents."""
    _, texts = from_texts
    stored = prepare_dataset(read_sources([texts]), SplitRule(validation=0.25, test=0.1), 30)
    other = prepare_dataset(read_sources([texts]), SplitRule(validation=0.25, test=0.1), 29)
    victim = stored.documents.train[1]
    ids = victim.token_ids.copy()
    ids[5] += 1
    train = list(stored.documents.train)
    train[1] = BatchDocument(victim.id, victim.partition, ids)
    documents = replace(stored.documents, train=tuple(train))
    settings = replace(tiny.settings("float32"), epochs=0, steps=2, eval_at=())
    for name, forged, word in (
        ("tokens", replace(stored, documents=documents), victim.id),
        ("rules", other, "rule 29"),
    ):
        run_training(forged, settings, tmp_path / name, tiny.OPTIONS)
        assert verify_run(tmp_path / name, ALL).exit_code == 0
        found = verify_run(tmp_path / name, Request(sources=[texts]))
        if name == "rules":  # fewer rules than could be learned are as good a choice
            assert found.exit_code == 0
        else:
            assert word in found.first.text


# --------------------------------------------------------------------------- files as a whole
def test_damaged_state_files(run):
    path = state_path(run, 24)
    data = path.read_bytes()
    for damaged in (data[:-1], data[:100], b"", data + b"\0"):
        path.write_bytes(damaged)
        disproof = first(run, Request())
        assert disproof.file == "checkpoints/step-00000024.safetensors"
    path.write_bytes(data)
    other = state_path(run, 20).read_bytes()
    path.write_bytes(other)  # a whole file in the wrong place
    disproof = first(run, Request())
    assert (disproof.step, disproof.field) == (24, "step")


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


# --------------------------------------------------------------------------- the command
def test_the_command(run):
    done = llmcy("verify", run, "--replay", "all")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == "verdict     proved"
    resealed(state_path(run, 20), changed(gate(run), 4))
    done = llmcy("verify", run, "--replay", "15..20", "--json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    (disproof,) = report["disproved"]
    assert disproof["step"] == 20
    assert disproof["tensor"] == gate(run)
    assert disproof["index"] == [0, 4]
    done = llmcy("verify", run, "--replay", "1..2")
    assert done.returncode == 2
    assert done.stdout.splitlines()[-1] == "verdict     not checked"
    assert llmcy("verify", run / "none").returncode == 2
    assert llmcy("verify", run, "--replay", "2..1").returncode == 2
