"""Altering a finished run: crudely, or so that every digest fits again."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from llmcy.optim import AdamWState, AdamWStateEntry, OptimizerSnapshot
from llmcy.run.findings import Disproof
from llmcy.run.history import history_start, next_history
from llmcy.run.job_file import encode_state_file, read_state_file
from llmcy.run.stored_state import read_stored_state
from llmcy.run.training import open_run, read_run
from llmcy.run.verify import Request, verify_run

Alter = Callable[[dict[str, np.ndarray]], object]
ALL, FILES = Request("all"), Request()


def first(run: Path, request: Request = ALL) -> Disproof:
    """The first thing that is disproved; something must be."""
    found = verify_run(run, request)
    assert found.exit_code == 1, "\n".join(found.lines())
    assert found.first is not None
    return found.first


def state_path(run: Path, step: int) -> Path:
    return run / "checkpoints" / f"step-{step:08}.safetensors"


def resealed(path: Path, alter: Alter | None = None, **described: Any) -> None:
    """Change tensors (``first_moment:`` and ``second_moment:`` in front of moments) or metadata."""
    state = read_state_file(path)
    parameters = {name: array.copy() for name, array in state.model.named_arrays()}
    moments = {}
    for entry in state.optimizer.state.entries:
        moments[f"first_moment:{entry.name}"] = entry.first_moment.copy()
        moments[f"second_moment:{entry.name}"] = entry.second_moment.copy()
    everything = parameters | moments
    if alter is not None:
        alter(everything)
    entries = [
        AdamWStateEntry(
            entry.name,
            entry.shape,
            everything[f"first_moment:{entry.name}"],
            everything[f"second_moment:{entry.name}"],
        )
        for entry in state.optimizer.state.entries
    ]
    old = state.optimizer
    optimizer = OptimizerSnapshot(
        old.config,
        old.groups,
        AdamWState(old.state.step, old.state.beta1_power, old.state.beta2_power, entries),
    )
    data, _ = encode_state_file(
        [(name, everything[name]) for name in parameters],
        state.model.config,
        optimizer,
        {**{k: v for k, v in state.described.items() if k != "sha256"}, **described},
    )
    path.write_bytes(data)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path: Path, records: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def edited_json(path: Path, edit: Callable[[Any], object]) -> None:
    value = json.loads(path.read_text())
    edit(value)
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def edited_record(run: Path, log: str, step: int, **fields: Any) -> None:
    records = lines(run / log)
    next(r for r in records if r["step"] == step).update(fields)
    write_lines(run / log, records)


def rechain(run: Path) -> None:
    """Give every record, checkpoint and the summary the digests that the records now lead to."""
    plan, _ = read_run(open_run(run))
    updates, evaluations = lines(run / "steps.jsonl"), lines(run / "evaluations.jsonl")
    measured = {record["step"]: record for record in evaluations}
    history = history_start(plan.identity())
    after = {}
    for step in range(len(updates) + 1):
        for record in ([updates[step - 1]] if step else []) + [
            measured[step] for _ in range(step in measured)
        ]:
            history = record["history"] = next_history(history, record)
        after[step] = history
    write_lines(run / "steps.jsonl", updates)
    write_lines(run / "evaluations.jsonl", evaluations)
    for path in (run / "checkpoints").iterdir():
        resealed(path, history=after[int(path.stem.removeprefix("step-"))])
    if (run / "summary.json").exists():
        edited_json(run / "summary.json", lambda summary: summary.update(history=history))


def changed(name: str, flat: int) -> Alter:
    """Another bit in the middle of one number's digits: more than a later step can round away."""

    def alter(tensors: dict[str, np.ndarray]) -> None:
        bits = tensors[name].reshape(-1).view(f"u{tensors[name].itemsize}")
        bits[flat] ^= bits.dtype.type(1 << (18 if bits.itemsize == 4 else 45))

    return alter


def gate(run: Path) -> str:
    """A second moment."""
    names = read_stored_state(state_path(run, 20)).names
    return next(n for n in names if n.startswith("second_moment") and "gate" in n)
