"""The gradient norm against the slow scalar form and against numbers of the published contract."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcy import kernels
from llmcy.errors import DTypeError, NonFiniteError
from tests.kernels.check import everywhere
from tests.oracle import grad_norm as oracle
from tests.strategies import filled, flavours, seeds

GOLDEN = Path(__file__).parents[1] / "golden" / "clip.json"

shapes = st.lists(st.integers(0, 70), max_size=2).map(tuple)


def check_norm(arrays):
    everywhere(
        lambda n: np.array(kernels.grad_norm(arrays, n_threads=n)),
        np.array(oracle.grad_norm(arrays)),
    )


@settings(max_examples=40)
@given(sizes=st.lists(shapes, max_size=4), seed=seeds, flavour=flavours)
def test_equal_to_the_scalar_form(dtype, sizes, seed, flavour):
    rng = np.random.default_rng(seed)
    check_norm([filled(rng, shape, dtype, flavour) for shape in sizes])


@pytest.mark.parametrize("sizes", [(4096,), (4095, 1, 1), (1, 40000), (32768, 40001, 7)], ids=str)
@pytest.mark.parametrize("growing", [False, True])
def test_long_arrays(dtype, sizes, growing):
    rng = np.random.default_rng(len(sizes))
    arrays = [filled(rng, size, dtype) for size in sizes]
    if growing:  # a new maximum again and again
        arrays = [np.sort(np.abs(x)) for x in arrays]
    check_norm(arrays)


@settings(max_examples=40)
@given(
    data=st.data(),
    exponent=st.sampled_from([0, -23, -24, -25, -26, -27, -540, -1060]),
    bits=st.integers(1, 20),
    largest=st.integers(1, 40),
)
def test_squares_that_lie_between_two_numbers(data, exponent, bits, largest):
    """Terms are odd multiples of half of the sum's last bit, if that is an even power of two."""
    rng = np.random.default_rng(data.draw(seeds))
    x = np.ldexp(rng.integers(0, 2**bits, 5000).astype(np.float64), exponent)
    x[data.draw(st.integers(0, 600)) :][:largest] = 1.0
    check_norm([x[:1300], x[1300:]])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 511, 512, 700, 2047])
def test_a_bad_value_anywhere_in_a_long_array(isa, value, place):
    x = np.random.default_rng(1).standard_normal(2048)
    x[place] = value
    with pytest.raises(NonFiniteError, match=f"flat index {place}$"):
        kernels.grad_norm([x])


@settings(max_examples=15)
@given(
    sizes=st.lists(st.sampled_from([0, 1, 255, 256, 4095, 4096, 4097, 9000]), max_size=24),
    seed=seeds,
)
def test_blocks_that_span_arrays(sizes, seed):
    rng = np.random.default_rng(seed)
    check_norm([filled(rng, size, np.float32) for size in sizes])


def test_blocks_of_a_very_long_array():
    """numpy accumulates along an axis from left to right: the chains of whole blocks."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal(700 * 4096).astype(np.float32)
    squares = np.square(x.astype(np.float64)).reshape(-1, 4096)
    blocks = np.add.accumulate(squares, axis=1)[:, -1]
    expected = float(np.sqrt(np.add.accumulate(blocks)[-1]))

    def norm(n_threads):
        return np.array(kernels.grad_norm([x[:99], x[99:]], n_threads=n_threads).norm)

    everywhere(norm, np.array(expected))


def of_bits(words):
    return np.array([int(word, 16) for word in words], np.uint64).view(np.float64)


# ---- sums that a search has left ---------------------------------------------------------------
BLOCK_SIZES = st.lists(st.sampled_from([0, 1, 256, 4095, 4096, 4097, 9000, 70000]), max_size=9)


def searched(arrays, n_threads=1):
    sums = kernels.BlockSums(arrays)
    assert len(sums) == len(arrays)
    found = []
    for index, x in enumerate(arrays):
        search, arguments = sums.search(index, x, n_threads)
        found.append(search(*arguments))
    return sums, found


@settings(max_examples=20)
@given(sizes=BLOCK_SIZES, seed=seeds)
def test_known_sums_leave_the_bits(sizes, seed):
    rng = np.random.default_rng(seed)
    arrays = [filled(rng, size, np.float32) for size in sizes]

    def norm(n_threads):
        sums, found = searched(arrays, n_threads)
        assert found == [-1] * len(arrays)
        return np.array(kernels.grad_norm(arrays, sums=sums, n_threads=n_threads))

    everywhere(norm, np.array(kernels.grad_norm(arrays)))


def test_known_sums_are_used(isa):
    arrays = [np.ones(5000, np.float32), np.ones(9000, np.float32)]
    sums, _ = searched(arrays)
    arrays[1][4000:8000] = 2.0  # against the rule; so much of it lies in blocks of this array
    assert kernels.grad_norm(arrays, sums=sums).norm < kernels.grad_norm(arrays).norm
    copies = [x.copy() for x in arrays]
    for others in (copies, arrays[:1], [*arrays, arrays[0]]):
        assert kernels.grad_norm(others, sums=sums) == kernels.grad_norm(others)


@settings(max_examples=40)
@given(data=st.data())
def test_a_search_that_sums_finds_the_same_place(isa, data):
    sizes = data.draw(BLOCK_SIZES.filter(any))
    arrays = [np.ones(size, np.float32) for size in sizes]
    which = data.draw(st.sampled_from([i for i, size in enumerate(sizes) if size]))
    for place in data.draw(st.lists(st.integers(0, sizes[which] - 1), min_size=1, max_size=3)):
        arrays[which][place] = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    _, found = searched(arrays)
    assert found == [kernels.first_non_finite(x) for x in arrays]


@pytest.mark.parametrize("case", json.loads(GOLDEN.read_text())["cases"], ids=range(6))
def test_published_norms_and_scales(isa, case):
    ceiling, norm, scale = of_bits([case["ceiling"], case["norm"], case["scale"]]).tolist()
    found = kernels.grad_norm([of_bits(case["gradients"])])
    assert found.norm == norm
    clipped = found.top > ceiling / found.root
    assert ((ceiling / found.top) / found.root if clipped else 1.0) == scale


@pytest.mark.feature("A19")
def test_splitting_an_array_leaves_the_bits(isa, dtype):
    x = filled(np.random.default_rng(3), 10000, dtype, "plain")
    whole = kernels.grad_norm([x])
    for cut in (0, 1, 63, 64, 4096, 9999):
        assert kernels.grad_norm([x[:cut], x[cut:]]) == whole


@pytest.mark.feature("A21")
def test_zeros_have_norm_zero(isa, dtype):
    assert kernels.grad_norm([]) == (0.0, 1.0, 0.0)
    assert kernels.grad_norm([np.zeros(100, dtype), -np.zeros((3, 3), dtype)])[::2] == (0.0, 0.0)


def test_nothing_overflows_or_underflows(isa):
    huge = kernels.grad_norm([np.full(9, 1.7e308)])
    assert huge == (1.7e308, 3.0, sys.float_info.max)
    tiny = kernels.grad_norm([np.full(16, 5e-324)])
    assert tiny == (5e-324, 4.0, 2e-323)
    assert kernels.grad_norm([np.full(4, 3e38, np.float32)]).norm == 2 * float(np.float32(3e38))
    assert kernels.grad_norm([np.full(4, 1e-45, np.float32)]).norm == 2 * float(np.float32(1e-45))


@pytest.mark.feature("A20")
def test_no_joined_copy_is_made():
    import tracemalloc

    arrays = [np.ones(100_000) for _ in range(3)]
    kernels.grad_norm(arrays)
    tracemalloc.start()
    kernels.grad_norm(arrays)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000


def test_bad_values_and_arrays_are_named(dtype):
    good = np.ones((2, 3), dtype)
    bad = np.ones((2, 3), dtype)
    bad[1, 1] = np.inf
    with pytest.raises(NonFiniteError, match=r"arrays\[1\] holds inf at flat index 4"):
        kernels.grad_norm([good, bad])
    with pytest.raises(NonFiniteError) as caught:
        kernels.grad_norm([bad], names=["final_norm.gain"])
    error = caught.value
    assert (error.name, error.index, error.value) == ("final_norm.gain", 4, np.inf)
    other = np.ones(2, np.float32 if dtype == np.float64 else np.float64)
    with pytest.raises(DTypeError, match=r"arrays\[1\] must have dtype"):
        kernels.grad_norm([good, other])
    with pytest.raises(DTypeError, match=r"arrays\[0\] must be C-contiguous"):
        kernels.grad_norm([good.T])
