"""Instructions of kernels and of a training step, counted by callgrind: free of noise.

    python -m benchmarks.callgrind                          # counts, beside the kept ones
    python -m benchmarks.callgrind --isa sse2 --keep        # counts become the kept ones

The same build counts the same instructions to a few parts in ten thousand, whatever else the
machine does, so a change of more than two per cent is a change of the code; the exit status is then
1. More instructions are not always more time, but a kernel that got them without a reason is worth
a look. Counts belong to a compiler and a Python version: the kept file names them. valgrind knows
no AVX-512, so the AVX2 and SSE2 builds are counted.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import re
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable
from pathlib import Path

from llmcy.bench.cases import FIXTURE, StepCase
from llmcy.bench.kernel_cases import KERNEL_CASES, Draw
from llmcy.bench.machine import machine_facts
from llmcy.bench.record import Measurement, compare, read_results, write_results
from llmcy.bench.step import TrainingStep

ROOT = Path(__file__).parent.parent
KEPT = Path(__file__).parent / "results" / "instructions.json"
LIMIT = 0.02  # relative change worth an exit status
TINY = StepCase("tiny", 96, 64, 4, 2, 176, 48, 2)  # valgrind is some fifty times slower
REPEATS = 3
DTYPES = ("float32", "float64")


def subjects() -> list[tuple[str, str, Callable[[], object]]]:
    """(name, dtype, call): every kernel on the sizes of ``TINY``, two training steps."""
    found: list[tuple[str, str, Callable[[], object]]] = []
    for dtype in DTYPES:
        for name, case in KERNEL_CASES.items():
            given = case.inputs(TINY, Draw(dtype))
            found.append((name, dtype, lambda case=case, given=given: case.call(TINY, given)))
        for step in (FIXTURE, TINY):
            found.append((f"step {step.name}", dtype, TrainingStep(step, dtype)))
    return found


def run_subjects() -> None:
    """What valgrind runs: callgrind writes a dump whenever getppid is entered."""
    calls = subjects()
    for _, _, call in calls:  # memory, recorded steps, lazy imports
        for _ in range(3):
            call()
    gc.collect()
    gc.disable()
    for _, _, call in calls:
        os.getppid()
        for _ in range(REPEATS):
            call()
        os.getppid()


def count(isa: str) -> list[Measurement]:
    """Run this module under callgrind and read the dumps between the marks."""
    environ = os.environ | {
        "LLMCY_ISA": isa,
        "LLMCY_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "counts"
        command = [
            "valgrind",
            "--tool=callgrind",
            f"--callgrind-out-file={out}",
            "--dump-before=getppid",
            sys.executable,
            "-m",
            "benchmarks.callgrind",
            "--child",
        ]
        done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"valgrind failed:\n{done.stderr[-2000:]}")
        results = []
        for index, (name, dtype, _) in enumerate(subjects()):
            # dump 1 ends before the first subject; then a subject and what lies between take turns
            text = Path(f"{out}.{2 * index + 2}").read_text()
            total = re.search(r"^totals: (\d+)", text, re.MULTILINE)
            assert total is not None
            value = int(total[1]) / REPEATS
            results.append(
                Measurement(f"instructions {isa}", name, "llmcy", dtype, 1, value, "instructions")
            )
        return results


def build_facts() -> dict[str, object]:
    """What the counts depend on besides the source."""
    facts = machine_facts()
    compiler = (os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc").split()[-1]
    version = subprocess.run([compiler, "-dumpfullversion"], capture_output=True, text=True)
    return {
        "python": platform.python_version(),
        "numpy": facts["numpy"],
        "compiler": f"{compiler} {version.stdout.strip()}",
        "repeats": REPEATS,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--isa", nargs="*", default=["avx2", "sse2"])
    parser.add_argument("--against", type=Path, default=KEPT, help="a file of kept counts")
    parser.add_argument("--keep", action="store_true", help=f"write the counts to {KEPT.name}")
    parser.add_argument("--json", type=Path, help="write the counts to this file")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.child:
        run_subjects()
        return
    results = [result for isa in asked.isa for result in count(isa)]
    facts = build_facts()
    kept: dict[tuple[str, str, str, str, int], float] = {}
    if asked.against.exists():
        old_facts, old = read_results(asked.against)
        for name, value in facts.items():
            if old_facts.get(name) != value:
                print(f"note: kept counts are of {name} {old_facts.get(name)}, these of {value}")
        kept = {change.new.key: change.ratio - 1.0 for change in compare(old, results)}
    changed = 0
    for result in results:
        change = kept.get(result.key)
        told = "" if change is None else f"{change:+8.2%}"
        if change is not None and abs(change) > LIMIT:
            told += "  CHANGED"
            changed += 1
        counted = f"{result.group:18} {result.case:26} {result.dtype} {result.value:14,.0f}"
        print(f"{counted} {told}".rstrip())
    for target in (asked.json, KEPT if asked.keep else None):
        if target is not None:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_results(target, facts, results)
    print(f"{changed} counts changed by more than {LIMIT:.0%}")
    sys.exit(1 if changed and not asked.keep else 0)


if __name__ == "__main__":
    main()
