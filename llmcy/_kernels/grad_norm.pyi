from typing import Any

from numpy.typing import NDArray

def total(xs: tuple[NDArray[Any], ...], n_threads: int) -> tuple[float, float]: ...
