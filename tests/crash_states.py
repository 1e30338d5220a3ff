"""What a folder may hold after the machine stops: a model of a careless file system.

The model knows a folder with its files and the folders in it.  Data that was written to a file may
be lost, kept, or kept in part until the file is forced to the disk; where data was lost but later
data kept, the gap reads as zeros.  Changes of a folder's entries (create, rename, remove) may each
be lost or kept until the folder is forced to the disk, in any combination.  Forcing a file does not
force its entry.  A rename is kept or lost as a whole.  Real file systems promise more; whoever is
safe here is safe on them.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults import intercepted

Folder = dict[str, bytes]


@dataclass
class File:
    """What is surely on the disk, and what was written since."""

    durable: bytes = b""
    pending: list[tuple[str, int, bytes]] = field(default_factory=list)  # kind, offset, data
    position: int = 0  # where the next write goes

    def size(self) -> int:
        """As the running program sees it."""
        return len(applied(self.durable, self.pending))


def applied(content: bytes, changes: list[tuple[str, int, bytes]]) -> bytes:
    for kind, offset, data in changes:
        if kind == "truncate":
            content = content[:offset] + bytes(max(0, offset - len(content)))
        else:
            content = content.ljust(offset, b"\0")
            content = content[:offset] + data + content[offset + len(data) :]
    return content


@dataclass
class Moment:
    """The state of the disk between two calls; names are paths below the folder."""

    after: str
    files: dict[int, File]
    entries: dict[str, int]  # surely on the disk
    changes: list[tuple[str, Any]]  # of the entries, since their folder was forced

    def crash_states(self, limit: int | None = None, seed: int = 0) -> Iterator[Folder]:
        """Every folder that may be found, or ``limit`` random ones when there are more."""
        choices: list[list[Any]] = [[False, True] for _ in self.changes]
        numbers = list(self.files)
        for number in numbers:
            choices += [outcomes(change) for change in self.files[number].pending]
        total = 1
        for options in choices:
            total *= len(options)
        chosen: Iterator[tuple[Any, ...]]
        if limit is None or total <= limit:
            chosen = itertools.product(*choices)
        else:
            rng = random.Random(seed)
            chosen = (tuple(rng.choice(options) for options in choices) for _ in range(limit))
        for choice in chosen:
            yield self._folder(choice, numbers)

    def _folder(self, choice: tuple[Any, ...], numbers: list[int]) -> Folder:
        rest = list(choice[len(self.changes) :])
        contents = {}
        for number in numbers:
            file = self.files[number]
            kept = [change for change in (rest.pop(0) for _ in file.pending) if change is not None]
            contents[number] = applied(file.durable, kept)
        entries = dict(self.entries)
        for kept, change in zip(choice, self.changes, strict=False):
            if kept:
                change_entries(entries, change)
        return {name: contents[number] for name, number in entries.items()}


def outcomes(change: tuple[str, int, bytes]) -> list[tuple[str, int, bytes] | None]:
    """A pending change of a file may be lost, half done, done without its data, or done."""
    kind, offset, data = change
    if kind == "truncate":
        return [None, change]
    half = len(data) // 2
    return [None, (kind, offset, data[:half]), (kind, offset, bytes(len(data))), change]


def change_entries(entries: dict[str, int], change: tuple[str, Any]) -> None:
    kind, what = change
    if kind == "create":
        name, number = what
        entries[name] = number
    elif kind == "rename":
        source, destination, number = what
        entries[destination] = number
        if entries.get(source) == number:
            del entries[source]
    else:
        entries.pop(what, None)


class Recording:
    """Follows the calls that a program makes on one folder.

    ``moments`` has the state before the first call and after each call.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files: dict[int, File] = {}
        self.entries: dict[str, int] = {}
        self.changes: list[tuple[str, Any]] = []
        self.live: dict[str, int] = {}  # entries as the running program sees them
        self.open: dict[int, int | str] = {}  # descriptor -> file number, or name of a folder
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self._new_file(str(path.relative_to(folder)), path.read_bytes())
        self.entries = dict(self.live)
        self.moments: list[Moment] = []
        self.calls: list[str] = []
        self._keep("start")

    def _new_file(self, name: str, content: bytes = b"") -> int:
        number = len(self.files)
        self.files[number] = File(content)
        self.live[name] = number
        return number

    def _keep(self, after: str) -> None:
        self.calls.append(after)
        files = {
            number: File(file.durable, list(file.pending)) for number, file in self.files.items()
        }
        self.moments.append(Moment(after, files, dict(self.entries), list(self.changes)))

    def _name(self, path: Any) -> str | None:
        """Path below the folder, ``.`` for the folder itself; None for what lies outside."""
        name = os.path.relpath(os.fsdecode(path), self.folder)
        return None if name.startswith("..") else name

    def follow(self, function: str, arguments: tuple[Any, ...], result: Any) -> None:
        """One more call was made."""
        if self._apply(function, arguments, result):
            self._keep(function)

    def _apply(self, function: str, arguments: tuple[Any, ...], result: Any) -> bool:
        if function == "open":
            return self._opened(arguments, result)
        if function == "rename":
            names = self._name(arguments[0]), self._name(arguments[1])
            if None in names:
                return False
            change: tuple[str, Any] = ("rename", (*names, self.live[str(names[0])]))
        elif function == "unlink":
            name = self._name(arguments[0])
            if name is None:
                return False
            change = ("remove", name)
        else:
            return self._on_descriptor(function, arguments, result)
        self.changes.append(change)
        change_entries(self.live, change)
        return True

    def _opened(self, arguments: tuple[Any, ...], descriptor: int) -> bool:
        flags = arguments[1]
        name = self._name(arguments[0])
        if name is None:
            return False
        if os.path.isdir(arguments[0]):
            self.open[descriptor] = name
            return True
        if name not in self.live:
            self._new_file(name)
            self.changes.append(("create", (name, self.live[name])))
        file = self.files[self.live[name]]
        if flags & os.O_TRUNC and file.size():
            file.pending.append(("truncate", 0, b""))
        file.position = file.size() if flags & os.O_APPEND else 0
        self.open[descriptor] = self.live[name]
        return True

    def _on_descriptor(self, function: str, arguments: tuple[Any, ...], result: Any) -> bool:
        descriptor = arguments[0]
        if descriptor not in self.open:
            return False
        number = self.open[descriptor]
        if function == "close":
            del self.open[descriptor]
        elif isinstance(number, str):
            if function == "fsync":
                self._force_folder(number)
        else:
            file = self.files[number]
            if function == "fsync":
                file.durable, file.pending = applied(file.durable, file.pending), []
            elif function == "ftruncate":
                file.pending.append(("truncate", arguments[1], b""))
            else:
                offset = arguments[2] if function == "pwrite" else file.position
                file.pending.append(("write", offset, bytes(arguments[1])[:result]))
                if function == "write":
                    file.position += result
        return True

    def _force_folder(self, folder: str) -> None:
        """The pending changes of one folder's entries are on the disk from now on."""
        rest = []
        for change in self.changes:
            name = change[1] if isinstance(change[1], str) else change[1][0]
            if (os.path.dirname(name) or ".") == folder:
                change_entries(self.entries, change)
            else:
                rest.append(change)
        self.changes = rest


@contextmanager
def recorded(folder: Path) -> Iterator[Recording]:
    """Follow the calls made on ``folder`` inside the block."""
    recording = Recording(folder)
    with intercepted(lambda *call: None, recording.follow):
        yield recording
