from typing import Any

from numpy.typing import NDArray

def decode_block(
    x: NDArray[Any],
    weights: tuple[NDArray[Any], ...],
    eps_attention: float,  # double
    eps_ffn: float,  # double
    cos: NDArray[Any],
    sin: NDArray[Any],
    keys: NDArray[Any],
    values: NDArray[Any],
    rows: NDArray[Any],
    lengths: NDArray[Any],
    new_key: NDArray[Any],
    new_value: NDArray[Any],
    scratch: NDArray[Any],
    n: int,  # Py_ssize_t
    D: int,  # Py_ssize_t
    F: int,  # Py_ssize_t
    C: int,  # Py_ssize_t
    H: int,  # Py_ssize_t
    Hk: int,  # Py_ssize_t
    Dh: int,  # Py_ssize_t
    longest: int,  # Py_ssize_t
    n_threads: int,  # int
) -> bool: ...
