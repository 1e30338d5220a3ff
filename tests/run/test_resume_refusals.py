"""What may not change between the parts of a run is refused by name."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from llmcy.errors import RunError
from llmcy.run import resume_training
from tests.run.tiny import dataset, stopped

pytestmark = pytest.mark.usefixtures("fast_disk")


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
        (("validation_steps",), [0, 8, 9, 21, 24], "validation_steps[1]"),
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
