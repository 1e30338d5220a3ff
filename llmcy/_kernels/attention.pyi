from typing import Any

from numpy.typing import NDArray

def attention(
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    out: NDArray[Any],
    B: int,
    T: int,
    H: int,
    K: int,
    Dh: int,
    n_threads: int,
) -> None: ...
def attention_backward(
    d_out: NDArray[Any],
    q: NDArray[Any],
    k: NDArray[Any],
    v: NDArray[Any],
    d_q: NDArray[Any],
    d_k: NDArray[Any],
    d_v: NDArray[Any],
    B: int,
    T: int,
    H: int,
    K: int,
    Dh: int,
    n_threads: int,
) -> None: ...
