"""The three uses of text: learn from it, choose by it, report on it once."""

from __future__ import annotations

import enum

__all__ = ["Partition"]


class Partition(enum.Enum):
    """Which use a document is reserved for.

    The labels are stable: they are written into split records, reports and error fields.
    Iteration gives train, validation, test, the order in which everything is checked.
    """

    TRAIN = "train"
    VALIDATION = "validation"
    TEST = "test"

    @property
    def label(self) -> str:
        """The stable lower-case name."""
        return self.value

    def __str__(self) -> str:
        return self.value
