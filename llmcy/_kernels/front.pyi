from typing import Any

from numpy.typing import NDArray

def use(f64: object, f32: object) -> None: ...
def close(on: bool) -> None: ...
def set_threads(n_threads: int) -> None: ...
def matmul(
    a: object,
    b: object,
    transpose_a: object,
    transpose_b: object,
    out: object,
    n_threads: object,
) -> NDArray[Any] | None: ...
