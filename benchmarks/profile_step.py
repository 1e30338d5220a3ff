"""Where a training step of ours spends its time: ``python -m benchmarks.profile_step 3.3M``.

Every compiled function is wrapped by a clock, so what is left over is Python: the tape, the
checks in front of the kernels, the optimizer's bookkeeping. The clock itself costs about 0.2 us a
call and is counted as Python.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from llmcy import _kernels, set_num_threads
from llmcy._kernels import front
from llmcy.bench.cases import step_case
from llmcy.bench.step import TrainingStep

Times = dict[str, list[float]]
Clock = Callable[[], float]


class TimedModule:
    """A compiled module whose functions add up their time under a label."""

    def __init__(self, module: ModuleType, times: Times, clock: Clock) -> None:
        self._module = module
        self._times = times
        self._clock = clock

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._module, name)
        if not callable(function):
            return function
        timed = self._timed(f"{self._module.__name__.rpartition('.')[2]}.{name}", function)
        setattr(self, name, timed)
        return timed

    def _timed(self, label: str, function: Callable[..., Any]) -> Callable[..., Any]:
        times = self._times

        def call(*arguments: Any) -> Any:
            start = self._clock()
            result = function(*arguments)
            times[label_of(label, arguments)].append(self._clock() - start)
            return result

        return call


def label_of(label: str, arguments: tuple[Any, ...]) -> str:
    """Matrix products are told apart by their operand form."""
    if label == "matmul.matmul":
        transpose_a, transpose_b = arguments[7], arguments[8]
        return f"{label} {'t' if transpose_a else 'n'}{'t' if transpose_b else 'n'}"
    return label


class TimedSet:
    """A kernel set that hands out timed modules."""

    def __init__(self, kernels: Any, times: Times, clock: Clock) -> None:
        self._kernels = kernels
        self._times = times
        self._clock = clock

    def __getattr__(self, name: str) -> TimedModule:
        module = TimedModule(getattr(self._kernels, name), self._times, self._clock)
        setattr(self, name, module)
        return module


@contextmanager
def timed_kernels(clock: Clock) -> Iterator[Times]:
    """Clocks around every compiled function of both scalar types, inside the block."""
    times: Times = defaultdict(list)
    active = _kernels.active
    before = active.f64, active.f32
    front.close(True)  # take the long way, which a clock can see
    active.f64 = TimedSet(active.f64, times, clock)
    active.f32 = TimedSet(active.f32, times, clock)
    try:
        yield times
    finally:
        active.f64, active.f32 = before
        front.close(False)


def profile(name: str, dtype: str, threads: int, steps: int) -> None:
    """Print a table of kernels, most expensive first."""
    set_num_threads(threads)
    case = step_case(name)
    step = TrainingStep(case, dtype, recorded=False)  # calls the clocks can see
    step()
    step()
    # one thread's processor time does not see other programs
    clock = time.thread_time if threads == 1 else time.perf_counter
    with timed_kernels(clock) as times:
        step()
        times.clear()
        start = clock()
        for _ in range(steps):
            step()
        total = (clock() - start) / steps
    print(f"{name} {dtype}, {threads} threads, {total * 1e3:.2f} ms a step, {_kernels.isa()}")
    print(f"  {'kernel':34} {'ms':>9} {'share':>7} {'calls':>6}")
    rows = sorted(((sum(t) / steps, label, len(t) // steps) for label, t in times.items()))
    python = total - sum(row[0] for row in rows)
    for seconds, label, calls in [*reversed(rows), (python, "Python and everything else", 1)]:
        print(f"  {label:34} {seconds * 1e3:9.3f} {seconds / total:7.1%} {calls:6}")
    print(f"  {case.flops / total / 1e9:.1f} GFLOP/s of products and attention\n", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=["3.3M", "28M"])
    parser.add_argument("--dtypes", nargs="*", default=["float32", "float64"])
    parser.add_argument("--threads", nargs="*", type=int, default=[1])
    parser.add_argument("--steps", type=int, default=3)
    asked = parser.parse_args()
    for name in asked.models:
        for dtype in asked.dtypes:
            for threads in asked.threads:
                profile(name, dtype, threads, asked.steps)


if __name__ == "__main__":
    main()
