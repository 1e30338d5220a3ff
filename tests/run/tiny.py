"""A small training run that has everything: two epochs, a short last batch, uneven measurements."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from llmcy.data import SplitRule, TextDataset, TextDocument, TextSource, prepare_dataset
from llmcy.errors import RunError
from llmcy.rng import SplitMix64
from llmcy.run import JobOptions, TrainSettings, run_training

WORDS = "the cat dog sees a tree and runs over green hills while rain falls".split()  # noqa: SIM905

SETTINGS = TrainSettings(
    d_model=8,
    n_heads=2,
    n_layers=1,
    d_ff=12,
    context_length=8,
    epochs=2,
    batch_size=5,
    learning_rate=0.6,
    warmup_steps=3,
    schedule="inverse-sqrt",
    eval_at=(7, 8, 21),
    eval_batch_size=8,
    seed=3,
    shuffle_seed=4,
)
STEPS = 24
OPTIONS = JobOptions(checkpoint_every=5, keep_last=2, micro_batch_size=2)


def settings(dtype: str, **changes: Any) -> TrainSettings:
    return replace(SETTINGS, dtype=dtype, **changes)


def dataset(seed: int = 1) -> TextDataset:
    """Invented sentences; 56 training windows make 12 batches of 5, the last one of 1."""
    rng = SplitMix64(seed)
    documents = [
        TextDocument(f"d{n}", " ".join(WORDS[rng.below(14)] for _ in range(24)).encode())
        for n in range(24)
    ]
    source = TextSource(tuple(documents), {"kind": "invented"})
    return prepare_dataset(source, SplitRule(validation=0.25, test=0.1), 30)


def records(path: Path) -> list[dict[str, Any]]:
    """The lines of a log without what differs between equal runs."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "wall_seconds"} for line in lines]


def outcome(run: Path) -> dict[str, Any]:
    """Everything that two equal runs have in common, whatever happened on the way."""
    last = run / "checkpoints" / f"step-{STEPS:08}.safetensors"
    names = ("selected.ckpt", "selected.safetensors", "summary.json", "evaluations.jsonl")
    return {
        "steps": records(run / "steps.jsonl"),
        "last checkpoint": last.read_bytes(),
        "selected states": sorted((p.name, p.read_bytes()) for p in (run / "selected").iterdir())[
            -1
        ],
        **{n: (run / n).read_bytes() for n in names if (run / n).exists()},
    }


def stop_after(*steps: int) -> Callable[[], bool]:
    """Says stop after the steps given, counted by the calls."""
    calls = iter(range(STEPS + 1))
    return lambda: next(calls) in steps


def stopped(
    text: TextDataset, dtype: str, path: Path, step: int, options: JobOptions = OPTIONS
) -> Path:
    with pytest.raises(RunError) as caught:
        run_training(text, settings(dtype), path, options, stop=stop_after(step))
    assert (caught.value.kind, caught.value.step) == ("Stopped", step)
    return path
