from collections.abc import Callable
from typing import Any

class Calls:
    def __init__(
        self,
        functions: tuple[Callable[..., Any], ...],
        arguments: tuple[tuple[Any, ...], ...],
        results: tuple[Any, ...],
    ) -> None: ...
    def __len__(self) -> int: ...
    def run(self) -> int: ...
