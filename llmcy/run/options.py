"""How a run is carried out; nothing here reaches a result."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from llmcy._check import whole_number
from llmcy.errors import ConfigError

__all__ = ["JobOptions"]


@dataclass(frozen=True)
class JobOptions:
    """Memory, checkpoints and failures.

    Parameters
    ----------
    checkpoint_every
        Updates between checkpoints, besides the one before the first update and the one after the
        last; 0: only those.
    keep_last, keep_every
        The newest checkpoints that stay, >= 1; and those at multiples of a step (0: none).
    micro_batch_size
        Windows in memory at once; 0: the whole batch.
    on_save_error
        ``stop`` the run when a checkpoint or record cannot be written, or ``continue`` and try
        again at the next one.

    Raises
    ------
    RangeError, ConfigError
        For a number or word that is not allowed.
    """

    checkpoint_every: int = 100
    keep_last: int = 3
    keep_every: int = 0
    micro_batch_size: int = 0
    on_save_error: str = "stop"

    def __post_init__(self) -> None:
        whole_number("checkpoint_every", self.checkpoint_every)
        whole_number("keep_last", self.keep_last, 1)
        whole_number("keep_every", self.keep_every)
        whole_number("micro_batch_size", self.micro_batch_size)
        if self.on_save_error not in ("stop", "continue"):
            raise ConfigError(
                "InvalidSetting",
                f"on_save_error must be stop or continue, got {self.on_save_error!r}",
                name="on_save_error",
                value=self.on_save_error,
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)
