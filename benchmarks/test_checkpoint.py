"""Saving and loading a job checkpoint beside the least that any safe routine must do.

The least: write the same bytes and force them to the disk, or read them, and hash them once with
SHA-256.  Both sides take turns on one file system, so that both meet the same disk.

    python -m pytest benchmarks/test_checkpoint.py -s
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from llmcy.atomic_file import publish
from llmcy.config import ModelConfig
from llmcy.model import Decoder
from llmcy.optim import (
    AdamWConfig,
    AdamWState,
    AdamWStateEntry,
    OptimizerSnapshot,
    ParameterGroups,
)
from llmcy.run.job_file import (
    decode_state_file,
    encode_state_file,
    encode_state_pieces,
    read_state_file,
)

ROUNDS = 7
CONFIG = ModelConfig(
    vocab_size=4096,
    d_model=512,
    n_heads=8,
    n_layers=9,
    d_ff=1344,
    max_seq_len=256,
    dtype="float32",
)


def state() -> tuple[list[tuple[str, Any]], OptimizerSnapshot]:
    """Parameters and moments of a model of 30 million parameters after one imagined step."""
    model = Decoder.initialize(CONFIG, 1)
    named = [(name, np.array(parameter.data)) for name, parameter in model.named_parameters()]
    rng = np.random.default_rng(2)
    entries = [
        AdamWStateEntry(
            name,
            values.shape,
            rng.standard_normal(values.shape, np.float32),
            rng.random(values.shape, np.float32),
        )
        for name, values in sorted(named)
    ]
    adamw = AdamWConfig(1e-3, (0.9, 0.95))
    groups = ParameterGroups.from_rule([name for name, _ in named])
    return named, OptimizerSnapshot(adamw, groups, AdamWState(1, 0.9, 0.95, entries))


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def side_by_side(plain: Callable[[], object], ours: Callable[[], object]) -> dict[str, float]:
    """Median seconds of both, in turns, and the median of the ratio of neighbours."""
    plain(), ours()
    pairs = [(seconds(plain), seconds(ours)) for _ in range(ROUNDS)]
    return {
        "plain": median(a for a, _ in pairs),
        "ours": median(b for _, b in pairs),
        "ratio": median(b / a for a, b in pairs),
    }


def write_plainly(path: Path, data: bytes) -> str:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    done = 0
    while done < len(data):
        done += os.write(descriptor, memoryview(data)[done:])
    os.fsync(descriptor)
    os.close(descriptor)
    return hashlib.sha256(data).hexdigest()


def test_a_checkpoint_of_30_million_parameters(tmp_path: Path) -> None:
    named, optimizer = state()
    described = {"kind": "job"}
    plain_path, path = tmp_path / "plain", tmp_path / "step-00000001.safetensors"

    def save() -> None:
        publish(path, encode_state_pieces(named, CONFIG, optimizer, described)[0])

    first = seconds(save)  # the library lays out a file of this form
    data, _ = encode_state_file(named, CONFIG, optimizer, described)
    parameters = sum(values.size for _, values in named)
    print(f"\n{parameters:,} parameters, {len(data):,} bytes, {ROUNDS} rounds")
    print(f"first save: {first:.3f} s")
    for name, result in (
        ("save", side_by_side(lambda: write_plainly(plain_path, data), save)),
        (
            "load",
            side_by_side(
                lambda: hashlib.sha256(plain_path.read_bytes()).hexdigest(),
                lambda: read_state_file(path),
            ),
        ),
    ):
        print(
            f"{name}: {result['ours']:.3f} s; plain file and one SHA-256 {result['plain']:.3f} s; "
            f"ratio {result['ratio']:.2f}"
        )
    assert path.read_bytes() == data == plain_path.read_bytes()
    read = decode_state_file(data, path)
    for (name, values), (read_name, read_values) in zip(
        named, read.model.named_arrays(), strict=True
    ):
        assert name == read_name
        assert values.tobytes() == read_values.tobytes()
