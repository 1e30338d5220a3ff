from typing import Any

from numpy.typing import NDArray

def embedding(
    weight: NDArray[Any], ids: NDArray[Any], out: NDArray[Any], n_threads: int
) -> None: ...
def embedding_backward(
    d_out: NDArray[Any], ids: NDArray[Any], d_weight: NDArray[Any], n_threads: int
) -> None: ...
def first_out_of_range(ids: NDArray[Any], vocab_size: int) -> int: ...
