"""Reading ``.safetensors`` files of other programs: one or several, float64 to bfloat16.

The library checks the header; the values are read through a map of the file, so that a tensor is
in memory once.  bfloat16, which numpy does not know, is the upper half of a binary32.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from llmcy.errors import InteropError
from llmcy.interop.files import corrupt, io_error, read_json

__all__ = ["TensorFiles"]

WIDE_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


class TensorFiles:
    """The tensors of a folder by name.

    Parameters
    ----------
    folder
        Holds ``model.safetensors``, or ``model.safetensors.index.json`` and what it lists.

    Raises
    ------
    InteropError
        ``NotAModel``, ``CorruptFile``, ``Io``, ``DuplicateTensor``.
    """

    def __init__(self, folder: Path) -> None:
        self._where: dict[str, Path] = {}
        self._entries: dict[str, dict[str, Any]] = {}
        self._data_start: dict[Path, int] = {}
        for file in _files(folder):
            self._read_header(file)

    def _read_header(self, file: Path) -> None:
        try:
            with safe_open(file, framework="np"):
                pass  # checks sizes, offsets and names
            with file.open("rb") as stream:
                length = int.from_bytes(stream.read(8), "little")
                header = json.loads(stream.read(length))
        except OSError as error:
            raise io_error("read", file, error) from error
        except (SafetensorError, ValueError) as error:
            raise corrupt(file, str(error)) from error
        self._data_start[file] = 8 + length
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            if name in self._entries:
                raise InteropError(
                    "DuplicateTensor", f"tensor {name!r} is in two files", name=name
                )
            self._entries[name], self._where[name] = entry, file

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor.

        Raises
        ------
        InteropError
            ``MissingTensor``.
        """
        if name not in self._entries:
            raise InteropError("MissingTensor", f"tensor {name!r} is missing", name=name)
        return tuple(self._entries[name]["shape"])

    def read(self, name: str, dtype: np.dtype[Any]) -> NDArray[Any]:
        """A new array of ``dtype``; a float64 tensor is rounded once when that is float32.

        Raises
        ------
        InteropError
            ``MissingTensor``, or ``TensorType`` for anything but float64, 32, 16 and bfloat16.
        """
        shape = self.shape(name)
        entry = self._entries[name]
        start, end = entry["data_offsets"]
        offset = self._data_start[self._where[name]] + start
        stored = "<u2" if entry["dtype"] == "BF16" else WIDE_TYPES.get(entry["dtype"])
        if stored is None:
            raise InteropError(
                "TensorType",
                f"tensor {name!r} is of type {entry['dtype']}; F64, F32, F16 and BF16 can be read",
                name=name,
                dtype=entry["dtype"],
            )
        count = (end - start) // np.dtype(stored).itemsize
        values = np.fromfile(self._where[name], stored, count, offset=offset)
        if entry["dtype"] == "BF16":
            values = (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
        with np.errstate(over="ignore"):  # what overflows is refused as a value that is no number
            return values.astype(dtype, copy=False).reshape(shape)


def _files(folder: Path) -> list[Path]:
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        problem = "no model.safetensors (files of pickled tensors are not read)"
        raise InteropError(
            "NotAModel", f"{str(folder)!r}: {problem}", path=str(folder), problem=problem
        )
    names = read_json(index).get("weight_map")
    if not isinstance(names, dict) or not all(
        isinstance(name, str) and Path(name).name == name for name in names.values()
    ):
        raise corrupt(index, "weight_map must map tensors to files of the same folder")
    return [folder / name for name in sorted(set(names.values()))]
