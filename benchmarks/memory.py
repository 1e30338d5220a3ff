"""Peak memory of training steps in a process of its own.

    python -m benchmarks.memory torch 3.3M float32

Counted is the high-water mark of resident memory after three steps, less what was resident when the
library was loaded and had done a step of the smallest model. So parameters, moments, gradients,
activations and whatever a library keeps for later are in it, its code is not.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
STEPS = 3


def resident(mark: str) -> int:
    """Bytes of ``VmHWM`` (high-water mark) or ``VmRSS`` (now).

    getrusage's ru_maxrss would also count what the parent had before this process began.
    """
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(mark + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"this system does not tell {mark}")


def peak_of(library: str, name: str, dtype: str, threads: int) -> int:
    """Run in a fresh process: bytes that training takes on top of the loaded library."""
    from benchmarks.subjects import set_threads, step
    from llmcy.bench.cases import FIXTURE, step_case

    set_threads(library, threads)
    step(library, FIXTURE, dtype)()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the mark starts again from what is in use
    before = resident("VmRSS")
    subject = step(library, step_case(name), dtype)
    for _ in range(STEPS):
        subject()
    return resident("VmHWM") - before


def measure_peak(library: str, name: str, dtype: str, threads: int = 1) -> int:
    """Bytes, measured in a child process."""
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "benchmarks.memory", library, name, dtype, str(threads)]
    environ = os.environ | {"PYTHONPATH": path}
    output = subprocess.run(
        command, cwd=ROOT, env=environ, check=True, capture_output=True, text=True
    )
    return int(output.stdout.split()[0])


def main() -> None:
    library, name = sys.argv[1:3]
    dtype = sys.argv[3] if len(sys.argv) > 3 else "float32"
    threads = int(sys.argv[4]) if len(sys.argv) > 4 else 1
    size = peak_of(library, name, dtype, threads)
    print(size, f"bytes: {library}, {name}, {dtype}, {threads} threads")


if __name__ == "__main__":
    main()
