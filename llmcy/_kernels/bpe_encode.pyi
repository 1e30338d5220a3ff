from typing import Any, Self, final

import numpy as np
from numpy.typing import NDArray

MAX_BYTES: int

@final
class Encoder:
    def __new__(cls, pairs: NDArray[np.int64]) -> Self: ...
    def encode(
        self, data: Any, shift: int, first: int | None = None, last: int | None = None
    ) -> NDArray[np.int64]: ...
    def token_lengths(self) -> NDArray[np.int64]: ...
    def decode(self, ids: NDArray[np.int64], shift: int, n_bytes: int) -> bytes: ...
