"""Offsets, widths and the arithmetic that must behave like 64-bit fields."""

import pytest

from llmcy.checkpoint import DType, Role
from llmcy.checkpoint.layout import SIZE_MAX, U64_MAX, byte_length, checked_sum, span_ends
from llmcy.errors import CheckpointError


@pytest.mark.feature("K08")
def test_widths():
    assert [(t.label, t.width, int(t)) for t in DType] == [
        ("u8", 1, 1),
        ("u32", 4, 2),
        ("f64", 8, 3),
    ]


def test_role_labels_and_tags():
    assert [(int(role), role.label) for role in Role] == [
        (1, "LiteralToken"),
        (2, "BpePairs"),
        (3, "ModelParameter"),
        (4, "OptimizerFirstMoment"),
        (5, "OptimizerSecondMoment"),
    ]


@pytest.mark.feature("P01")
def test_exercise_embedding_span():
    assert 2874 + byte_length(DType.F64, (5, 4)) == 3034
    assert span_ends(2874, [byte_length(DType.F64, (5, 4)), 32]) == [3034, 3066]


@pytest.mark.feature("P02")
def test_exercise_three_pairs():
    assert byte_length(DType.U32, (3, 2)) == 24


def test_scalars_and_empty_shapes():
    assert byte_length(DType.F64, ()) == 8
    assert byte_length(DType.U32, (0, 2)) == 0
    assert byte_length(DType.U8, (0, U64_MAX)) == 0


@pytest.mark.feature("K06")
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [
        (DType.U8, (2**32, 2**32)),
        (DType.U8, (2**63, 4, 0)),  # overflow is an error even if a later dimension is 0
        (DType.F64, (2**61,)),
        (DType.U32, (U64_MAX,)),
    ],
)
def test_products_overflow(dtype, shape):
    with pytest.raises(CheckpointError) as caught:
        byte_length(dtype, shape, "it")
    assert (caught.value.kind, caught.value.context) == ("SizeOverflow", "it")


@pytest.mark.feature("K06")
def test_largest_sizes_fit():
    assert byte_length(DType.U8, (U64_MAX,)) == SIZE_MAX == U64_MAX
    assert byte_length(DType.F64, (2**61 - 1,)) == 2**64 - 8
    assert checked_sum((2**63, 2**63 - 1), "it") == U64_MAX


@pytest.mark.feature("K06")
def test_sums_overflow():
    with pytest.raises(CheckpointError) as caught:
        checked_sum((1, 2**63, 2**63, 0), "it")
    assert (caught.value.kind, caught.value.context) == ("SizeOverflow", "it")
    with pytest.raises(CheckpointError) as caught:
        span_ends(U64_MAX, [0, 1])
    assert caught.value.context == "payload offset"
