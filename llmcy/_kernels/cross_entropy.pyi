from typing import Any

from numpy.typing import NDArray

def cross_entropy(
    logits: NDArray[Any],
    targets: NDArray[Any],
    losses: NDArray[Any],
    parts: NDArray[Any],
    mean: NDArray[Any],
    p: NDArray[Any] | None,
    n_threads: int,
) -> None: ...
def cross_entropy_block(
    logits: NDArray[Any],
    targets: NDArray[Any],
    first: int,
    losses: NDArray[Any],
    parts: NDArray[Any],
    r: float,
    gradient: bool,
    n_threads: int,
) -> int: ...
def mean_loss(losses: NDArray[Any], parts: NDArray[Any], mean: NDArray[Any]) -> None: ...
def cross_entropy_backward(
    logits: NDArray[Any],
    targets: NDArray[Any],
    r: float,
    p: NDArray[Any] | None,
    d_logits: NDArray[Any],
    n_threads: int,
) -> None: ...
