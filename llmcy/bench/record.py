"""Measurements as a JSON file, and two such files side by side.

A file holds ``{"format": 1, "machine": {...}, "results": [...]}``; a result is a
:class:`Measurement`. The same format serves ``llmcy bench`` and the comparisons with other
libraries under ``benchmarks/``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from llmcy.atomic_file import write_atomic
from llmcy.errors import RunError

__all__ = ["Change", "Measurement", "compare", "read_results", "write_results"]

FORMAT = 1


@dataclass(frozen=True)
class Measurement:
    """One figure.

    Attributes
    ----------
    group, case
        What was measured: "kernel" and "swiglu forward", for example.
    side
        Which library.
    dtype, threads
        Under which conditions.
    value, unit
        The median and its unit; smaller is better for "s" and "bytes" and "instructions", larger
        for everything else.
    best
        The smallest sample.
    facts
        Whatever else is known, such as shares of a peak.
    """

    group: str
    case: str
    side: str
    dtype: str
    threads: int
    value: float
    unit: str = "s"
    best: float = math.nan
    facts: dict[str, float] = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str, str, str, int]:
        return self.group, self.case, self.side, self.dtype, self.threads


@dataclass(frozen=True)
class Change:
    """The same figure in two files; ``ratio`` is new over old."""

    old: Measurement
    new: Measurement

    @property
    def ratio(self) -> float:
        return self.new.value / self.old.value if self.old.value else math.nan


def write_results(path: Path, machine: dict[str, Any], results: Sequence[Measurement]) -> None:
    """Write a file of measurements, whole or not at all."""
    rows = []
    for result in results:
        row = asdict(result)
        if math.isnan(row["best"]):
            del row["best"]  # JSON has no NaN
        rows.append(row)
    content = {"format": FORMAT, "machine": machine, "results": rows}
    write_atomic(path, (json.dumps(content, indent=1) + "\n").encode())


def read_results(path: Path) -> tuple[dict[str, Any], list[Measurement]]:
    """The machine and the measurements of a file.

    Raises
    ------
    RunError
        ``NoMeasurements`` when the file is not one of measurements.
    """
    try:
        content = json.loads(path.read_text())
        if content["format"] != FORMAT:
            raise ValueError(f"format {content['format']!r} instead of {FORMAT}")
        return content["machine"], [Measurement(**row) for row in content["results"]]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(
            "NoMeasurements",
            f"{path} is not a file of measurements: {error}",
            path=str(path),
            problem=str(error),
        ) from error


def compare(old: Sequence[Measurement], new: Sequence[Measurement]) -> list[Change]:
    """Figures that both files have, in the order of the new one."""
    before = {measurement.key: measurement for measurement in old}
    return [Change(before[m.key], m) for m in new if m.key in before]
