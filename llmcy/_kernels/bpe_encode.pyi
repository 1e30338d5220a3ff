from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_BYTES: int

class Encoder:
    def __init__(self, pairs: NDArray[np.int64]) -> None: ...
    def encode(
        self, data: Any, shift: int, first: int | None = None, last: int | None = None
    ) -> NDArray[np.int64]: ...
    def token_lengths(self) -> NDArray[np.int64]: ...
    def decode(self, ids: NDArray[np.int64], shift: int, n_bytes: int) -> bytes: ...
