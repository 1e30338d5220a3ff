"""Write first_batches.json: every number of the first batch of the two published runs.

    python -m tests.golden.make_first_batches

The values come from the slow model oracle (tests/oracle/model.py) with correctly rounded
elementary functions.  They were compared once, tensor by tensor and bit by bit, with a dump of the
program that published the runs: the 144-parameter run in full, the odd-sized one by the
fingerprints of its tensors.  The file keeps the former as bits and the latter as fingerprints
(FNV-1a over the little-endian values), so that a change of the oracle cannot change both sides of
a test.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from llmcy.config import ModelConfig
from tests.oracle import model as oracle

PUBLISHED = ModelConfig(5, 4, 2, 1, 4, 2)
PUBLISHED_SEED = 33
PUBLISHED_ROWS = [[4, 0, 1], [0, 1, 2]]  # windows train-b@2 and train-b@8

WIDE = ModelConfig(11, 12, 2, 2, 10, 7, rope_theta=500.0, rms_norm_eps=1e-5)
WIDE_SEED = 77
WIDE_WINDOWS = [("c", 4), ("c", 8), ("c", 0), ("a", 0), ("c", 6)]


def draws(state: int):
    """SplitMix64, in plain integers."""
    mask = 2**64 - 1
    while True:
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        yield z ^ (z >> 31)


def wide_rows() -> list[list[int]]:
    """Windows of five tokens and a target, from documents of drawn tokens."""
    stream = draws(2024)
    documents = {
        name: [next(stream) % 11 for _ in range(length)]
        for name, length in (("a", 17), ("b", 4), ("c", 14))
    }
    return [documents[name][start : start + 6] for name, start in WIDE_WINDOWS]


def initial(config: ModelConfig, seed: int) -> dict[str, np.ndarray]:
    """Parameters by section 3 of the contract, one Python float at a time."""
    stream = draws(seed)
    parameters = {}
    for name, shape in config.parameter_shapes().items():
        values = np.ones(shape)
        if len(shape) == 2:
            limit = math.sqrt(6.0 / (shape[0] + shape[1]))
            for index in np.ndindex(*shape):
                values[index] = limit * ((2.0 * ((next(stream) >> 11) * 2.0**-53)) - 1.0)
        parameters[name] = values
    return parameters


def bits(array: np.ndarray) -> list[str]:
    return [f"{int(word):016x}" for word in np.ascontiguousarray(array).reshape(-1).view(np.uint64)]


def fingerprint(array: np.ndarray) -> str:
    h = 0xCBF29CE484222325
    for byte in np.ascontiguousarray(array).astype("<f8").tobytes():
        h = ((h ^ byte) * 0x100000001B3) % 2**64
    return f"fnv1a64:{h:016x}"


def record(config: ModelConfig, seed: int, rows: list[list[int]], keep: Any) -> dict[str, Any]:
    inputs = np.array([row[:-1] for row in rows])
    targets = np.array([row[1:] for row in rows])
    parameters = initial(config, seed)
    loss, activations, adjoints, gradients = oracle.run(config, parameters, inputs, targets)
    groups = {
        "initial": parameters,
        "activations": activations,
        "adjoints": adjoints,
        "gradients": gradients,
    }
    return {
        "config": config.to_dict(),
        "seed": seed,
        "inputs": inputs.tolist(),
        "targets": targets.tolist(),
        "loss": bits(np.array(loss))[0],
        **{name: {k: keep(v) for k, v in group.items()} for name, group in groups.items()},
    }


def main() -> None:
    content = {
        "published": record(PUBLISHED, PUBLISHED_SEED, PUBLISHED_ROWS, bits),
        "wide": record(WIDE, WIDE_SEED, wide_rows(), fingerprint),
    }
    path = Path(__file__).with_name("first_batches.json")
    path.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
