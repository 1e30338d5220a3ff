"""What differs between two stored states, or between two runs: the first place, and how much."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmcy.run.stored_state import StoredState, flatten, read_stored_state
from llmcy.run.tensor_difference import TensorDifference, compare_tensors

__all__ = ["FieldDifference", "StateDifference", "diff_fields", "diff_states"]

ABSENT = "(absent)"


@dataclass(frozen=True)
class FieldDifference:
    """A field that does not have the same value on both sides; ``(absent)`` where it is missing."""

    name: str
    values: tuple[Any, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"name": self.name, "values": list(self.values)}

    def line(self) -> str:
        """For people; long values are cut."""
        a, b = (_short(value) for value in self.values)
        return f"{self.name}: {a} against {b}"


@dataclass(frozen=True)
class StateDifference:
    """What differs between two stored states.

    Attributes
    ----------
    paths, kinds, steps
        Of both files.
    fields
        Fields that differ; empty when the files are of different kinds, whose fields do not
        correspond.
    only
        Tensors that only the first, only the second file holds.
    tensors
        Tensors that differ, in file order.
    compared
        Number of tensors that both hold.
    """

    paths: tuple[Path, Path]
    kinds: tuple[str, str]
    steps: tuple[int | None, int | None]
    fields: tuple[FieldDifference, ...]
    only: tuple[tuple[str, ...], tuple[str, ...]]
    tensors: tuple[TensorDifference, ...]
    compared: int

    @property
    def same_kind(self) -> bool:
        """True when both files have the same form."""
        return self.kinds[0] == self.kinds[1]

    @property
    def equal(self) -> bool:
        """True when nothing that both forms can hold differs."""
        if self.tensors or not self.compared or self.steps[0] != self.steps[1]:
            return False
        return not self.same_kind or not (self.fields or any(self.only))

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "equal": self.equal,
            "paths": [str(path) for path in self.paths],
            "kinds": list(self.kinds),
            "steps": list(self.steps),
            "fields": [field.to_dict() for field in self.fields],
            "only": [list(names) for names in self.only],
            "compared": self.compared,
            "tensors": [tensor.to_dict() for tensor in self.tensors],
        }

    def lines(self) -> Iterator[str]:
        """For people; digests that differ because tensors do are left out."""
        for side, path, kind, step in zip("AB", self.paths, self.kinds, self.steps, strict=True):
            yield f"{side}  {path}: {kind}, step {step}"
        for field in self.fields:
            if not (self.tensors and _follows(field.name)):
                yield f"field {field.line()}"
        for side, names in zip("AB", self.only, strict=True):
            if names:
                yield f"only {side} holds {len(names)} tensors: {_listed(names)}"
        if self.tensors:
            worst = max(self.tensors, key=lambda t: t.largest_ulps)
            yield (
                f"{len(self.tensors)} of {self.compared} tensors differ, first "
                f"{self.tensors[0].name}, most {worst.name} by {worst.largest_ulps} ulp"
            )
            for tensor in self.tensors:
                yield from tensor.lines()
        else:
            yield f"{self.compared} tensors, every bit the same"


def diff_states(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> StateDifference:
    """Compare two state files of any kind.

    Parameters
    ----------
    a, b
        Version-1 checkpoints, ``.safetensors`` model files or job checkpoints, also of two kinds:
        then the tensors that both hold are compared.

    Raises
    ------
    RunError, CheckpointError
        As :func:`llmcy.run.stored_state.read_stored_state`.
    """
    return _diff_stored(read_stored_state(a), read_stored_state(b))


def _diff_stored(a: StoredState, b: StoredState) -> StateDifference:
    both = [name for name in a.names if name in set(b.names)]
    tensors = []
    for name in both:
        difference = compare_tensors(name, a.tensor(name), b.tensor(name))
        if difference is not None:
            tensors.append(difference)
    fields = diff_fields(a.fields, b.fields) if a.kind == b.kind else ()
    return StateDifference(
        (a.path, b.path),
        (a.kind, b.kind),
        (a.step, b.step),
        fields,
        (_without(a.names, b.names), _without(b.names, a.names)),
        tuple(tensors),
        len(both),
    )


def diff_fields(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[FieldDifference, ...]:
    """Fields of two records, nested ones by dotted path, that are not the same.

    Numbers are the same when they are written the same: ``-0.0`` is not ``0.0``.
    """
    left, right = flatten(dict(a)), flatten(dict(b))
    names = [*left, *(name for name in right if name not in left)]
    pairs = ((name, left.get(name, ABSENT), right.get(name, ABSENT)) for name in names)
    return tuple(
        FieldDifference(name, (mine, other))
        for name, mine, other in pairs
        if repr(mine) != repr(other)
    )


def _follows(field: str) -> bool:
    """Is it a digest, which differs because something else does?"""
    return field.startswith("tensors.") or field in ("tensors_sha256", "sha256", "fingerprint")


def _without(names: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    known = set(others)
    return tuple(name for name in names if name not in known)


def _listed(names: tuple[str, ...]) -> str:
    return ", ".join(names) if len(names) <= 4 else f"{', '.join(names[:3])}, ... {names[-1]}"


def _short(value: Any, limit: int = 80) -> str:
    text = repr(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."
