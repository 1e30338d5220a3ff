"""Speed of the matrix products beside numpy's, in interleaved rounds.

    env -u OPENBLAS_CORETYPE OPENBLAS_NUM_THREADS=1 python benchmarks/matmul.py [--set NAME] ...

Prints, for every case, both rates in GF/s (median of the rounds) and ours / numpy's.  numpy's BLAS
is free to reorder and fuse sums; ours is not.  Compare one thread with one thread: the waiting
threads of two libraries in one process take each other's cores.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

from llmcy import _kernels
from llmcy.kernels import matmul, matmul_d_weight

# operands (N as they are, T stored transposed), m, n, k
LANGUAGE_MODEL = [
    ("NN", 256, 256, 256), ("NN", 512, 512, 512), ("NN", 1024, 1024, 1024),
    ("NN", 2048, 768, 256), ("NN", 2048, 4096, 256), ("NN", 2048, 256, 704),
    ("NT", 2048, 256, 768), ("NT", 2048, 256, 4096), ("NT", 1024, 1024, 1024),
    ("TN", 1024, 1024, 1024), ("TN", 704, 256, 2048), ("TN", 256, 768, 2048),
]  # fmt: skip
SMALL = [(layout, n, n, n) for layout in ("NN", "NT", "TN") for n in (16, 32, 48, 64, 96, 100, 128)]
ROWS = [("NN", 1, 704, 256), ("NN", 1, 4096, 256), ("NT", 1, 4096, 256), ("NN", 4, 704, 256)]
# weight gradients: rows, positions, inputs, outputs (numpy: one flat product of the same size)
WEIGHT = [
    (8, 256, 256, 768), (8, 256, 704, 256), (8, 256, 256, 4096), (8, 64, 256, 768),
    (32, 16, 256, 768), (128, 4, 256, 768), (4, 1024, 256, 768),
]  # fmt: skip
SETS = {"lm": LANGUAGE_MODEL, "small": SMALL, "rows": ROWS, "weight": WEIGHT}

Call = Callable[[], object]


def calls(case: tuple, dtype: str, n_threads: int) -> tuple[Call, Call, float]:
    """Our call, numpy's, and the floating-point operations of either."""
    rng = np.random.default_rng(0)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape).astype(dtype)

    if isinstance(case[0], str):
        layout, m, n, k = case
        ta, tb = (letter == "T" for letter in layout)
        a, b = normal(*((k, m) if ta else (m, k))), normal(*((n, k) if tb else (k, n)))
        out = np.empty((m, n), dtype)
        return (
            lambda: matmul(a, b, transpose_a=ta, transpose_b=tb, out=out, n_threads=n_threads),
            lambda: np.matmul(a.T if ta else a, b.T if tb else b, out=out),
            2.0 * m * n * k,
        )
    rows, positions, n_in, n_out = case
    x, d_y = normal(rows, positions, n_in), normal(rows, positions, n_out)
    out = np.empty((n_in, n_out), dtype)
    return (
        lambda: matmul_d_weight(x, d_y, out=out, n_threads=n_threads),
        lambda: np.matmul(x.reshape(-1, n_in).T, d_y.reshape(-1, n_out), out=out),
        2.0 * rows * positions * n_in * n_out,
    )


def seconds(call: Call, repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - start) / repeats


def compare(case: tuple, dtype: str, rounds: int, n_threads: int) -> float:
    ours, theirs, operations = calls(case, dtype, n_threads)
    repeats = max(1, int(2e8 / max(operations, 2e5)))
    ours(), theirs()  # scratch memory and threads exist from here on
    times = [(seconds(ours, repeats), seconds(theirs, repeats)) for _ in range(rounds)]
    mine, other = (statistics.median(column) for column in zip(*times, strict=True))
    print(
        f"{dtype} {case!s:26} llmcy {operations / mine / 1e9:6.1f} GF/s"
        f"  numpy {operations / other / 1e9:6.1f} GF/s  ratio {other / mine:.2f}",
        flush=True,
    )
    return other / mine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--set", choices=SETS, default="lm")
    parser.add_argument("--dtype", choices=["float64", "float32", "both"], default="both")
    parser.add_argument("--isa", choices=_kernels.available_isas(), default=_kernels.isa())
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    print(f"instruction set {options.isa}; numpy {np.__version__} with {blas['name']}", end=" ")
    print(f"{blas['version']}, OPENBLAS_CORETYPE={os.environ.get('OPENBLAS_CORETYPE', 'unset')}")
    with _kernels.use_isa(options.isa):
        for dtype in ["float64", "float32"] if options.dtype == "both" else [options.dtype]:
            ratios = [
                compare(case, dtype, options.rounds, options.threads) for case in SETS[options.set]
            ]
            print(f"{dtype} geometric mean of the ratios {statistics.geometric_mean(ratios):.3f}")


if __name__ == "__main__":
    main()
