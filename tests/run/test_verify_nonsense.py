"""Nonsense in any place of any file of a run: found, never an exception, never proved."""

import json
import random
import shutil
from pathlib import Path

import pytest

from llmcy.errors import LlmcyError
from llmcy.run import JobOptions, run_training
from llmcy.run.canonical import canonical_json, sha256_hex
from llmcy.run.diff_runs import diff_runs
from llmcy.run.verify import Request, verify_run
from tests.run import tiny

REMOVED = object()
NONSENSE = [
    *(None, True, 0, -1, 1, 2**70, 0.5, -0.0, 1e308, "", "x", "0x1p+0", "NaN"),
    *([], {}, [1], {"a": 1}, REMOVED),
]
JSON_FILES = ("config.json", "split.json", "tokenizer.json", "tokens.json", "summary.json")
LOGS = ("steps.jsonl", "evaluations.jsonl")


@pytest.fixture(scope="module")
def honest(tmp_path_factory):
    path = tmp_path_factory.mktemp("nonsense") / "run"
    options = JobOptions(checkpoint_every=5, keep_last=2, keep_every=10)
    run_training(tiny.dataset(), tiny.settings("float32"), path, options)
    return path


@pytest.fixture
def run(honest, tmp_path):
    return Path(shutil.copytree(honest, tmp_path / "run"))


def places(value, path=()):
    """Every place in nested JSON values."""
    yield path
    if isinstance(value, dict):
        for key in value:
            yield from places(value[key], (*path, key))
    elif isinstance(value, list):
        for index in range(len(value)):
            yield from places(value[index], (*path, index))


def replaced(value, path, new):
    if not path:
        return None if new is REMOVED else new
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    if new is REMOVED:
        del inner[path[-1]]
    else:
        inner[path[-1]] = new
    return value


def test_nonsense_in_the_text_files(run):
    rng = random.Random(12)
    for _ in range(90):
        name = rng.choice(JSON_FILES + LOGS)
        file = run / name
        whole = file.read_bytes()
        if name in LOGS:
            lines = [json.loads(line) for line in whole.splitlines()]
            index = rng.randrange(len(lines))
            path = rng.choice(list(places(lines[index])))
            lines[index] = replaced(lines[index], path, rng.choice(NONSENSE))
            data = "".join(json.dumps(line) + "\n" for line in lines)
        else:
            value = json.loads(whole)
            path = rng.choice(list(places(value)))
            value = replaced(value, path, rng.choice(NONSENSE))
            data = json.dumps(value, indent=2, ensure_ascii=False) + "\n"
        information = path and path[0] in ("options", "llmcy_version", "wall_seconds")
        file.write_bytes(data.encode())
        found = verify_run(run)
        if data.encode() != whole and not information:
            assert found.exit_code != 0, (name, path)
        json.dumps(found.to_dict(), allow_nan=False)
        try:
            difference = diff_runs(run, run)
        except LlmcyError:
            pass
        else:
            assert list(difference.lines())
        file.write_bytes(whole)
    assert verify_run(run).exit_code == 0


def test_nonsense_in_metadata_under_a_new_digest(run):
    rng = random.Random(13)
    files = [path for folder in ("checkpoints", "selected") for path in (run / folder).iterdir()]
    for _ in range(60):
        file = rng.choice(sorted(files))
        whole = file.read_bytes()
        length = int.from_bytes(whole[:8], "little")
        header = json.loads(whole[8 : 8 + length])
        described = json.loads(header["__metadata__"]["llmcy"])
        described.pop("sha256")
        path = rng.choice([place for place in places(described) if place])
        described = replaced(described, path, rng.choice(NONSENSE))
        described["sha256"] = sha256_hex(canonical_json(described))
        header["__metadata__"]["llmcy"] = canonical_json(described).decode()
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        data = len(text).to_bytes(8, "little") + text + whole[8 + length :]
        file.write_bytes(data)
        found = verify_run(run, Request(sample=1, seed=1))
        assert (found.exit_code == 0) == (data == whole), (file.name, path)
        file.write_bytes(whole)
