"""Distances in units in the last place, against walking from float to float."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcy.run import tensor_difference
from llmcy.run.tensor_difference import compare_tensors, ulp_distance


def steps_between(a, b, kind):
    """Walk from the smaller float to the larger; -0 to +0 is a step of its own."""
    a, b = kind(a), kind(b)
    if (a, math.copysign(1, a)) > (b, math.copysign(1, b)):
        a, b = b, a
    steps = 0
    while not (a == b and np.signbit(a) == np.signbit(b)):
        if a == 0 and np.signbit(a):
            a = kind(0.0)
        else:
            a = np.nextafter(a, kind(np.inf))
            if a == 0:
                a = kind(-0.0)
        steps += 1
    return steps


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_distance_is_the_number_of_floats_between(kind):
    tiny = np.finfo(kind).smallest_subnormal
    pairs = [
        (1.0, 1.0),
        (0.0, -0.0),
        (tiny, -tiny),
        (3 * tiny, -2 * tiny),
        (1.0, 1.0 + 5 * np.finfo(kind).eps),
        (1.0, 1.0 - 5 * np.finfo(kind).eps),
        (-2.0, -2.0 - 8 * np.finfo(kind).eps),
    ]
    for a, b in pairs:
        for x, y in ((a, b), (b, a)):
            actual = ulp_distance(np.array([x], kind), np.array([y], kind))
            assert int(actual[0]) == steps_between(x, y, kind)


def test_distance_of_the_farthest_floats_does_not_wrap():
    for kind, unsigned in ((np.float64, 2**64), (np.float32, 2**32)):
        info = np.finfo(kind)
        (distance,) = ulp_distance(np.array([info.min], kind), np.array([info.max], kind))
        patterns_beyond = 2 * (2**info.nmant)  # infinities and NaNs, on both sides
        assert int(distance) == unsigned - patterns_beyond - 1


@given(st.lists(st.tuples(st.floats(width=64), st.integers(0, 5)), min_size=1, max_size=40))
def test_comparison_against_counting_one_by_one(pairs):
    a = np.array([value for value, _ in pairs])
    b = a.view(np.int64).copy()
    b += np.array([step for _, step in pairs])  # within a sign, bits count in steps
    b = b.view(np.float64)
    found = compare_tensors("t", a, b)
    distances = [
        abs(int(x) - int(y)) if (x < 0) == (y < 0) else None
        for x, y in zip(a.view(np.int64), b.view(np.int64), strict=True)
    ]
    if None in distances:
        return
    if not any(distances):
        assert found is None
        return
    assert found.differing == sum(d > 0 for d in distances)
    assert found.first_index == (next(i for i, d in enumerate(distances) if d),)
    assert found.largest_ulps == max(distances)
    assert found.largest_index == (distances.index(max(distances)),)
    counts = {}
    for d in distances:
        least = 0 if d == 0 else 2 ** (d.bit_length() - 1)
        counts[least] = counts.get(least, 0) + 1
    assert dict(found.histogram) == counts


def test_pieces_make_no_difference(monkeypatch):
    rng = np.random.default_rng(3)
    a = rng.standard_normal((7, 5, 3)).astype(np.float32)
    b = a.copy()
    b[2, 1, 0] = np.nextafter(b[2, 1, 0], np.float32(9))
    b[6, 4, 2] *= np.float32(1.5)
    whole = compare_tensors("t", a, b)
    monkeypatch.setattr(tensor_difference, "CHUNK", 4)
    assert compare_tensors("t", a, b) == whole
    assert whole.first_index == (2, 1, 0)
    assert whole.largest_index == (6, 4, 2)
    assert sum(count for _, count in whole.histogram) == 105
    assert whole.first_values == (float(a[2, 1, 0]), float(b[2, 1, 0]))


def test_types_and_shapes_are_compared_first():
    a = np.zeros((2, 3))
    assert compare_tensors("t", a, a.copy()) is None
    for other in (np.zeros((3, 2)), np.zeros((2, 3), np.float32)):
        found = compare_tensors("t", a, other)
        assert not found.comparable
        assert found.shapes[1] == other.shape
        assert found.to_dict()["comparable"] is False
        assert list(found.lines()) == [
            f"t: float64 [2, 3] against {other.dtype} {list(other.shape)}"
        ]


def test_other_types_are_compared_by_their_bytes():
    a = np.arange(4, dtype=np.int64)
    assert compare_tensors("ids", a, a.copy()) is None
    assert compare_tensors("ids", a, a + 1) is not None


def test_a_scalar_and_an_empty_tensor():
    found = compare_tensors("s", np.array(1.0), np.array(2.0))
    assert (found.first_index, found.differing) == ((), 1)
    assert compare_tensors("e", np.zeros((0, 3)), np.zeros((0, 3))) is None


def test_not_a_number_is_compared_by_its_bits_and_fits_json():
    import json

    a = np.array([np.nan, 1.0])
    assert compare_tensors("n", a, a.copy()) is None
    found = compare_tensors("n", a, np.array([1.0, 1.0]))
    record = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert record["first"]["hex"] == ["nan", "0x1.0000000000000p+0"]
