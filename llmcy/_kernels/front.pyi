from collections.abc import Callable
from typing import Any, TypeVar

from numpy.typing import NDArray

Function = TypeVar("Function", bound=Callable[..., Any])

def use(f64: object, f32: object) -> None: ...
def close(on: bool) -> None: ...
def set_threads(n_threads: int) -> None: ...
def try_matmul(
    a: object,
    b: object,
    transpose_a: object,
    transpose_b: object,
    out: object,
    n_threads: object,
) -> NDArray[Any] | None: ...
def with_short_way(long_way: Function) -> Function: ...
