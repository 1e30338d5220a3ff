from typing import Any

from numpy.typing import NDArray

def cross_entropy(
    logits: NDArray[Any],
    targets: NDArray[Any],
    losses: NDArray[Any],
    log_tails: NDArray[Any],
    tops: NDArray[Any],
    mean: NDArray[Any],
    p: NDArray[Any] | None,
    n_threads: int,
) -> None: ...
def cross_entropy_backward(
    logits: NDArray[Any],
    targets: NDArray[Any],
    r: float,
    p: NDArray[Any] | None,
    d_logits: NDArray[Any],
    n_threads: int,
) -> None: ...
