"""Our training step beside PyTorch's: ``python -m benchmarks.step_ratio [--models 3.3M] ...``."""

from __future__ import annotations

import argparse

from benchmarks.paired import measure, sides
from llmcy.bench.cases import STEPS, step_case


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="*", default=[case.name for case in STEPS])
    parser.add_argument("--dtypes", nargs="*", default=["float32", "float64"])
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--peers", nargs="*", default=["torch"])
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    print(f"{'model':8} {'dtype':8} {'threads':>7}  ms a step: llmcy", *asked.peers, " ratio")
    for name in asked.models:
        for dtype in asked.dtypes:
            with sides(["llmcy", *asked.peers]) as opened:
                for threads in asked.threads:
                    taken = measure(opened, "step", name, dtype, threads, asked.rounds)
                    times = "  ".join(
                        f"{taken.median(side) * 1e3:9.3f} (best {taken.best(side) * 1e3:.3f})"
                        for side in opened
                    )
                    ratios = "  ".join(f"{taken.ratio(peer):6.2f}x" for peer in asked.peers)
                    if threads == 1:
                        busy = [taken.ratio(peer, busy=True) for peer in asked.peers]
                        ratios += "  by CPU time " + " ".join(f"{r:.2f}x" for r in busy)
                    rate = step_case(name).flops / taken.median("llmcy") / 1e9
                    print(
                        f"{name:8} {dtype:8} {threads:7}  {times}  {ratios}  {rate:.0f} GFLOP/s",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
