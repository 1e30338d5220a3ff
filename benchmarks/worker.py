"""A process that measures one library: ``python -m benchmarks.worker LIBRARY``.

It reads one JSON request a line and answers each with one JSON line:

``{"build": {"kind": ..., "name": ..., "dtype": ..., "threads": ...}}``
    makes a subject, runs it a few times and finds how often to repeat it in one sample, which takes
    at least ``"shortest"`` seconds if they are given; the answer sums up the result of the first
    call;
``{"run": n}``
    takes n samples; the answer is a list of (seconds by the clock, seconds of processor time), both
    for one call;
``{"facts": true}``
    what library this is.
"""

from __future__ import annotations

import gc
import json
import sys
import time
from typing import Any

from benchmarks.subjects import Subject, build, facts, summary

SHORTEST_SAMPLE = 0.02  # seconds; shorter calls are repeated within one sample


class Worker:
    """The subject at hand and how it is timed."""

    def __init__(self, library: str) -> None:
        self.library = library
        self.subject: Subject | None = None
        self.calls = 1

    def answer(self, request: dict[str, Any]) -> Any:
        if "facts" in request:
            return facts(self.library)
        if "build" in request:
            self.subject = None
            gc.collect()
            self.subject = build(self.library, **request["build"])
            result = summary(self.subject())  # at once: some subjects work in place
            self.warm_up(request.get("shortest", SHORTEST_SAMPLE))
            return {"calls": self.calls, "result": result}
        return [self.sample() for _ in range(request["run"])]

    def warm_up(self, shortest: float) -> None:
        """Run until times settle, and choose the number of calls of a sample."""
        self.calls = 1
        self.sample()
        self.sample()
        while (seconds := self.sample()[0] * self.calls) < shortest:
            self.calls = max(self.calls + 1, int(self.calls * shortest / seconds))

    def sample(self) -> tuple[float, float]:
        assert self.subject is not None
        subject, calls = self.subject, self.calls
        start, busy = time.perf_counter(), time.process_time()
        for _ in range(calls):
            subject()
        return (time.perf_counter() - start) / calls, (time.process_time() - busy) / calls


def main() -> None:
    library = sys.argv[1]
    answers, sys.stdout = sys.stdout, sys.stderr  # nothing but answers goes to the parent
    worker = Worker(library)
    for line in sys.stdin:
        print(json.dumps(worker.answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
