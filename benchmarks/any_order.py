"""What the contract's order costs: our kernels beside the same kernels built to sum in any order.

    python -m benchmarks.any_order --models 3.3M 28M

The other build (``LLMCY_ANY_ORDER`` in setup.py, under build/any_order) lets the compiler reorder
and fuse: products fused into sums in float64 too, row sums as partial sums along the row, weight
gradients as one product over all tokens instead of sums of sums, chains split wherever the compiler
likes. Exponentials stay the exact ones: they are a matter of rounding, not of order.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from benchmarks.paired import ROOT, Side, measure
from llmcy import isa
from llmcy.bench.cases import STEPS
from llmcy.bench.machine import machine_facts
from llmcy.bench.record import Measurement, write_results

BASE = ROOT / "build" / "any_order"


def build() -> Path:
    """Build beside the package; the folder that holds the other llmcy."""
    command = [sys.executable, "setup.py", "-q", "build", "--build-base", str(BASE)]
    environ = os.environ | {"LLMCY_ANY_ORDER": isa()}
    subprocess.run(command, cwd=ROOT, env=environ, check=True)
    (folder,) = BASE.glob("lib*")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", default=[case.name for case in STEPS])
    parser.add_argument("--dtypes", nargs="*", default=["float32", "float64"])
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--processor-time", action="store_true", help="for one thread")
    parser.add_argument("--json", type=Path, help="keep the figures in this file")
    asked = parser.parse_args()
    folder = build()
    results = []
    opened = {"llmcy": Side("llmcy"), "any order": Side("llmcy", folder)}
    try:
        for name in asked.models:
            for dtype in asked.dtypes:
                for threads in asked.threads:
                    taken = measure(opened, "step", name, dtype, threads, asked.rounds)
                    busy = asked.processor_time and threads == 1
                    for side in opened:
                        value = taken.median(side, busy=busy)
                        best = taken.best(side, busy=busy)
                        results.append(
                            Measurement("order", name, side, dtype, threads, value, best=best)
                        )
                    slower = 1.0 / taken.ratio("any order", busy=busy) - 1.0
                    print(
                        f"{name:8} {dtype} {threads} threads: "
                        f"{taken.median('llmcy', busy=busy) * 1e3:.3f} ms in order, "
                        f"{taken.median('any order', busy=busy) * 1e3:.3f} ms in any: "
                        f"the order costs {slower:+.1%}",
                        flush=True,
                    )
    finally:
        for side in opened.values():
            side.close()
    if asked.json:
        write_results(asked.json, machine_facts(), results)


if __name__ == "__main__":
    main()
