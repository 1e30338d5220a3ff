"""What differs between two runs: settings, the first record, the first kept state."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmcy.errors import RunError
from llmcy.run.checkpoints import CheckpointFolder
from llmcy.run.diff import FieldDifference, StateDifference, diff_fields, diff_states
from llmcy.run.directory import RunDirectory
from llmcy.run.history import UNCHAINED

__all__ = ["RecordDifference", "RunDifference", "diff_paths", "diff_runs"]

# fields of config.json that say how a run is carried out, by what, and where a copied file was
OPTIONS = ("options.", "llmcy_version", "initial.source")
RECORD_FILES = ("steps.jsonl", "evaluations.jsonl")


@dataclass(frozen=True)
class RecordDifference:
    """How one file of records differs.

    Attributes
    ----------
    file
        Its name in the run folder.
    compared
        Lines that both runs have.
    lengths
        Lines of each run.
    first_step
        The step of the first line that differs; None when all common lines are the same.
    fields
        What differs in that line.
    """

    file: str
    compared: int
    lengths: tuple[int, int]
    first_step: int | None
    fields: tuple[FieldDifference, ...]

    @property
    def equal(self) -> bool:
        """True when both runs have the same lines."""
        return self.first_step is None and self.lengths[0] == self.lengths[1]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "file": self.file,
            "equal": self.equal,
            "compared": self.compared,
            "lengths": list(self.lengths),
            "first_step": self.first_step,
            "fields": [field.to_dict() for field in self.fields],
        }

    def lines(self) -> Iterator[str]:
        """For people."""
        if self.first_step is None:
            yield f"{self.file}: {self.compared} common lines, all the same"
        else:
            yield f"{self.file}: first difference at step {self.first_step}"
            for field in self.fields:
                yield f"  {field.line()}"
        if self.lengths[0] != self.lengths[1]:
            yield f"{self.file}: {self.lengths[0]} lines against {self.lengths[1]}"


@dataclass(frozen=True)
class RunDifference:
    """What differs between two runs.

    Attributes
    ----------
    paths
        Both run folders.
    settings
        Fields of ``config.json`` that differ and that a result may depend on.
    records
        One entry a file of records.
    state
        The states at the first step of which both runs kept one and they differ; when no kept
        states differ, the last pair that was compared; None when there was no pair.
    compared_steps
        Steps whose kept states were compared, up to and with the first difference.
    selected
        Differences of the selected states; None when one of the runs has none.
    """

    paths: tuple[Path, Path]
    settings: tuple[FieldDifference, ...]
    records: tuple[RecordDifference, ...]
    state: StateDifference | None
    compared_steps: tuple[int, ...]
    selected: StateDifference | None

    @property
    def equal(self) -> bool:
        """True when nothing differs but what is information only."""
        states = [state for state in (self.state, self.selected) if state is not None]
        return (
            not self.settings
            and all(record.equal for record in self.records)
            and all(state.equal for state in states)
        )

    @property
    def first_step(self) -> int | None:
        """The first step at which a record or a kept state differs."""
        steps = [record.first_step for record in self.records if record.first_step is not None]
        if self.state is not None and _parted(self.state, self.settings):
            steps.append(self.compared_steps[-1])
        return min(steps, default=None)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "equal": self.equal,
            "paths": [str(path) for path in self.paths],
            "first_step": self.first_step,
            "settings": [field.to_dict() for field in self.settings],
            "records": [record.to_dict() for record in self.records],
            "compared_steps": list(self.compared_steps),
            "state": None if self.state is None else self.state.to_dict(),
            "selected": None if self.selected is None else self.selected.to_dict(),
        }

    def lines(self) -> Iterator[str]:
        """For people."""
        for side, path in zip("AB", self.paths, strict=True):
            yield f"{side}  {path}"
        for field in self.settings:
            yield f"config {field.line()}"
        for record in self.records:
            yield from record.lines()
        if self.state is None:
            yield "no step of which both runs kept a state"
        elif not _parted(self.state, self.settings):
            yield f"states of steps {_listed(self.compared_steps)}: every bit the same"
        else:
            yield f"first kept state that differs: step {self.compared_steps[-1]}"
            yield from self.state.lines()
        if self.selected is not None:
            yield "selected states"
            yield from self.selected.lines()


def diff_paths(a: str | Path, b: str | Path) -> StateDifference | RunDifference:
    """Compare two run folders, or two state files.

    Raises
    ------
    RunError
        ``NotTheSameKind`` for a folder against a file, and as :func:`diff_runs` and
        :func:`llmcy.run.diff.diff_states`.
    CheckpointError
        For a version-1 file that is not valid.
    """
    a, b = Path(a), Path(b)
    if a.is_dir() != b.is_dir():
        folder, file = (a, b) if a.is_dir() else (b, a)
        raise RunError(
            "NotTheSameKind",
            f"{str(folder)!r} is a folder and {str(file)!r} is not: "
            "give two run folders or two state files",
            folder=str(folder),
            file=str(file),
        )
    return diff_runs(a, b) if a.is_dir() else diff_states(a, b)


def diff_runs(a: str | Path, b: str | Path) -> RunDifference:
    """Compare two run folders: settings, every record, the states both kept, the selected ones.

    Raises
    ------
    RunError
        ``NotARun``, ``Io``, ``InvalidRecord``.
    """
    left, right = RunDirectory.open(a), RunDirectory.open(b)
    settings = tuple(
        field
        for field in diff_fields(_json(left, "config.json"), _json(right, "config.json"))
        if not field.name.startswith(OPTIONS)
    )
    records = tuple(_diff_records(left, right, name) for name in RECORD_FILES)
    state, steps = None, []
    kept = [CheckpointFolder(run.path, 1, 0) for run in (left, right)]
    for step in sorted(set(kept[0].steps()) & set(kept[1].steps())):
        state = diff_states(kept[0].path(step), kept[1].path(step))
        steps.append(step)
        if _parted(state, settings):
            break
    try:
        selected = diff_states(left.selected_path(), right.selected_path())
    except RunError as error:
        if error.kind != "NotARun":
            raise
        selected = None
    return RunDifference((left.path, right.path), settings, records, state, tuple(steps), selected)


def _parted(state: StateDifference, settings: tuple[FieldDifference, ...]) -> bool:
    """Do two kept states differ?  Settings that differ are in the metadata of every one of them."""
    return bool(state.tensors or any(state.only)) if settings else not state.equal


def _diff_records(left: RunDirectory, right: RunDirectory, name: str) -> RecordDifference:
    mine, others = _records(left, name), _records(right, name)
    first: int | None = None
    fields: tuple[FieldDifference, ...] = ()
    for a, b in zip(mine, others, strict=False):
        fields = diff_fields(_computed(a), _computed(b))
        if fields:
            first = min(a["step"], b["step"])
            break
    return RecordDifference(
        name, min(len(mine), len(others)), (len(mine), len(others)), first, fields
    )


def _json(run: RunDirectory, name: str) -> dict[str, Any]:
    try:
        value = json.loads(_read(run, name))
    except ValueError as error:
        raise _corrupt(run, name, 1, error) from error
    if not isinstance(value, dict):
        raise _corrupt(run, name, 1, "not an object")
    return value


def _records(run: RunDirectory, name: str) -> list[dict[str, Any]]:
    """Every whole line; what a kill left after the last line feed is no record."""
    records = []
    lines = _read(run, name).split(b"\n")[:-1] if (run.path / name).exists() else []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            if not isinstance(record, dict) or type(record.get("step")) is not int:
                raise ValueError("not an object with a step")
        except ValueError as error:
            raise _corrupt(run, name, number, error) from error
        records.append(record)
    return records


def _read(run: RunDirectory, name: str) -> bytes:
    path = run.path / name
    try:
        return path.read_bytes()
    except OSError as error:
        raise RunError(
            "Io",
            f"cannot read {str(path)!r}: {error.strerror}",
            cause=error,
            operation="read",
            path=str(path),
        ) from error


def _corrupt(run: RunDirectory, name: str, line: int, problem: object) -> RunError:
    path = str(run.path / name)
    return RunError(
        "InvalidRecord",
        f"{path!r}, line {line}: {problem}",
        path=path,
        step=None,
        problem=str(problem),
    )


def _computed(record: dict[str, Any]) -> dict[str, Any]:
    """A record without its times, and without the digest of everything before it."""
    return {key: value for key, value in record.items() if key not in UNCHAINED}


def _listed(steps: tuple[int, ...]) -> str:
    return ", ".join(map(str, steps))
