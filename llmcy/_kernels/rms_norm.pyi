from typing import Any

from numpy.typing import NDArray

def rms_norm(
    x: NDArray[Any],
    gain: NDArray[Any],
    eps: float,
    out: NDArray[Any],
    inv_rms: NDArray[Any],
    mean_square_eps: NDArray[Any],
    n_threads: int,
) -> None: ...
def rms_norm_backward(
    d_out: NDArray[Any],
    x: NDArray[Any],
    gain: NDArray[Any],
    inv_rms: NDArray[Any],
    mean_square_eps: NDArray[Any],
    d_x: NDArray[Any],
    d_gain: NDArray[Any],
    n_threads: int,
) -> None: ...
