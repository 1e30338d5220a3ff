"""The folder of one run; docs/runs.md describes every file and what survives a kill.

Whole files are replaced atomically.  The two ``.jsonl`` logs grow by whole lines, so what a kill
leaves behind is a valid prefix, at worst with one unfinished last line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # no such locks on this platform
    fcntl = None  # type: ignore[assignment]

from llmcy.atomic_file import publish, sweep_temporaries, synchronize_directory
from llmcy.errors import LlmcyError, RunError
from llmcy.run.checkpoints import newest_selected

__all__ = ["RunDirectory", "json_bytes"]

SELECTED_FILES = ("selected.ckpt", "selected.safetensors")


class RunDirectory:
    """A run folder that is open for writing, or read back.

    Parameters
    ----------
    path
        The folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    @classmethod
    def create(cls, path: str | os.PathLike[str]) -> RunDirectory:
        """Make a new folder; an empty one that exists is taken over.

        Raises
        ------
        RunError
            ``FolderNotEmpty``, or ``Io`` when the folder cannot be made or written to.
        """
        folder = Path(path)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise RunError(
                    "FolderNotEmpty",
                    f"run folder {str(folder)!r} exists and is not empty; choose another --run",
                    path=str(folder),
                )
            probe = folder / ".writable"
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise _io("create run folder", folder, error) from error
        return cls(folder)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> RunDirectory:
        """An existing run folder.

        Raises
        ------
        RunError
            ``NotARun`` when there is no ``config.json`` in it, which is the last file that
            creating a run writes.
        """
        run = cls(path)
        if not (run.path / "config.json").is_file():
            raise RunError(
                "NotARun",
                f"{str(run.path)!r} is not a run folder: it has no config.json",
                path=str(run.path),
            )
        return run

    def write_json(self, name: str, value: Any) -> None:
        """Replace ``name`` by ``value`` as indented JSON, atomically."""
        self.write_bytes(name, json_bytes(value))

    def write_bytes(self, name: str, data: bytes) -> None:
        """Replace ``name`` atomically.

        Raises
        ------
        RunError
            ``Io`` naming the file; the old file, if any, is whole.
        """
        path = self.path / name
        try:
            publish(path, data)
        except (OSError, LlmcyError) as error:
            raise _io("write", path, error) from error

    def sweep(self) -> list[str]:
        """Remove what killed writers left half-written; tell the names.

        Raises
        ------
        RunError
            ``Io``.
        """
        try:
            return sweep_temporaries(self.path)
        except LlmcyError as error:
            raise _io("sweep", self.path, error) from error

    def make_folder(self, name: str) -> Path:
        """Make a folder inside the run folder, if it is not there, and force it to the disk.

        Raises
        ------
        RunError
            ``Io`` naming the folder.
        """
        path = self.path / name
        try:
            path.mkdir(exist_ok=True)
            synchronize_directory(str(self.path))
        except (OSError, LlmcyError) as error:
            raise _io("create", path, error) from error
        return path

    def read_bytes(self, name: str) -> bytes:
        """The content of a file of the run.

        Raises
        ------
        RunError
            ``Io`` naming the file.
        """
        path = self.path / name
        try:
            return path.read_bytes()
        except OSError as error:
            raise _io("read", path, error) from error

    def append_information(self, name: str, record: dict[str, Any]) -> None:
        """Add a JSON line to a file that nothing depends on.

        Raises
        ------
        RunError
            ``Io`` naming the file.
        """
        path = self.path / name
        try:
            with path.open("a", encoding="ascii") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise _io("append to", path, error) from error

    def read_json(self, name: str) -> Any:
        """The value in a JSON file of the run.

        Raises
        ------
        RunError
            ``Io``, or ``NotARun`` when it is no JSON.
        """
        path = self.path / name
        try:
            return json.loads(self.read_bytes(name))
        except (ValueError, RecursionError) as error:
            raise RunError(
                "NotARun", f"{str(path)!r} is no JSON: {error}", cause=error, path=str(self.path)
            ) from error

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other processes from training into this folder; a lock ends with its process.

        Raises
        ------
        RunError
            ``Locked`` when another process holds it; ``Io``.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0))
        except OSError as error:
            raise _io("open", self.path, error) from error
        try:
            if fcntl is not None:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError as error:
                    raise RunError(
                        "Locked",
                        f"another process is training into {str(self.path)!r}",
                        cause=error,
                        path=str(self.path),
                    ) from error
                except OSError:
                    pass  # a file system without locks
            yield
        finally:
            os.close(descriptor)

    def selected_path(self) -> Path:
        """The file of the selected state; of the best one so far while the run is not finished.

        Raises
        ------
        RunError
            ``NotARun`` when the run has not selected a state yet.
        """
        for name in SELECTED_FILES:
            if (self.path / name).is_file():
                return self.path / name
        newest = newest_selected(self.path)
        if newest is not None:
            return newest
        raise RunError(
            "NotARun",
            f"{str(self.path)!r} holds no selected state ({' or '.join(SELECTED_FILES)})",
            path=str(self.path),
        )


def json_bytes(value: Any) -> bytes:
    """The text of a JSON file of a run, for people to read; equal values give equal bytes."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return text.encode("utf-8", "surrogatepass")


def _io(operation: str, path: Path, error: BaseException) -> RunError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return RunError(
        "Io",
        f"cannot {operation} {str(path)!r}: {reason}",
        cause=error,
        operation=operation,
        path=str(path),
    )
