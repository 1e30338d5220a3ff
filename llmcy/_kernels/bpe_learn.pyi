from typing import Self, final

import numpy as np
from numpy.typing import NDArray

MAX_SLOTS: int

@final
class Learner:
    def __new__(cls, sequences: list[bytes]) -> Self: ...
    @property
    def token_count(self) -> int: ...
    def step(self) -> tuple[int, int, int, int] | None: ...
    def sequences(self) -> list[NDArray[np.uint32]]: ...
