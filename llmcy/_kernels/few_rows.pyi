from typing import Any

from numpy.typing import NDArray

def few_rows_matmul(
    a: NDArray[Any],
    b: NDArray[Any],
    out: NDArray[Any],
    m: int,  # Py_ssize_t
    n: int,  # Py_ssize_t
    k: int,  # Py_ssize_t
    transpose_b: bool,  # bint
    n_threads: int,  # int
) -> None: ...
