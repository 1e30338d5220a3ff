"""The folder of one run.

| file | what it holds |
|---|---|
| ``config.json`` | model, optimizer, rates, other settings; package and contract version |
| ``split.json`` | every document: id, digest, size, partition; the rule that placed it |
| ``tokenizer.json`` | kind and merges of the tokenizer |
| ``steps.jsonl`` | one line per update |
| ``evaluations.jsonl`` | one line per measurement of the losses |
| ``selected.ckpt`` | the selected state of a float64 run (version-1 checkpoint) |
| ``selected.safetensors`` | the selected state of a float32 run |
| ``summary.json`` | selected step, losses, digest of the parameters |

Whole files are replaced atomically.  The two ``.jsonl`` files grow by whole lines, so what a kill
leaves behind is a valid prefix, at worst with one unfinished last line.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from llmcy.atomic_file import write_atomic
from llmcy.errors import LlmcyError, RunError

__all__ = ["RunDirectory"]

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
            ``NotARun`` when there is no ``config.json`` in it.
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
        text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        self.write_bytes(name, text.encode())

    def write_bytes(self, name: str, data: bytes) -> None:
        """Replace ``name`` atomically.

        Raises
        ------
        RunError
            ``Io`` naming the file; the old file, if any, is whole.
        """
        path = self.path / name
        try:
            write_atomic(path, data)
        except (OSError, LlmcyError) as error:
            raise _io("write", path, error) from error

    def append_line(self, name: str, record: dict[str, Any]) -> None:
        """Append one JSON line to ``name``.

        Raises
        ------
        RunError
            ``Io`` naming the file.
        """
        path = self.path / name
        line = json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"
        try:
            with path.open("ab") as file:
                file.write(line.encode())
        except OSError as error:
            raise _io("append to", path, error) from error

    def selected_path(self) -> Path:
        """The file of the selected state.

        Raises
        ------
        RunError
            ``NotARun`` when the run has not selected a state yet.
        """
        for name in SELECTED_FILES:
            if (self.path / name).is_file():
                return self.path / name
        raise RunError(
            "NotARun",
            f"{str(self.path)!r} holds no selected state ({' or '.join(SELECTED_FILES)})",
            path=str(self.path),
        )


def _io(operation: str, path: Path, error: BaseException) -> RunError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return RunError(
        "Io",
        f"cannot {operation} {str(path)!r}: {reason}",
        cause=error,
        operation=operation,
        path=str(path),
    )
