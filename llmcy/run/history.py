"""The history of a run: every record chained into the next by SHA-256.

The digest after a record is SHA-256 over the digest before it, as 32 bytes, and the canonical JSON
of the record.  The chain starts from the digest of the run's identity and goes through the records
in the order in which they came to be: the update of a step, then its measurement.  Times and
everything else that differs between two equal runs stays outside.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from llmcy.data import EpochPosition
from llmcy.run.canonical import canonical_json, sha256_hex, with_float_bits
from llmcy.trainer import LossCheckpoint, TrainingStep

__all__ = [
    "UNCHAINED",
    "chained",
    "evaluation_record",
    "history_start",
    "next_history",
    "step_record",
]

UNCHAINED = ("history", "wall_seconds")
"""Keys of a line that are not part of its record."""


def history_start(identity: Mapping[str, Any]) -> str:
    """The digest that a run's chain starts from."""
    return sha256_hex(canonical_json(with_float_bits(dict(identity))))


def next_history(history: str, record: Mapping[str, Any]) -> str:
    """The digest after ``record``; keys outside the chain are left out."""
    held = {key: value for key, value in record.items() if key not in UNCHAINED}
    return hashlib.sha256(bytes.fromhex(history) + canonical_json(held)).hexdigest()


def chained(history: str, record: Mapping[str, Any], **outside: Any) -> tuple[str, dict[str, Any]]:
    """The next digest, and the line: the record, that digest, and what is outside the chain."""
    following = next_history(history, record)
    return following, {**record, "history": following, **outside}


def step_record(step: TrainingStep, position: EpochPosition) -> dict[str, Any]:
    """An update as a record: decimals to read, hexadecimal digits to compare."""
    divisor, multiplier = step.transform.as_pair()
    windows = "".join(f"{label}\n" for label in step.windows)
    return {
        "step": step.step,
        "epoch": position.epoch,
        "batch": position.cursor,
        "windows_sha256": sha256_hex(windows.encode("utf-8", "surrogatepass")),
        "rows": len(step.windows),
        "tokens": step.target_count,
        **_both("loss", step.train_loss),
        **_both("learning_rate", step.learning_rate),
        **_both("norm_before", step.norm_before),
        **_both("norm_after", step.norm_after),
        **_both("scale", multiplier),
        **_both("divisor", divisor),
        "clipped": step.clipped,
    }


def evaluation_record(measured: LossCheckpoint) -> dict[str, Any]:
    """A measurement as a record."""
    return {
        "step": measured.step,
        **_both("train_loss", measured.train.loss),
        "train_tokens": measured.train.target_count,
        **_both("validation_loss", measured.validation.loss),
        "validation_tokens": measured.validation.target_count,
        "best_so_far": measured.selected,
    }


def _both(name: str, value: float) -> dict[str, Any]:
    return {name: value, f"{name}_hex": value.hex()}
