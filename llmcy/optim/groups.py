"""Which parameters decay."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from llmcy.errors import OptimizerError

__all__ = ["ParameterGroups", "byte_sorted"]


def byte_sorted(names: Iterable[str]) -> list[str]:
    """Names in the order of their UTF-8 bytes (``blocks.10.`` before ``blocks.2.``)."""
    return sorted(names, key=lambda name: name.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, init=False)
class ParameterGroups:
    """Names that receive weight decay and names that do not.

    Parameters
    ----------
    decay, no_decay
        Names in any order; kept in byte order, which is also the order in a checkpoint.

    Raises
    ------
    OptimizerError
        The first of: in ``decay`` and then in ``no_decay``, ``EmptyGroupedParameterName`` or
        ``DuplicateGroupedParameter``; ``EmptyParameterGroups`` when there is no name at all;
        ``ParameterInMultipleGroups`` with the smallest common name.
    """

    decay: tuple[str, ...]
    no_decay: tuple[str, ...]

    def __init__(self, decay: Iterable[str] = (), no_decay: Iterable[str] = ()) -> None:
        decay, no_decay = list(decay), list(no_decay)
        for group, names in (("decay", decay), ("no_decay", no_decay)):
            _check_group(group, names)
        if not decay and not no_decay:
            raise OptimizerError("EmptyParameterGroups", "ParameterGroups: no name in any group")
        common = byte_sorted(set(decay) & set(no_decay))
        if common:
            raise OptimizerError(
                "ParameterInMultipleGroups",
                f"ParameterGroups: {common[0]!r} is in decay and in no_decay",
                name=common[0],
            )
        object.__setattr__(self, "decay", tuple(byte_sorted(decay)))
        object.__setattr__(self, "no_decay", tuple(byte_sorted(no_decay)))

    @classmethod
    def from_rule(cls, names: Iterable[str]) -> ParameterGroups:
        """The published rule: names ending in ``.gain`` do not decay, all others do."""
        names = list(names)
        return cls(
            decay=[name for name in names if not name.endswith(".gain")],
            no_decay=[name for name in names if name.endswith(".gain")],
        )

    @property
    def names(self) -> tuple[str, ...]:
        """Every name of both groups, in byte order."""
        return tuple(byte_sorted(self.decay + self.no_decay))


def _check_group(group: str, names: list[str]) -> None:
    seen = set()
    for name in names:
        if not name:
            raise OptimizerError(
                "EmptyGroupedParameterName", f"ParameterGroups: an empty name in {group}"
            )
        if name in seen:
            raise OptimizerError(
                "DuplicateGroupedParameter",
                f"ParameterGroups: {name!r} is twice in {group}",
                name=name,
            )
        seen.add(name)
