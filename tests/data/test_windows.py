"""Causal windows: the table of small cases, the tail, and the rules on any document."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcy.data import CausalWindows, WindowConfig
from llmcy.errors import DataError

DOCUMENT = [0, 41, 42, 43, 44, 1]


@pytest.mark.parametrize(
    ("tokens", "context", "stride", "starts", "tail"),
    [
        (DOCUMENT, 3, 1, [0, 1, 2], (3, [43, 44, 1])),
        (DOCUMENT, 3, 2, [0, 2], (4, [44, 1])),
        ([0, 61, 1], 3, 1, [], (0, [0, 61, 1])),
        ([0, 1], 1, 1, [0], (1, [1])),
        ([], 3, 1, [], None),
        ([], 1, 2**64 - 1, [], None),
        ([0, 10, 11, 1], 3, 5, [0], None),
        ([7, 8, 9], 1, 2**64 - 1, [0], None),
        ([7, 8, 9], 2**64 - 2, 1, [], (0, [7, 8, 9])),
    ],
)
def test_small_documents(tokens, context, stride, starts, tail):
    windows = CausalWindows(tokens, WindowConfig(context, stride))
    assert [w.start for w in windows] == starts
    assert len(windows) == len(starts)
    for window in windows:
        s = window.start
        assert window.inputs.tolist() == tokens[s : s + context]
        assert window.targets.tolist() == tokens[s + 1 : s + 1 + context]
    left = windows.incomplete_tail
    assert (None if left is None else (left.start, left.token_ids.tolist())) == tail


def test_iterator_counts_down_repeats_and_stays_finished():
    windows = CausalWindows(DOCUMENT, WindowConfig(3, 1))
    pass_one = iter(windows)
    assert len(pass_one) == 3
    assert next(pass_one).start == 0
    assert len(pass_one) == 2
    assert [w.start for w in pass_one] == [1, 2]
    assert len(pass_one) == 0
    for _ in range(3):
        with pytest.raises(StopIteration):
            next(pass_one)
    assert [w.start for w in windows] == [0, 1, 2]


def test_windows_are_a_sequence():
    windows = CausalWindows(DOCUMENT, WindowConfig(3, 1))
    assert windows[-1].start == 2
    assert [w.start for w in windows[1:]] == [1, 2]
    with pytest.raises(IndexError):
        windows[3]


def test_windows_are_read_only_views():
    tokens = np.array(DOCUMENT)
    window = CausalWindows(tokens, WindowConfig(3, 1))[0]
    assert np.shares_memory(window.inputs, tokens)
    with pytest.raises(ValueError, match="read-only"):
        window.inputs[0] = 9


@pytest.mark.parametrize(
    ("context", "stride", "kind"),
    [
        (0, 0, "ZeroContextLength"),
        (0, 1, "ZeroContextLength"),
        (2**64 - 1, 0, "ZeroStride"),
        (1, 0, "ZeroStride"),
        (2**64 - 1, 1, "ContextLengthOverflow"),
        (2**64, 1, "InvalidSize"),
        (-1, 1, "InvalidSize"),
        (True, 1, "InvalidSize"),
        (1, 2.0, "InvalidSize"),
    ],
)
def test_bad_configurations(context, stride, kind):
    with pytest.raises(DataError) as caught:
        WindowConfig(context, stride)
    assert caught.value.kind == kind


@given(
    n=st.integers(0, 40),
    context=st.integers(1, 12),
    stride=st.one_of(st.integers(1, 14), st.just(2**63), st.just(2**64 - 1)),
)
def test_windows_and_tail_follow_the_rule(n, context, stride):
    tokens = list(range(100, 100 + n))
    windows = CausalWindows(tokens, WindowConfig(context, stride))
    starts = [s for s in range(0, n, stride) if s + context + 1 <= n]
    assert [w.start for w in windows] == starts
    for w in windows:
        assert w.inputs.tolist() == tokens[w.start : w.start + context]
        assert w.targets.tolist()[:-1] == w.inputs.tolist()[1:]
    tail = windows.incomplete_tail
    next_start = len(starts) * stride
    assert (tail is None) == (next_start >= n)
    if tail is not None:
        assert tail.token_ids.tolist() == tokens[next_start:]
        assert len(tail.token_ids) < context + 1
