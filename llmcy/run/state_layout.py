"""Where the tensors of a state file lie: the ``.safetensors`` library says it, once for a set.

The library builds a whole file in memory, which takes longer than writing it.  Its header depends
on the names, dtypes and shapes alone, apart from the metadata.  So it is given zeros of these
shapes the first time, and what it made of them is the form of every file with such tensors.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save as save_tensors

__all__ = ["METADATA_KEY", "Layout", "layout_of"]

METADATA_KEY = "llmcy"
ALIGNMENT = 8
CHARACTERS = "".join(map(chr, range(0x20, 0x7F)))  # all that canonical JSON consists of
Listed = tuple[tuple[str, str, tuple[int, ...]], ...]


@dataclass(frozen=True)
class Layout:
    """The form of a file.

    Attributes
    ----------
    before, after
        The header's text on both sides of the metadata, without its length and padding.
    order
        Names of the tensors; they follow the header without a gap.
    """

    before: bytes
    after: bytes
    order: tuple[str, ...]

    def header(self, metadata: str) -> bytes:
        """Everything before the first tensor.

        Parameters
        ----------
        metadata
            Canonical JSON.
        """
        text = self.before + json.dumps(metadata).encode("ascii") + self.after
        text += b" " * (-len(text) % ALIGNMENT)
        return len(text).to_bytes(8, "little") + text


def layout_of(tensors: Mapping[str, NDArray[Any]]) -> Layout | None:
    """The layout of a file with tensors of these names, dtypes and shapes.

    None when the library's header has another form than is known here; then only the library can
    make the file.
    """
    return _layout(tuple((name, a.dtype.name, a.shape) for name, a in tensors.items()))


@lru_cache(maxsize=8)
def _layout(listed: Listed) -> Layout | None:
    sizes = [np.dtype(dtype).itemsize * int(np.prod(shape)) for _, dtype, shape in listed]
    zeros = np.zeros(max(sizes), np.uint8)
    data = save_tensors(
        {
            name: zeros[:size].view(dtype).reshape(shape)
            for (name, dtype, shape), size in zip(listed, sizes, strict=True)
        },
        metadata={METADATA_KEY: CHARACTERS},
    )
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length].rstrip(b" ")
    marked = json.dumps(CHARACTERS).encode("ascii")
    before, _, after = header.partition(marked)
    table = json.loads(header)
    table.pop("__metadata__")
    order = sorted(table, key=lambda name: table[name]["data_offsets"][0])
    places = dict(zip((name for name, _, _ in listed), sizes, strict=True))
    position = 0
    for name in order:
        if table[name]["data_offsets"] != [position, position + places[name]]:
            return None
        position += places[name]
    layout = Layout(before, after, tuple(order))
    same = layout.header(CHARACTERS) == data[: 8 + length] and len(data) == 8 + length + position
    return layout if same else None
