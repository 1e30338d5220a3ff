from typing import Any

from numpy.typing import NDArray

def decode_step(
    tokens: NDArray[Any],
    table: NDArray[Any],
    gains: NDArray[Any],
    weights: NDArray[Any],
    eps: float,  # double
    cos: NDArray[Any],
    sin: NDArray[Any],
    keys: tuple[NDArray[Any], ...],
    values: tuple[NDArray[Any], ...],
    rows: NDArray[Any],
    positions: NDArray[Any],
    scratch: NDArray[Any],
    storage: NDArray[Any],
    qkv: NDArray[Any],
    logits: NDArray[Any],
    n: int,  # Py_ssize_t
    L: int,  # Py_ssize_t
    D: int,  # Py_ssize_t
    F: int,  # Py_ssize_t
    V: int,  # Py_ssize_t
    C: int,  # Py_ssize_t
    H: int,  # Py_ssize_t
    Hk: int,  # Py_ssize_t
    Dh: int,  # Py_ssize_t
    longest: int,  # Py_ssize_t
    n_threads: int,  # int
) -> bool: ...
def append_step(
    qkv: NDArray[Any],
    keys: tuple[NDArray[Any], ...],
    values: tuple[NDArray[Any], ...],
    lengths: NDArray[Any],
    rows: NDArray[Any],
    positions: NDArray[Any],
    n: int,  # Py_ssize_t
    L: int,  # Py_ssize_t
    B: int,  # Py_ssize_t
    C: int,  # Py_ssize_t
    H: int,  # Py_ssize_t
    Hk: int,  # Py_ssize_t
    Dh: int,  # Py_ssize_t
) -> int: ...
def width_in_panels(columns: int) -> int: ...  # Py_ssize_t
def pack(
    matrix: NDArray[Any],
    packed: NDArray[Any],
    start: int,  # Py_ssize_t
    k: int,  # Py_ssize_t
    columns: int,  # Py_ssize_t
    before: int,  # Py_ssize_t
    total: int,  # Py_ssize_t
    turns: int,  # Py_ssize_t
    turn: int,  # Py_ssize_t
    transposed: bool,  # bint
) -> None: ...
