"""What checking a run found: proved, not proved, disproved, or not to be checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["DISPROVED", "NOT_CHECKED", "PROVED", "Disproof", "Findings"]

PROVED, DISPROVED, NOT_CHECKED = 0, 1, 2
Index = tuple[int, ...]


@dataclass(frozen=True)
class Disproof:
    """Something in a run that cannot have come from it.

    Attributes
    ----------
    text
        What is wrong, in a sentence.
    file
        The file it is in.
    step, field, tensor, index
        Where, as far as it is known.
    """

    text: str
    file: str | None = None
    step: int | None = None
    field: str | None = None
    tensor: str | None = None
    index: Index | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "text": self.text,
            "file": self.file,
            "step": self.step,
            "field": self.field,
            "tensor": self.tensor,
            "index": None if self.index is None else list(self.index),
        }


@dataclass
class Findings:
    """A growing list of findings.

    Attributes
    ----------
    proved, not_proved
        Sentences; what is not proved was not asked for or cannot be proved at all.
    disproved
        In the order in which it was found.
    problems
        What was asked for and could not be checked, with the reason.
    seed
        Of the random choice of segments, if there was one.
    """

    proved: list[str] = field(default_factory=list)
    not_proved: list[str] = field(default_factory=list)
    disproved: list[Disproof] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    seed: int | None = None

    @property
    def exit_code(self) -> int:
        """1 when anything is disproved, else 2 when anything could not be checked, else 0."""
        if self.disproved:
            return DISPROVED
        return NOT_CHECKED if self.problems else PROVED

    @property
    def first(self) -> Disproof | None:
        """The disproof of the earliest step; those without a step come before all."""
        return min(self.disproved, key=lambda d: -1 if d.step is None else d.step, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "exit_code": self.exit_code,
            "proved": self.proved,
            "disproved": [disproof.to_dict() for disproof in self.disproved],
            "not_checked": self.problems,
            "not_proved": self.not_proved,
            "seed": self.seed,
        }

    def lines(self) -> Iterator[str]:
        """For people; the last line is the verdict."""
        for text in self.proved:
            yield f"proved      {text}"
        for disproof in self.disproved:
            yield f"disproved   {disproof.text}"
        for text in self.problems:
            yield f"not checked {text}"
        for text in self.not_proved:
            yield f"not proved  {text}"
        if self.seed is not None:
            yield f"seed        {self.seed}"
        yield f"verdict     {('proved', 'disproved', 'not checked')[self.exit_code]}"
