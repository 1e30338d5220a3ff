"""The short way of a call: the same bits as the long one, and nothing done when it declines."""

import numpy as np
import pytest

from llmcy import _kernels, set_num_threads
from llmcy._kernels import front
from llmcy._threads import num_threads
from llmcy.kernels import Recording, matmul
from tests.oracle.scalar import assert_same_bits
from tests.strategies import filled

SHAPES = [
    ((1, 1), (1, 1)), ((16, 16), (16, 16)), ((5, 0), (0, 3)), ((0, 4), (4, 3)),
    ((3, 100), (100, 7)), ((2, 3, 4), (4, 5)), ((2, 1, 3, 4), (4, 5)),
    ((70, 60), (60, 90)), ((2, 50, 40), (40, 60)),
    ((2, 3, 4), (2, 4, 5)), ((3, 2, 1, 4), (3, 2, 4, 5)), ((0, 3, 4), (0, 4, 5)),
    ((5, 64, 64), (5, 64, 32)),
]  # fmt: skip


def short(a, b, ta=False, tb=False, out=None, n_threads=1):
    return front.try_matmul(a, b, ta, tb, out, n_threads)


def turned(x, swap):
    return np.ascontiguousarray(np.swapaxes(x, -1, -2)) if swap else x


@pytest.fixture
def long_way():
    """matmul without its short way."""

    def call(*arguments, **options):
        front.close(True)
        try:
            return matmul(*arguments, **options)
        finally:
            front.close(False)

    return call


@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_both_ways_lead_to_the_same_bits(isa, dtype, long_way, shapes, ta, tb):
    rng = np.random.default_rng(3)
    a, b = turned(filled(rng, shapes[0], dtype), ta), turned(filled(rng, shapes[1], dtype), tb)
    expected = long_way(a, b, transpose_a=ta, transpose_b=tb)
    for n_threads in (1, 2, 3, 7, None):
        actual = short(a, b, ta, tb, None, n_threads)
        assert_same_bits(actual, expected)
        out = np.full_like(expected, np.nan)
        assert short(a, b, ta, tb, out, n_threads) is out
        assert_same_bits(out, expected)


def test_results_of_the_short_way_own_fresh_memory(dtype):
    a = np.ones((80, 80), dtype)
    first, second = short(a, a), short(a, a)
    assert not np.may_share_memory(first, second)
    assert first.flags.c_contiguous
    assert first.flags.writeable


class Marked(np.ndarray):
    pass


A, B = np.ones((4, 4)), np.ones((4, 4))
READ_ONLY = np.ones((4, 4))
READ_ONLY.flags.writeable = False
ODD = np.frombuffer(bytearray(4 * 4 * 8 + 1), np.uint8)[1:].view(np.float64).reshape(4, 4)
DECLINED = {
    "a list": ([[1.0]], B),
    "a subclass": (A.view(Marked), B),
    "integers": (A.astype(np.int64), B.astype(np.int64)),
    "two dtypes": (A, B.astype(np.float32)),
    "foreign byte order": (A.astype(">f8"), B.astype(">f8")),
    "gaps": (np.ones((4, 8))[:, ::2], B),
    "misaligned": (ODD, B),
    "a vector": (A[0], B),
    "b a vector": (A, B[0]),
    "b per matrix of others": (np.ones((2, 4, 4)), np.ones((3, 4, 4))),
    "b with fewer axes": (np.ones((3, 2, 4, 4)), np.ones((2, 4, 4))),
    "b with more axes": (np.ones((2, 4, 4)), np.ones((3, 2, 4, 4))),
    "b per matrix, sizes apart": (np.ones((2, 4, 4)), np.ones((2, 3, 4))),
    "sizes apart": (A, np.ones((3, 4))),
    "a flag of another type": (A, B, 0),
    "no thread": (A, B, False, False, None, 0),
    "a thread by truth": (A, B, False, False, None, True),
    "too many threads": (A, B, False, False, None, 257),
    "threads beyond a machine word": (A, B, False, False, None, 2**80),
    "threads by half": (A, B, False, False, None, 1.5),
    "out of another shape": (A, B, False, False, np.ones((4, 5))),
    "out with more axes": (A, B, False, False, np.ones((1, 4, 4))),
    "out of another dtype": (A, B, False, False, np.ones((4, 4), np.float32)),
    "out read-only": (A, B, False, False, READ_ONLY),
    "out is a": (A, B, False, False, A),
    "out is b": (A, B, False, False, B),
}


@pytest.mark.parametrize("arguments", DECLINED.values(), ids=DECLINED.keys())
def test_other_calls_are_declined_and_change_nothing(arguments):
    before = [np.array(x) for x in arguments if isinstance(x, np.ndarray)]
    assert short(*arguments) is None
    for x, old in zip((x for x in arguments if isinstance(x, np.ndarray)), before, strict=True):
        assert np.asarray(x).tobytes() == old.tobytes()


def test_who_listens_to_compiled_calls_gets_the_single_steps(dtype):
    a = np.ones((4, 4), dtype)
    with Recording(2**20) as recording:
        assert short(a, a) is None
        out = matmul(a, a)
    calls = recording.finish()
    assert len(calls) == 1
    assert short(a, a) is not None
    a *= 2
    assert calls.run()
    assert (out == 16).all()


def test_the_kernel_is_the_one_of_the_instruction_set_in_use(dtype):
    """What a change leads to is looked up at the next call, not kept from before it."""
    a = np.ones((2, 2), dtype)
    assert short(a, a) is not None
    front.use(None, None)
    try:
        with pytest.raises(AttributeError):
            short(a, a)
    finally:
        front.use(_kernels.active.f64, _kernels.active.f32)
    assert short(a, a) is not None


def test_threads_are_those_of_the_process_unless_named():
    before = num_threads()
    a = np.ones((90, 90))
    try:
        for n_threads in (1, 3):
            set_num_threads(n_threads)
            assert_same_bits(short(a, a, n_threads=None), np.full((90, 90), 90.0))
        front.set_threads(0)  # as at the start of a process: nobody has asked yet
        assert short(a, a, n_threads=None) is None
    finally:
        set_num_threads(before)
