from typing import Any

from numpy.typing import NDArray

entry: object

def matmul(
    a: NDArray[Any],
    b: NDArray[Any],
    out: NDArray[Any],
    batch: int,
    m: int,
    n: int,
    k: int,
    transpose_a: bool,
    transpose_b: bool,
    shared_b: bool,
    n_threads: int,
    ahead: NDArray[Any] | None = None,
) -> None: ...
def matmul_d_weight(
    x: NDArray[Any],
    d_y: NDArray[Any],
    out: NDArray[Any],
    B: int,
    T: int,
    n_in: int,
    n_out: int,
    accumulate: bool,
    n_threads: int,
) -> None: ...
