from typing import Any

from numpy.typing import NDArray

def rope_table(
    base: float, frequency: NDArray[Any], cos: NDArray[Any], sin: NDArray[Any], n_threads: int
) -> None: ...
def rope(
    x: NDArray[Any],
    cos: NDArray[Any],
    sin: NDArray[Any],
    position: int,
    inverse: bool,
    out: NDArray[Any],
    n_threads: int,
) -> None: ...
