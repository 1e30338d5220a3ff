"""A process that decodes with one library: ``python -m benchmarks.decode_worker LIBRARY``.

It reads one JSON request a line and answers each with one JSON line:

``{"build": {"name": ..., "dtype": ..., "threads": ..., "folder": ...}}``
    makes a model; the answer is the tokens of a first burst;
``{"run": n}``
    n times: bursts for a while, the first of which finds caches and threads as others left them and
    does not count; the answer is a list of the medians, seconds a token.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.decoding import BURSTS, Burst

SHORTEST_TURN = 0.1  # seconds


class Worker:
    """The burst at hand."""

    def __init__(self, library: str) -> None:
        self.library = library
        self.burst: Burst | None = None

    def answer(self, request: dict[str, Any]) -> Any:
        if "build" in request:
            asked = request["build"]
            self.burst = None
            self.burst = BURSTS[self.library](
                asked["name"], asked["dtype"], asked["threads"], Path(asked["folder"])
            )
            return self.burst()[1]
        assert self.burst is not None
        return [self.turn() for _ in range(request["run"])]

    def turn(self) -> float:
        assert self.burst is not None
        self.burst()
        begun, taken = time.perf_counter(), []
        while not taken or time.perf_counter() - begun < SHORTEST_TURN:
            taken.append(self.burst()[0])
        return median(taken)


def main() -> None:
    library = sys.argv[1]
    answers = os.fdopen(os.dup(1), "w")  # nothing but answers goes to the parent
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    worker = Worker(library)
    for line in sys.stdin:
        print(json.dumps(worker.answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
