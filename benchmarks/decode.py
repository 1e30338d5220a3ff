"""Decoding at batch 1 beside a plain read of the weights, transformers and llama.cpp.

    python -m benchmarks.decode [--models 28M] [--dtypes float32] [--threads 1 2] [--json FILE]

Each in a process of its own, by turns within one run; medians of bursts of 64 tokens behind a
prompt of 32.  In float32 all three must choose the same tokens of the same exported model.  Whoever
is not installed (``pip install torch transformers gguf xllamacpp``) is left out.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks.decoding import config_of, export
from benchmarks.paired import GAP, Side
from llmcy.bench.cases import LARGE, MEDIUM, SMALL

NEEDS: dict[str, tuple[str, ...]] = {
    "read": (),
    "llmcy": (),
    "transformers": ("torch", "transformers"),
    "llama.cpp": ("xllamacpp", "gguf"),
}


def installed(library: str) -> bool:
    return all(importlib.util.find_spec(package) for package in NEEDS[library])


def measure(
    libraries: list[str], name: str, dtype: str, threads: int, rounds: int, folder: Path
) -> dict[str, list[float]]:
    """Seconds a token of every library's bursts.

    Raises
    ------
    AssertionError
        Two libraries chose different tokens.
    """
    with ExitStack() as stack:
        opened = {}
        for library in libraries:
            side = opened[library] = Side(library, module="benchmarks.decode_worker")
            stack.callback(side.close)
        request = {"name": name, "dtype": dtype, "threads": threads, "folder": str(folder)}
        chosen = {library: side.ask(build=request) for library, side in opened.items()}
        for library, tokens in chosen.items():
            if library != "read" and tokens != chosen["llmcy"]:
                pairs = zip(tokens, chosen["llmcy"], strict=True)
                at = next(i for i, (theirs, ours) in enumerate(pairs) if theirs != ours)
                raise AssertionError(f"{name}: {library} chooses another token at {at}")
        taken: dict[str, list[float]] = {library: [] for library in libraries}
        order = list(libraries)
        for _ in range(rounds):
            for library in order:
                if threads > 1:  # threads that still spin would take the cores of the next
                    time.sleep(GAP)
                taken[library] += opened[library].ask(run=1)
            order.reverse()
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--models", nargs="*", default=[SMALL.name, MEDIUM.name, LARGE.name])
    parser.add_argument("--dtypes", nargs="*", default=["float32", "float64"])
    parser.add_argument("--threads", nargs="*", type=int, default=[1, 2])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    print(f"{'model':6} {'dtype':8} {'threads':>7} | tokens/s | times as fast as each other")
    lines: list[dict[str, Any]] = []
    for name in asked.models:
        with tempfile.TemporaryDirectory() as made:
            folder = Path(made)
            export(name, folder)
            for dtype in asked.dtypes:
                libraries = [
                    library
                    for library in NEEDS
                    if installed(library) and (dtype == "float32" or not NEEDS[library])
                ]
                for threads in asked.threads:
                    taken = measure(libraries, name, dtype, threads, asked.rounds, folder)
                    found = {library: median(times) for library, times in taken.items()}
                    shapes = config_of(name, dtype).parameter_shapes().values()
                    size = sum(int(np.prod(s)) for s in shapes) * np.dtype(dtype).itemsize
                    rates = "  ".join(f"{library} {1 / t:8.1f}" for library, t in found.items())
                    ratios = "  ".join(
                        f"{found[library] / found['llmcy']:.2f} {library}"
                        for library in libraries
                        if library != "llmcy"
                    )
                    print(
                        f"{name:6} {dtype:8} {threads:7} | {rates} | {ratios}"
                        f" | read {size / found['read'] / 1e9:.0f} GB/s",
                        flush=True,
                    )
                    facts = {"model": name, "dtype": dtype, "threads": threads}
                    lines.append({**facts, "seconds": taken})
    if asked.json is not None:
        asked.json.write_text(json.dumps(lines, indent=1) + "\n")


if __name__ == "__main__":
    main()
