"""Token means: one division, merged pieces, and failures that change nothing."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcy.data import BatchDocument, MiniBatchConfig, MiniBatchEpoch, Partition, WindowConfig
from llmcy.data.token_mean import (
    TokenContribution,
    TokenMeanAccumulator,
    average_token_contributions,
)
from llmcy.errors import DataError

BIG = 1.7e308


def gathered(*contributions, width=1):
    accumulator = TokenMeanAccumulator(width)
    for loss, gradient in contributions:
        accumulator.add(TokenContribution(loss, gradient))
    return accumulator


def batch_of_width_two():
    documents = [BatchDocument("d", Partition.TRAIN, [0, 1, 2, 3])]
    epoch = MiniBatchEpoch.build(Partition.TRAIN, documents, WindowConfig(2, 1), MiniBatchConfig(5))
    return epoch.batches[0]


def test_the_divisor_is_the_number_of_real_tokens():
    batch = batch_of_width_two()
    assert batch.token_count == 4
    mean = average_token_contributions(
        batch, [TokenContribution(x, [x, -x]) for x in (1.0, 2.0, 3.0, 5.0)]
    )
    assert (mean.loss, mean.gradient, mean.token_count) == (2.75, (2.75, -2.75), 4)


def test_merging_adds_raw_sums():
    left, right = gathered((1.0, [1.0])), gathered((2.0, [0.0]), (6.0, [8.0]))
    left.merge(right)
    assert left.finish().loss == 3.0
    assert left.finish().gradient == (3.0,)
    assert (left.token_count, right.token_count) == (3, 2)


def overflowed_count():
    accumulator = gathered((0.0, [0.0]))
    accumulator._token_count = 2**64 - 1
    accumulator.add(TokenContribution(0.0, [0.0]))


@pytest.mark.parametrize(
    ("make", "kind", "fields"),
    [
        (lambda: TokenContribution(math.inf, []), "NonFiniteLoss", {"value": math.inf}),
        (lambda: TokenContribution(1.0, []), "ZeroGradientWidth", {}),
        (
            lambda: TokenContribution(1.0, [0.0, -math.inf, math.nan]),
            "NonFiniteGradient",
            {"coordinate": 1, "value": -math.inf},
        ),
        (lambda: TokenMeanAccumulator(0), "ZeroGradientWidth", {}),
        (lambda: TokenMeanAccumulator(-1), "InvalidSize", {"name": "gradient_width", "value": -1}),
        (
            lambda: gathered((0.0, [1.0, 2.0])),
            "GradientWidthMismatch",
            {"expected": 1, "actual": 2},
        ),
        (
            lambda: TokenMeanAccumulator(1).merge(TokenMeanAccumulator(3)),
            "GradientWidthMismatch",
            {"expected": 1, "actual": 3},
        ),
        (overflowed_count, "TokenCountOverflow", {}),
        (
            lambda: gathered((BIG, [BIG]), (BIG, [BIG])),
            "NonFiniteAccumulation",
            {"quantity": "loss", "coordinate": None},
        ),
        (
            lambda: gathered((0.0, [1.0, -BIG]), (0.0, [1.0, -BIG]), width=2),
            "NonFiniteAccumulation",
            {"quantity": "gradient", "coordinate": 1},
        ),
        (lambda: TokenMeanAccumulator(2).finish(), "EmptyAccumulator", {}),
        (
            lambda: average_token_contributions(
                batch_of_width_two(), [TokenContribution(1.0, [1.0])] * 3
            ),
            "ContributionCountMismatch",
            {"expected": 4, "actual": 3},
        ),
    ],
)
def test_errors(make, kind, fields):
    with pytest.raises(DataError) as caught:
        make()
    assert (caught.value.kind, caught.value.fields) == (kind, fields)


@pytest.mark.parametrize(
    "bad",
    [
        lambda a: a.add(TokenContribution(0.0, [BIG, BIG])),
        lambda a: a.add(TokenContribution(BIG, [0.0, 0.0])),
        lambda a: a.add(TokenContribution(0.0, [1.0])),
        lambda a: a.merge(gathered((0.0, [BIG, 0.0]), width=2)),
    ],
)
def test_a_failure_changes_nothing(bad):
    accumulator = gathered((BIG, [BIG, 1.0]), width=2)
    before = accumulator.finish()
    with pytest.raises(DataError):
        bad(accumulator)
    assert accumulator.finish() == before


@given(st.lists(st.integers(-1000, 1000), min_size=1, max_size=30), st.integers(0, 30))
def test_exact_for_small_whole_numbers_however_it_is_cut(values, cut):
    left = gathered(*((v, [v]) for v in values[:cut]))
    left.merge(gathered(*((v, [v]) for v in values[cut:])))
    mean = left.finish()
    assert mean.loss == float(Fraction(sum(values), len(values)))
    assert mean.gradient == (mean.loss,)
