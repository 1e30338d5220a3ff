"""Where and by how much two arrays of floats differ, counted in units in the last place.

The distance of two floats is the number of steps from one to the other along all floats of their
type in order; -0 and +0 are one step apart, so a distance of 0 means equal bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["TensorDifference", "compare_tensors", "ulp_distance"]

CHUNK = 2**20  # elements that have a distance in memory at once
UNSIGNED = {"float64": np.uint64, "float32": np.uint32}
Index = tuple[int, ...]


@dataclass(frozen=True)
class TensorDifference:
    """How one tensor differs between two states.

    Attributes
    ----------
    name
        The tensor.
    dtypes, shapes
        Of both sides.  When they are not the same there are no values to compare and everything
        below is zero or None.
    differing
        Elements whose bits differ.
    first_index, first_values
        The first such element in C order, and its two values.
    largest_ulps, largest_index, largest_values
        The largest distance, the first element that has it, and its two values.
    histogram
        ``(least, count)`` for each class of distances that occurs: 0, 1, 2-3, 4-7, 8-15 and so on;
        ``least`` is the smallest distance of the class.
    """

    name: str
    dtypes: tuple[str, str]
    shapes: tuple[Index, Index]
    differing: int = 0
    first_index: Index | None = None
    first_values: tuple[float, float] | None = None
    largest_ulps: int = 0
    largest_index: Index | None = None
    largest_values: tuple[float, float] | None = None
    histogram: tuple[tuple[int, int], ...] = ()

    @property
    def comparable(self) -> bool:
        """True when both sides have the same type and shape."""
        return self.dtypes[0] == self.dtypes[1] and self.shapes[0] == self.shapes[1]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; floats also as hexadecimal text, which loses nothing."""
        record: dict[str, Any] = {
            "name": self.name,
            "dtypes": list(self.dtypes),
            "shapes": [list(shape) for shape in self.shapes],
            "comparable": self.comparable,
        }
        if self.comparable:
            record |= {
                "differing": self.differing,
                "first": _place(self.first_index, self.first_values),
                "largest_ulps": self.largest_ulps,
                "largest": _place(self.largest_index, self.largest_values),
                "histogram": [{"least_ulps": low, "count": n} for low, n in self.histogram],
            }
        return record

    def lines(self) -> Iterator[str]:
        """For people: what differs, where first, how far at most, and the histogram."""
        if not self.comparable:
            yield (
                f"{self.name}: {self.dtypes[0]} {list(self.shapes[0])} against "
                f"{self.dtypes[1]} {list(self.shapes[1])}"
            )
            return
        size = sum(count for _, count in self.histogram)
        yield f"{self.name}: {self.differing} of {size} values differ"
        yield f"  first    {_shown(self.first_index, self.first_values)}"
        largest = _shown(self.largest_index, self.largest_values)
        yield f"  largest  {largest}: {self.largest_ulps} ulp"
        classes = (f"{class_label(low)}: {count}" for low, count in self.histogram)
        yield f"  ulps     {', '.join(classes)}"


def class_label(least: int) -> str:
    """``0``, ``1``, ``2-3``, ``4-7``: the distances of a histogram's class."""
    return str(least) if least < 2 else f"{least}-{2 * least - 1}"


def ulp_distance(a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
    """Steps between the floats of ``a`` and ``b``, element by element.

    Parameters
    ----------
    a, b
        Same shape, both float64 or both float32.

    Returns
    -------
    ndarray of uint64 or uint32
        0 where the bits are equal.
    """
    unsigned = UNSIGNED[a.dtype.name]
    low, high = _ordered(a, unsigned), _ordered(b, unsigned)
    return np.asarray(np.maximum(low, high) - np.minimum(low, high))


def compare_tensors(name: str, a: NDArray[Any], b: NDArray[Any]) -> TensorDifference | None:
    """The difference of two tensors; None when type, shape and every bit are the same."""
    dtypes, shapes = (a.dtype.name, b.dtype.name), (a.shape, b.shape)
    if dtypes[0] != dtypes[1] or shapes[0] != shapes[1] or dtypes[0] not in UNSIGNED:
        if dtypes[0] == dtypes[1] and shapes[0] == shapes[1] and a.tobytes() == b.tobytes():
            return None
        return TensorDifference(name, dtypes, shapes)
    flat_a, flat_b = a.reshape(-1), b.reshape(-1)
    first, largest, largest_at, differing = -1, 0, -1, 0
    counts = np.zeros(8 * a.itemsize + 1, np.int64)  # by the bits a distance needs
    bounds = np.array([2**k for k in range(8 * a.itemsize)], UNSIGNED[dtypes[0]])
    for start in range(0, flat_a.size, CHUNK):
        distance = ulp_distance(flat_a[start : start + CHUNK], flat_b[start : start + CHUNK])
        if not distance.any():
            counts[0] += distance.size
            continue
        counts += np.bincount(
            np.searchsorted(bounds, distance, side="right"), minlength=counts.size
        )
        differing += int(np.count_nonzero(distance))
        if first < 0:
            first = start + int(np.argmax(distance != 0))
        at = int(np.argmax(distance))
        if int(distance[at]) > largest:
            largest, largest_at = int(distance[at]), start + at
    if differing == 0:
        return None
    return TensorDifference(
        name,
        dtypes,
        shapes,
        differing,
        _index(first, a.shape),
        (float(flat_a[first]), float(flat_b[first])),
        largest,
        _index(largest_at, a.shape),
        (float(flat_a[largest_at]), float(flat_b[largest_at])),
        tuple((2 ** (k - 1) if k else 0, int(n)) for k, n in enumerate(counts) if n),
    )


def _ordered(values: NDArray[Any], unsigned: Any) -> NDArray[Any]:
    """Bits mapped so that unsigned order is the order of the floats, -0 just below +0."""
    bits = np.ascontiguousarray(values).view(unsigned)
    sign = unsigned(1 << (8 * bits.itemsize - 1))
    return np.asarray(np.where(bits & sign, ~bits, bits | sign))


def _index(flat: int, shape: Index) -> Index:
    return tuple(int(i) for i in np.unravel_index(flat, shape)) if shape else ()


def _place(index: Index | None, values: tuple[float, float] | None) -> dict[str, Any] | None:
    if index is None or values is None:
        return None
    # JSON has no NaN or infinity: the hexadecimal text always says it all
    return {"index": list(index), "hex": [value.hex() for value in values]} | (
        {"values": list(values)} if np.isfinite(values).all() else {}
    )


def _shown(index: Index | None, values: tuple[float, float] | None) -> str:
    if index is None or values is None:
        return "-"
    a, b = values
    return f"{list(index)}: {a!r} ({a.hex()}) against {b!r} ({b.hex()})"
