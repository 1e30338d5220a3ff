"""Time several libraries side by side: in turns, each in a process of its own, with idle gaps."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).parent.parent
# Seconds of idleness before a side of several threads.  Those of the side before spin for up to a
# quarter of a second: with a gap of 0.05 one row in ten came out a third slower, on any side.
GAP = 0.35
FORCED = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE", "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")
TOLERANCE = {"float64": 1e-9, "float32": 2e-4}


class Side:
    """A library in a child process.

    The environment is this process's without the settings that choose a BLAS kernel or a number of
    threads: every library runs as it would for its user.
    """

    def __init__(
        self, library: str, package: Path = ROOT, module: str = "benchmarks.worker"
    ) -> None:
        """``package`` is the folder that llmcy is imported from, ``module`` what is run."""
        environ = {name: value for name, value in os.environ.items() if name not in FORCED}
        path = [str(package), str(ROOT), environ.get("PYTHONPATH", "")]
        environ["PYTHONPATH"] = os.pathsep.join(path)
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, library],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
            cwd=package,
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
        for end in (self.process.stdin, self.process.stdout):
            assert end is not None
            end.close()
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
    """Samples of every entry in seconds a call, taken in turns: by the clock, and of the processor.

    Where one thread works, processor time says how fast a side is even while other programs run.
    """

    samples: dict[str, tuple[float, ...]]
    busy: dict[str, tuple[float, ...]]

    def __add__(self, other: Paired) -> Paired:
        """The samples of both, of the same entries."""
        return Paired(
            {entry: taken + other.samples[entry] for entry, taken in self.samples.items()},
            {entry: taken + other.busy[entry] for entry, taken in self.busy.items()},
        )

    def median(self, entry: str, *, busy: bool = False) -> float:
        return median((self.busy if busy else self.samples)[entry])

    def best(self, entry: str, *, busy: bool = False) -> float:
        return min((self.busy if busy else self.samples)[entry])

    def ratio(self, entry: str, over: str = "llmcy", *, busy: bool = False) -> float:
        """How many times as fast ``over`` is as ``entry``, by medians."""
        return self.median(entry, busy=busy) / self.median(over, busy=busy)


def measure(
    opened: Mapping[str, Side], kind: str, name: str, dtype: str, threads: int, rounds: int
) -> Paired:
    """The same subject on every side; their results must agree.

    Raises
    ------
    AssertionError
        Two sides computed different things.
    """
    request = {"kind": kind, "name": name, "dtype": dtype, "threads": threads}
    answers = {entry: side.ask(build=request) for entry, side in opened.items()}
    results = {entry: answer["result"] for entry, answer in answers.items()}
    check_agreement(results, TOLERANCE[dtype], f"{kind} {name} {dtype}")
    return take_turns(opened, rounds, gap=threads > 1)


def check_agreement(results: Mapping[str, Sequence[float]], tolerance: float, what: str) -> None:
    """Refuse to compare the speed of sides that do not compute the same."""
    (first, wanted), *others = results.items()
    for entry, found in others:
        same = len(found) == len(wanted) and all(
            abs(x - y) <= tolerance * max(1.0, abs(y)) for x, y in zip(found, wanted, strict=True)
        )
        if not same:
            raise AssertionError(f"{what}: {entry} gives {found}, {first} gives {wanted}")


def take_turns(opened: Mapping[str, Side], rounds: int, *, gap: bool) -> Paired:
    """Take ``rounds`` samples of each side's subject in turns, changing who goes first.

    With ``gap`` every turn begins with idleness and a sample that is not kept: threads that still
    spin after the work of one side would take the cores of the next.
    """
    order = list(opened)
    samples: dict[str, list[list[float]]] = {entry: [] for entry in order}
    for _ in range(rounds):
        for entry in order:
            if gap:
                time.sleep(GAP)
                opened[entry].ask(run=1)
            samples[entry] += opened[entry].ask(run=1)
        order.reverse()
    return Paired(
        {entry: tuple(wall for wall, _ in taken) for entry, taken in samples.items()},
        {entry: tuple(busy for _, busy in taken) for entry, taken in samples.items()},
    )
