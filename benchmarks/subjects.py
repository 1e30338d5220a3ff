"""What each library is asked to do: a subject is a function without arguments that is timed.

``build(library, kind, name, dtype, threads)`` makes one. Every library is imported only in the
process that measures it: thread pools of several libraries in one process take each other's cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np

from llmcy.bench.cases import MEDIUM, GemmCase, StepCase, gemm_case, step_case
from llmcy.bench.kernel_cases import KERNEL_CASES, Draw

Subject = Callable[[], Any]


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
    """The subject ``name`` of a ``kind`` ("gemm", "kernel", "step"), done by ``library``."""
    set_threads(library, threads)
    if kind == "gemm":
        return gemm(library, gemm_case(name), dtype)
    if kind == "kernel":
        return kernel(library, name, MEDIUM, dtype)
    if kind == "step":
        return step(library, step_case(name), dtype)
    raise ValueError(f"no subjects of kind {kind!r}")


def numbers(result: Any) -> list[np.ndarray]:
    """What a subject returned, as float64 arrays."""
    if hasattr(result, "_fields") and "problem" in result._fields:  # of AdamW: the values alone
        result = result[:3]
    if isinstance(result, tuple):
        return [array for part in result for array in numbers(part)]
    if hasattr(result, "detach"):
        result = result.detach().numpy()
    return [np.asarray(result, np.float64)]


def summary(result: Any) -> list[float]:
    """A few figures of a result by which two libraries are compared: size, norm, a weighted sum.

    The weighted sum sees the order of elements, and is given a scale in common with the norm.
    """
    found: list[float] = []
    for array in numbers(result):
        flat = array.reshape(-1)
        weights = np.random.default_rng(1).standard_normal(flat.size)
        norm = float(np.linalg.norm(flat))
        found += [flat.size, norm, float(weights @ flat) / (norm or 1.0)]
    return found


# ---- matrix products ---------------------------------------------------------------------------
def operands(case: GemmCase, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    draw = Draw(dtype)
    lead = () if case.batch == 1 and case.form != "dw" else (case.batch,)
    a = (case.k, case.m) if case.form in ("tn", "dw") else (case.m, case.k)
    b = (case.n, case.k) if case.form == "nt" else (case.k, case.n)
    return draw(*lead, *a), draw(*lead, *b)


def gemm(library: str, case: GemmCase, dtype: str) -> Subject:
    """Results go to an array that is there already, wherever a library can do that."""
    a, b = operands(case, dtype)
    if library == "llmcy":
        from llmcy import kernels

        if case.form == "dw":
            into = np.empty((case.m, case.n), dtype)
            return lambda: kernels.matmul_d_weight(a, b, out=into)
        out = np.empty((*a.shape[:-2], case.m, case.n), dtype)
        ta, tb = case.form == "tn", case.form == "nt"
        return lambda: kernels.matmul(a, b, transpose_a=ta, transpose_b=tb, out=out)
    if case.form == "dw":  # the peers may add in any order: one product over all tokens
        a, b = a.reshape(-1, case.m), b.reshape(-1, case.n)
    left = a.swapaxes(-1, -2) if case.form in ("tn", "dw") else a
    right = b.swapaxes(-1, -2) if case.form == "nt" else b
    out = np.empty((*left.shape[:-1], case.n), dtype)
    if library == "numpy":
        return lambda: np.matmul(left, right, out=out)
    import torch

    tensors = torch.from_numpy(a), torch.from_numpy(b), torch.from_numpy(out)
    t_left = tensors[0].mT if case.form in ("tn", "dw") else tensors[0]
    t_right = tensors[1].mT if case.form == "nt" else tensors[1]
    return lambda: torch.matmul(t_left, t_right, out=tensors[2])


# ---- single kernels ----------------------------------------------------------------------------
def kernel(library: str, name: str, case: StepCase, dtype: str) -> Subject:
    """A kernel on the sizes of one decoder; every library gets the same numbers."""
    mine = KERNEL_CASES[name]
    given = mine.inputs(case, Draw(dtype))
    if library == "llmcy":
        return lambda: mine.call(case, given)
    if library == "numpy":
        from benchmarks.numpy_kernels import NUMPY_KERNELS

        call = NUMPY_KERNELS[name]
        return lambda: call(case, given)
    from benchmarks.torch_kernels import TORCH_KERNELS

    return TORCH_KERNELS[name](case, given)


# ---- training ----------------------------------------------------------------------------------
def step(library: str, case: StepCase, dtype: str) -> Subject:
    """A training step: the same initial values, batch, AdamW and clipping for each library."""
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
        from threadpoolctl import threadpool_info

        blas = [pool for pool in threadpool_info() if pool["user_api"] == "blas"]
        kernels = [f"{p['internal_api']} {p['version']} {p.get('architecture')}" for p in blas]
        forced = sorted(name for name in os.environ if name.startswith("OPENBLAS_"))
        return {"version": np.__version__, "blas": kernels, "forced": forced}
    import torch

    return {"version": torch.__version__, "capability": torch.backends.cpu.get_cpu_capability()}
