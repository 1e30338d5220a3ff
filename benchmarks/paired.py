"""Time several libraries side by side: in turns, each in a process of its own, with idle gaps."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
GAP = 0.15  # seconds of idleness before a side of several threads: those that spin go to sleep
FORCED = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "LLMCY_NUM_THREADS", "OMP_NUM_THREADS")


class Side:
    """A library in a child process."""

    def __init__(self, library: str, environment: dict[str, str] | None = None) -> None:
        environ = {name: value for name, value in os.environ.items() if name not in FORCED}
        environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), environ.get("PYTHONPATH", "")])
        environ |= environment or {}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.worker", library],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
            cwd=ROOT,
        )

    def ask(self, **request: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"the process of a benchmark ended: {self.process.args}")
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@contextlib.contextmanager
def sides(libraries: Sequence[str]) -> Iterator[dict[str, Side]]:
    """One process a library; they end with the block."""
    opened: dict[str, Side] = {}
    try:
        for library in libraries:
            opened[library] = Side(library)
        yield opened
    finally:
        for side in opened.values():
            side.close()


@dataclass(frozen=True)
class Paired:
    """Samples of every side in seconds a call, taken in turns: by the clock, and of the processor.

    Where one thread works, processor time says how fast a side is even while other programs run.
    """

    samples: dict[str, tuple[float, ...]]
    busy: dict[str, tuple[float, ...]]

    def median(self, library: str) -> float:
        return median(self.samples[library])

    def best(self, library: str) -> float:
        return min(self.samples[library])

    def ratio(self, library: str, over: str = "llmcy") -> float:
        """How many times as fast ``over`` is as ``library``, by medians."""
        return self.median(library) / self.median(over)

    def busy_ratio(self, library: str, over: str = "llmcy") -> float:
        """The same by processor time."""
        return median(self.busy[library]) / median(self.busy[over])


def measure(
    opened: dict[str, Side], kind: str, name: str, dtype: str, threads: int, rounds: int
) -> Paired:
    """Take ``rounds`` samples of each side in turns, changing who goes first."""
    order = list(opened)
    samples: dict[str, list[list[float]]] = {library: [] for library in order}
    for library in order:
        request = {"kind": kind, "name": name, "dtype": dtype, "threads": threads}
        opened[library].ask(build=request)
    for _ in range(rounds):
        for library in order:
            if threads > 1:
                time.sleep(GAP)
                opened[library].ask(run=1)  # wake the threads; this sample is not kept
            samples[library] += opened[library].ask(run=1)
        order.reverse()
    return Paired(
        {library: tuple(wall for wall, _ in taken) for library, taken in samples.items()},
        {library: tuple(busy for _, busy in taken) for library, taken in samples.items()},
    )
