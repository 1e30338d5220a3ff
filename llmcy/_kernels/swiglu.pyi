from typing import Any

from numpy.typing import NDArray

def silu(x: NDArray[Any], out: NDArray[Any], n_threads: int) -> None: ...
def silu_backward(
    d_out: NDArray[Any], x: NDArray[Any], d_x: NDArray[Any], n_threads: int
) -> None: ...
def swiglu(
    gate: NDArray[Any],
    up: NDArray[Any],
    out: NDArray[Any],
    sigmoid: NDArray[Any] | None,
    n_threads: int,
) -> None: ...
def swiglu_backward(
    d_out: NDArray[Any],
    gate: NDArray[Any],
    up: NDArray[Any],
    sigmoid: NDArray[Any] | None,
    d_gate: NDArray[Any],
    d_up: NDArray[Any],
    n_threads: int,
) -> None: ...
