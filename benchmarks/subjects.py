"""What each library is asked to do: a subject is a function without arguments that is timed.

``build(library, kind, name, dtype, threads)`` makes one. Every library is imported only in the
process that measures it: thread pools of several libraries in one process take each other's cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from llmcy.bench.cases import StepCase, step_case

Subject = Callable[[], Any]
LIBRARIES = ("llmcy", "numpy", "torch", "torch.compile")


def set_threads(library: str, threads: int) -> None:
    """Tell a library how many threads to use."""
    if library == "llmcy":
        from llmcy import set_num_threads

        set_num_threads(threads)
    elif library == "numpy":
        from threadpoolctl import threadpool_limits

        threadpool_limits(threads, user_api="blas")
    else:
        import torch

        torch.set_num_threads(threads)


def build(library: str, kind: str, name: str, dtype: str, threads: int) -> Subject:
    """The subject ``name`` of a ``kind`` ("step"), done by ``library``."""
    set_threads(library, threads)
    if kind == "step":
        return step(library, step_case(name), dtype)
    raise ValueError(f"no subjects of kind {kind!r}")


def step(library: str, case: StepCase, dtype: str) -> Subject:
    """A training step: same architecture, batch shape, AdamW and clipping for each library."""
    if library == "llmcy":
        from llmcy.bench.step import TrainingStep

        return TrainingStep(case, dtype)
    if library == "torch" or library == "torch.compile":
        from benchmarks.torch_peer import TorchStep

        return TorchStep(case, dtype, compiled=library == "torch.compile")
    raise ValueError(f"{library} has no training step")


def facts(library: str) -> dict[str, Any]:
    """Version of a library, and which code it has chosen for this processor."""
    if library == "llmcy":
        import llmcy
        from llmcy import _kernels

        return {"version": llmcy.__version__, "isa": _kernels.isa()}
    if library == "numpy":
        import numpy
        from threadpoolctl import threadpool_info

        blas = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
        kernel = [f"{p['internal_api']} {p['version']} {p.get('architecture')}" for p in blas]
        forced = sorted(name for name in os.environ if name.startswith("OPENBLAS_"))
        return {"version": numpy.__version__, "blas": kernel, "forced": forced}
    import torch

    return {"version": torch.__version__, "capability": torch.backends.cpu.get_cpu_capability()}
