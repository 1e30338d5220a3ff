from typing import Any

from numpy.typing import NDArray

KEY_BLOCK: int

def attention_step(
    q: NDArray[Any],
    new_key: NDArray[Any],
    new_value: NDArray[Any],
    keys: NDArray[Any],
    values: NDArray[Any],
    rows: NDArray[Any],
    lengths: NDArray[Any],
    out: NDArray[Any],
    weights: NDArray[Any] | None,
    n: int,  # Py_ssize_t
    C: int,  # Py_ssize_t
    H: int,  # Py_ssize_t
    Hk: int,  # Py_ssize_t
    Dh: int,  # Py_ssize_t
    longest: int,  # Py_ssize_t
    n_threads: int,  # int
) -> None: ...
def cache_append(
    new_key: NDArray[Any],
    new_value: NDArray[Any],
    keys: NDArray[Any],
    values: NDArray[Any],
    rows: NDArray[Any],
    positions: NDArray[Any],
    n: int,  # Py_ssize_t
    C: int,  # Py_ssize_t
    Hk: int,  # Py_ssize_t
    Dh: int,  # Py_ssize_t
) -> None: ...
