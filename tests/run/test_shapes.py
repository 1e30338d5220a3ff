"""Job checkpoints of models with shared key heads, wide heads and an untied head."""

import os
from pathlib import Path
from typing import Any

import pytest

from llmcy.errors import RunError
from llmcy.run import load_model, resume_training, run_training
from llmcy.run.job_file import read_state_file
from llmcy.run.verify import verify_run
from tests.run.tiny import OPTIONS, STEPS, dataset, outcome, settings

SHAPE: dict[str, Any] = {"n_heads": 4, "n_kv_heads": 2, "head_size": 6, "tied_head": False}


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_run_with_a_break_is_the_run_without(
    dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    text, run = dataset(), settings(dtype, **SHAPE)
    run_training(text, run, tmp_path / "whole", OPTIONS)
    calls = iter(range(STEPS + 1))
    with pytest.raises(RunError) as caught:
        run_training(text, run, tmp_path / "run", OPTIONS, stop=lambda: next(calls) == 13)
    assert caught.value.kind == "Stopped"
    resume_training(tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(tmp_path / "whole")
    assert not (tmp_path / "run" / "selected.ckpt").exists()  # version 1 cannot hold it

    job = read_state_file(tmp_path / "run" / "checkpoints" / f"step-{STEPS:08}.safetensors")
    assert job.model.config.kv_heads == 2
    assert job.model.parameter_names()[-1] == "output_head.weight"
    loaded = load_model(tmp_path / "run")
    assert loaded.model.config == job.model.config
    found = verify_run(tmp_path / "run")
    assert (found.disproved, found.problems) == ([], [])
    assert any("selected.safetensors" in text for text in found.proved)
