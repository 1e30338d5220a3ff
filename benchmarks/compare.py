"""Our speed beside numpy's and PyTorch's, both in turns within one run.

    python -m benchmarks.compare steps --rounds 7 --json benchmarks/results/steps.json
    python -m benchmarks.compare gemm kernels --threads 1

Every library has a process of its own; results must agree before times count. Figures are medians,
ratios say how many times as fast as the other side we are. ``llmcy bench --compare`` shows two of
the files this writes side by side.
"""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from benchmarks.paired import Paired, Side, measure, sides, take_turns
from llmcy.bench.cases import GEMMS, SCALING, STEPS
from llmcy.bench.kernel_cases import KERNEL_CASES
from llmcy.bench.machine import busy_programs, machine_facts
from llmcy.bench.record import Measurement, write_results

SUITES = ("gemm", "kernels", "steps", "scaling")

# Seconds of a sample where sizes of ours are compared.  Other processes run in between and take the
# caches: in a sample of a single step, a small batch would pay for that and a large one would not.
EVEN_SAMPLE = 0.4


class Comparison:
    """Measures suites, prints each figure as it comes, and keeps all of them."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self.asked = asked
        self.results: list[Measurement] = []
        self.ratios: dict[tuple[str, str, int, str], list[float]] = defaultdict(list)

    def gemm(self) -> None:
        names = [case.name for case in GEMMS]
        self._against("gemm", names, ["numpy", "torch"])

    def kernels(self) -> None:
        self._against("kernel", list(KERNEL_CASES), ["numpy", "torch"])

    def steps(self) -> None:
        self._against("step", [case.name for case in STEPS], self.asked.peers)

    def scaling(self) -> None:
        """Our own step as one size grows, all sizes in turns; then 2 threads beside 1."""
        wanted = re.compile(self.asked.only).search
        chosen = {growing: cases for growing, cases in SCALING.items() if wanted(growing)}
        for dtype in self.asked.dtypes:
            for growing, cases in chosen.items():
                for threads in self.asked.threads:
                    names = [case.name for case in cases]
                    taken = self._own(names, [threads] * len(names), dtype)
                    for case in cases:
                        seconds = self._time(taken, case.name, threads)
                        self._keep(f"scaling with {growing}", case.name, dtype, threads, taken)
                        print(
                            f"scaling {case.name:14} {dtype} {threads} threads "
                            f"{seconds * 1e3:9.2f} ms, {seconds / case.tokens * 1e6:7.3f} us a "
                            f"token, {case.flops / seconds / 1e9:6.1f} GFLOP/s",
                            flush=True,
                        )
            for case in STEPS if wanted("threads") else ():
                names = [f"{case.name} {threads}" for threads in (1, 2)]
                taken = self._own([case.name] * 2, [1, 2], dtype, names)
                for threads, name in zip((1, 2), names, strict=True):
                    self._keep("scaling with threads", case.name, dtype, threads, taken, name)
                print(
                    f"scaling {case.name} {dtype}: 2 threads are "
                    f"{taken.ratio(names[0], names[1]):.3f} times as fast as 1",
                    flush=True,
                )

    # ------------------------------------------------------------------ one figure
    def _against(self, kind: str, names: Sequence[str], peers: Sequence[str]) -> None:
        chosen = [
            (name, dtype, threads)
            for name in filter(re.compile(self.asked.only).search, names)
            for dtype in self.asked.dtypes
            for threads in self.asked.threads
        ]
        taken: dict[tuple[str, str, int], Paired] = {}
        for left in reversed(range(self.asked.processes)):
            with sides(["llmcy", *peers]) as opened:
                for case in chosen:
                    more = measure(opened, kind, *case, self.asked.rounds)
                    taken[case] = taken[case] + more if case in taken else more
                    if left == 0:
                        self._show(kind, *case, taken[case])

    def _own(
        self,
        cases: Sequence[str],
        threads: Sequence[int],
        dtype: str,
        names: Sequence[str] | None = None,
    ) -> Paired:
        """Several training steps of ours, each in a process of its own."""
        entries: dict[str, Side] = {}
        try:
            for name, case, count in zip(names or cases, cases, threads, strict=True):
                entries[name] = Side("llmcy")
                request = {"kind": "step", "name": case, "dtype": dtype, "threads": count}
                entries[name].ask(build=request, shortest=EVEN_SAMPLE)
            return take_turns(entries, self.asked.rounds, gap=max(threads) > 1)
        finally:
            for side in entries.values():
                side.close()

    def _time(self, taken: Paired, entry: str, threads: int) -> float:
        return taken.median(entry, busy=self.asked.processor_time and threads == 1)

    def _show(self, kind: str, name: str, dtype: str, threads: int, taken: Paired) -> None:
        ours = self._time(taken, "llmcy", threads)
        told = []
        for side in taken.samples:
            self._keep(kind, name, dtype, threads, taken, side, side)
            if side != "llmcy":
                ratio = self._time(taken, side, threads) / ours
                self.ratios[kind, dtype, threads, side].append(ratio)
                told.append(f"{side} {_milliseconds(ratio * ours)} {ratio:6.2f}x")
        print(
            f"{kind} {name:24} {dtype} {threads} threads  llmcy {_milliseconds(ours)}  "
            + "  ".join(told),
            flush=True,
        )

    def _keep(
        self,
        group: str,
        case: str,
        dtype: str,
        threads: int,
        taken: Paired,
        entry: str | None = None,
        side: str = "llmcy",
    ) -> None:
        entry = case if entry is None else entry
        busy = self.asked.processor_time and threads == 1
        self.results.append(
            Measurement(
                group,
                case,
                side,
                dtype,
                threads,
                taken.median(entry, busy=busy),
                best=taken.best(entry, busy=busy),
                facts={"samples": len(taken.samples[entry])},
            )
        )

    def summary(self) -> Iterator[str]:
        """The range of each ratio."""
        for (kind, dtype, threads, side), found in sorted(self.ratios.items()):
            yield (
                f"{kind} {dtype} {threads} threads against {side}: median {median(found):.2f}x, "
                f"from {min(found):.2f}x to {max(found):.2f}x, {len(found)} cases"
            )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:10.4f} ms"


def positive(text: str) -> int:
    """A number of rounds or processes: none would be a comparison of nothing."""
    number = int(text)
    if number < 1:
        raise ValueError(text)
    return number


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="+", choices=SUITES)
    only = "cases whose name matches this expression; of scaling, what grows"
    parser.add_argument("--only", default="", help=only)
    parser.add_argument("--dtypes", nargs="*", default=["float32", "float64"])
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--peers", nargs="*", default=["torch"], help="of training steps")
    parser.add_argument("--rounds", type=positive, default=7)
    processes = "so many of each side one after the other, each with all its rounds; not of scaling"
    parser.add_argument("--processes", type=positive, default=1, help=processes)
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="one thread: count processor time, which does not see other programs",
    )
    parser.add_argument("--json", type=Path, help="keep the figures in this file")
    asked = parser.parse_args()
    comparison = Comparison(asked)
    machine = machine_facts()
    libraries = ["numpy"] if {"gemm", "kernels"} & set(asked.suites) else []
    with sides([*libraries, "torch"] if asked.peers else libraries) as opened:
        for library, side in opened.items():
            machine[library] = side.ask(facts=True)
    machine["one thread"] = "processor time" if asked.processor_time else "clock"
    for name, value in machine.items():
        print(f"{name}: {value}")
    for suite in asked.suites:
        getattr(comparison, suite)()
    machine["load after"] = round(busy_programs(), 2)
    print(*comparison.summary(), sep="\n")
    if asked.json:
        write_results(asked.json, machine, comparison.results)


if __name__ == "__main__":
    main()
