"""Taking times: warm-up, several samples, their median."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

__all__ = ["BUSY", "WALL", "Clock", "Timing", "time_call"]

SHORTEST_SAMPLE = 0.01  # seconds; shorter calls are repeated within a sample
LONGEST = 4.0  # seconds for all samples together, as far as three of them allow


@dataclass(frozen=True)
class Timing:
    """Seconds a call, one number for each sample."""

    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.samples)

    @property
    def best(self) -> float:
        return min(self.samples)


Clock = Callable[[], float]
WALL: Clock = time.perf_counter
BUSY: Clock = time.process_time  # of all threads: for calls on one thread beside other programs


def time_call(call: Callable[[], object], samples: int = 7, clock: Clock = WALL) -> Timing:
    """Time ``call`` after warming it up; long calls get fewer samples, at least three."""
    calls = 1
    _sample(call, calls, clock)
    while (seconds := _sample(call, calls, clock) * calls) < SHORTEST_SAMPLE:
        calls = max(calls + 1, int(calls * SHORTEST_SAMPLE / max(seconds, 1e-7)))
    samples = min(samples, max(3, int(LONGEST / seconds)))
    return Timing(tuple(_sample(call, calls, clock) for _ in range(samples)))


def _sample(call: Callable[[], object], calls: int, clock: Clock) -> float:
    start = clock()
    for _ in range(calls):
        call()
    return (clock() - start) / calls
