"""Matrix products of a decoder, in every operand form, and squares: ours, numpy's and PyTorch's."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.subjects import operands
from llmcy.bench.cases import GEMMS, GemmCase

LIBRARIES = ("llmcy", "numpy", "torch")
TOLERANCE = {"float64": 1e-12, "float32": 3e-6}  # of sums of up to 4096 products, relative to them


def expected(case: GemmCase, dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """The result in float64 by numpy, and the same of absolute values: a bound for its error."""
    a, b = (array.astype(np.float64) for array in operands(case, dtype))
    a = a.swapaxes(-1, -2) if case.form in ("tn", "dw") else a
    b = b.swapaxes(-1, -2) if case.form == "nt" else b
    exact, size = a @ b, np.abs(a) @ np.abs(b)
    if case.form == "dw":
        exact, size = exact.sum(axis=0), size.sum(axis=0)
    return exact, size


@pytest.mark.parametrize("library", LIBRARIES)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", GEMMS, ids=lambda case: case.name.replace(" ", "-"))
def test_matrix_product(timed, case: GemmCase, dtype: str, threads: int, library: str) -> None:
    (found,) = timed(library, "gemm", case.name, dtype, threads)
    wanted, size = expected(case, dtype)
    assert (np.abs(found - wanted) <= TOLERANCE[dtype] * size).all()
