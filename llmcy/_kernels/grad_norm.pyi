from typing import Any

from numpy.typing import NDArray

def scaled_sum(x: NDArray[Any], top: float, sq: float) -> tuple[float, float]: ...
def block_sum(
    x: NDArray[Any], total: float, block: float, filled: int
) -> tuple[float, float, int]: ...
