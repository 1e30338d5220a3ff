from typing import Any

from numpy.typing import NDArray

def addresses(
    keys: tuple[NDArray[Any], ...], values: tuple[NDArray[Any], ...], storage: NDArray[Any]
) -> None: ...
def decode_step(
    held: tuple[Any, ...],
    storage: NDArray[Any],
    tokens: NDArray[Any],
    rows: NDArray[Any],
    positions: NDArray[Any],
    scratch: NDArray[Any],
    qkv: NDArray[Any],
    logits: NDArray[Any],
    n: int,  # Py_ssize_t
    longest: int,  # Py_ssize_t
    n_threads: int,  # int
) -> bool: ...
def append_step(
    held: tuple[Any, ...],
    storage: NDArray[Any],
    qkv: NDArray[Any],
    filled: NDArray[Any],
    rows: NDArray[Any],
    positions: NDArray[Any],
    n: int,  # Py_ssize_t
    B: int,  # Py_ssize_t
) -> int: ...
def advance(
    held: tuple[Any, ...],
    storage: NDArray[Any],
    filled: NDArray[Any],
    lengths: NDArray[Any],
    ids: list[int],
    owners: list[int],
    B: int,  # Py_ssize_t
    n_threads: int,  # int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any], int] | int | None: ...
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
