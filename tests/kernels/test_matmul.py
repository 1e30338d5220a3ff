"""Matrix products against the slow fold, bit for bit."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcy import _kernels
from llmcy.errors import DTypeError, RangeError, ShapeError
from llmcy.kernels.matmul import matmul, matmul_d_weight
from tests.oracle import matmul as oracle
from tests.oracle.scalar import assert_same_bits
from tests.strategies import filled, flavours, seeds

THREADS = (1, 2, 3, 7)
sizes = st.one_of(st.integers(0, 4), st.integers(1, 20))


def on_every_isa_and_thread_count(function):
    for name in _kernels.available_isas():
        with _kernels.use_isa(name), _kernels.smallest_chunks():
            for n_threads in THREADS:
                yield function(n_threads)


def stored(x, transposed):
    return np.ascontiguousarray(np.swapaxes(x, -1, -2)) if transposed else x


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("transpose_a", [False, True])
@settings(max_examples=40)
@given(
    m=sizes, n=sizes, k=sizes, batch=st.sampled_from([(), (1,), (3,), (2, 2), (0,)]),
    shared=st.booleans(), seed=seeds, flavour=flavours,
)  # fmt: skip
def test_matmul_is_the_fold_in_ascending_order(
    dtype, transpose_a, transpose_b, m, n, k, batch, shared, seed, flavour
):
    rng = np.random.default_rng(seed)
    a = filled(rng, (*batch, m, k), dtype, flavour)
    b = filled(rng, ((k, n) if shared else (*batch, k, n)), dtype, flavour)
    expected = oracle.matmul(a, b)
    a, b = stored(a, transpose_a), stored(b, transpose_b)
    for actual in on_every_isa_and_thread_count(
        lambda t: matmul(a, b, transpose_a=transpose_a, transpose_b=transpose_b, n_threads=t)
    ):
        assert_same_bits(actual, expected)


def sequential(a, b):
    """The fold over k of whole outer products: the same chains, faster for larger sizes."""
    total = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    for k in range(a.shape[1]):
        product = a[:, k : k + 1].astype(np.float64) * b[k].astype(np.float64)
        total = fused_rows(product, total) if a.dtype == np.float32 else total + product
    return total + total.dtype.type(0)  # a fused sum that underflows to -0 is stored as +0


def fused_rows(product, total):
    """Round the binary64 ``product`` plus ``total`` once to binary32 (two-sum, round to odd)."""
    c = total.astype(np.float64)
    s = product + c
    t = s - product
    error = (product - (s - t)) + (c - t)
    bits = s.view(np.int64)
    away = np.signbit(error) == np.signbit(s)
    odd = np.where((error != 0) & (bits & 1 == 0), np.where(away, bits + 1, bits - 1), bits)
    return odd.view(np.float64).astype(np.float32)


def test_float32_sums_on_a_boundary_are_rounded_once(isa):
    """acc + x * y whose binary64 sum is halfway between two float32 values, the exact one not."""
    x = (1 + np.arange(20000) / 2.0**23).astype(np.float32)
    y = (1 / x.astype(np.float64)).astype(np.float32)
    near = np.abs(x.astype(np.float64) * y - 1)
    pick = (near > 0) & (near < 2.0**-30)
    x, y = x[pick], y[pick]
    assert len(x) > 100
    starts = np.float32([1, -1, 1 + 2.0**-23, -1 - 2.0**-23, 2.0**-100])
    scales = np.float32([2.0**-12, -(2.0**-12), 2.0**-62])  # x * y near half a unit of the start
    for start in starts:
        for scale in scales:
            a = np.stack([np.full_like(x, start), x * np.abs(scale)], axis=1)
            for column in range(0, len(x), 50):
                b = np.stack([np.ones(9, np.float32), np.full(9, y[column] * scale)]).astype("f4")
                row = a[column : column + 1]
                assert_same_bits(matmul(row, b), oracle.matmul(row, b))


@pytest.mark.parametrize("n", [1, 9, 40])
def test_no_sum_is_minus_zero(isa, dtype, n):
    """Fused, a product too small for the type leaves -0 behind; it is stored as +0."""
    tiny = 2.0 ** (np.finfo(dtype).minexp * 0.8)
    a = np.full((2, 3), -tiny, dtype)
    assert not np.signbit(matmul(a, np.full((3, n), tiny, dtype))).any()
    d_y = np.full((2, 4, n), tiny, dtype)
    assert not np.signbit(matmul_d_weight(np.full((2, 4, 5), -tiny, dtype), d_y)).any()


# around the tile sizes of every instruction set, the packing thresholds and the block of k
LARGER = [
    (1, 1, 700), (8, 32, 65), (9, 33, 128), (47, 31, 16), (64, 64, 64), (100, 100, 100),
    (130, 70, 513), (5, 1100, 40), (203, 17, 1030), (97, 129, 257), (300, 3, 20), (2, 259, 300),
    (1, 1100, 40), (2, 1030, 33), (96, 96, 96), (44, 70, 41), (46, 96, 20), (50, 48, 60),
    (7, 64, 20), (9, 70, 30), (11, 96, 17), (13, 128, 40), (16, 64, 9), (40, 140, 800),
    (33, 130, 769),
]  # fmt: skip


@pytest.mark.parametrize("shape", LARGER, ids=str)
@pytest.mark.parametrize("layout", ["NN", "NT", "TN", "TT"])
def test_matmul_of_larger_sizes(isa, dtype, layout, shape):
    m, n, k = shape
    rng = np.random.default_rng(m * n + k)
    a, b = filled(rng, (m, k), dtype), filled(rng, (k, n), dtype)
    expected = sequential(a, b)
    ta, tb = (letter == "T" for letter in layout)
    for n_threads in THREADS:
        actual = matmul(
            stored(a, ta), stored(b, tb), transpose_a=ta, transpose_b=tb, n_threads=n_threads
        )
        assert_same_bits(actual, expected)


@pytest.mark.parametrize("size", [0, 1, 1000, 300_000])
def test_asking_for_other_memory_leaves_the_bits(isa, dtype, size):
    rng = np.random.default_rng(size)
    a, b = filled(rng, (130, 200), dtype), filled(rng, (200, 150), dtype)
    expected = matmul(a, b)
    ahead = np.zeros(size, dtype)
    for n_threads in THREADS:
        out = np.empty_like(expected)
        _kernels.for_dtype(np.dtype(dtype)).matmul.matmul(
            a, b, out, 1, 130, 150, 200, False, False, True, n_threads, ahead
        )
        assert_same_bits(out, expected)


@pytest.mark.parametrize("n", [16, 32, 64])  # a strip of wide tiles in one of the two types
@pytest.mark.parametrize(("m", "k"), [(3, 0), (6, 9), (40, 33), (65, 64)])
@pytest.mark.parametrize("layout", ["NN", "TN"])
@pytest.mark.parametrize("shared", [False, True])
def test_batches_of_narrow_products(isa, dtype, layout, m, k, n, shared):
    """Whole products follow each other in one loop; threads also begin and end inside of one."""
    rng = np.random.default_rng(m * n + k)
    a, b = filled(rng, (5, m, k), dtype), filled(rng, (k, n) if shared else (5, k, n), dtype)
    expected = np.stack([sequential(a[p], b if shared else b[p]) for p in range(5)])
    ta = layout == "TN"
    with _kernels.smallest_chunks():
        for n_threads in THREADS:
            actual = matmul(stored(a, ta), b, transpose_a=ta, n_threads=n_threads)
            assert_same_bits(actual, expected)


@settings(max_examples=40)
@given(
    rows=st.integers(0, 4), positions=st.integers(0, 9), n_in=sizes, n_out=sizes,
    seed=seeds, flavour=flavours, accumulate=st.booleans(),
)  # fmt: skip
def test_weight_gradient_folds_rows_after_positions(
    dtype, rows, positions, n_in, n_out, seed, flavour, accumulate
):
    rng = np.random.default_rng(seed)
    x = filled(rng, (rows, positions, n_in), dtype, flavour)
    d_y = filled(rng, (rows, positions, n_out), dtype, flavour)
    carried = filled(rng, (n_in, n_out), dtype, flavour) if accumulate else None
    expected = oracle.matmul_d_weight(x, d_y, carried)
    for actual in on_every_isa_and_thread_count(
        lambda t: matmul_d_weight(
            x, d_y, out=None if carried is None else carried.copy(), accumulate=accumulate,
            n_threads=t,
        )
    ):  # fmt: skip
        assert_same_bits(actual, expected)


# (B, T, I, O) with short and long rows, one of them longer than a block of k, many of which make
# several blocks
LARGER_GRADIENTS = [
    (3, 2, 33, 70), (5, 16, 40, 65), (2, 64, 100, 100), (3, 40, 9, 300), (2, 1300, 20, 40),
    (1, 300, 64, 33), (4, 31, 17, 16), (2, 33, 130, 1100),
    (2, 600, 800, 20), (3, 3, 800, 20), (2, 95, 30, 40), (2, 96, 30, 40),
    (20, 64, 70, 100), (9, 130, 34, 40), (300, 4, 20, 40), (200, 7, 20, 40), (150, 8, 34, 90),
    (50, 23, 34, 70), (50, 24, 34, 70),
]  # fmt: skip


@pytest.mark.parametrize("shape", LARGER_GRADIENTS, ids=str)
def test_weight_gradient_of_larger_sizes(isa, dtype, shape):
    rows, positions, n_in, n_out = shape
    rng = np.random.default_rng(sum(shape))
    x = filled(rng, (rows, positions, n_in), dtype)
    d_y = filled(rng, (rows, positions, n_out), dtype)
    expected = np.zeros((n_in, n_out), dtype)
    for b in range(rows):
        expected = expected + sequential(np.ascontiguousarray(x[b].T), d_y[b])
    for n_threads in THREADS:
        assert_same_bits(matmul_d_weight(x, d_y, n_threads=n_threads), expected)


@settings(max_examples=30)
@given(cuts=st.lists(st.integers(0, 6), max_size=4), positions=st.integers(1, 40), seed=seeds)
def test_micro_batches_of_whole_rows_equal_the_whole_batch(dtype, cuts, positions, seed):
    rng = np.random.default_rng(seed)
    x = filled(rng, (6, positions, 11), dtype)
    d_y = filled(rng, (6, positions, 19), dtype)
    whole = matmul_d_weight(x, d_y)
    carried = np.zeros((11, 19), dtype)
    edges = [0, *sorted(cuts), 6]
    for lo, hi in itertools.pairwise(edges):
        matmul_d_weight(x[lo:hi], d_y[lo:hi], out=carried, accumulate=True)
    assert_same_bits(carried, whole)


def test_weight_gradient_is_not_one_flat_chain():
    """The two levels can be seen: rounding the first row's sum away from the second's start."""
    x = np.array([[[1.0], [2.0**-53]], [[2.0**-53], [2.0**-53]]])
    two_levels = matmul_d_weight(x, np.ones_like(x))
    flat = matmul_d_weight(x.reshape(1, 4, 1), np.ones((1, 4, 1)))
    assert two_levels[0, 0] == 1.0 + 2.0**-52
    assert flat[0, 0] == 1.0


def test_leading_axes_of_the_weight_gradient_are_rows_in_order(dtype):
    rng = np.random.default_rng(7)
    x, d_y = filled(rng, (2, 3, 4, 5), dtype), filled(rng, (2, 3, 4, 6), dtype)
    assert_same_bits(
        matmul_d_weight(x, d_y), matmul_d_weight(x.reshape(6, 4, 5), d_y.reshape(6, 4, 6))
    )


def test_results_go_into_out():
    a, b = np.ones((2, 3)), np.ones((3, 4))
    out = np.full((2, 4), np.nan)
    assert matmul(a, b, out=out) is out
    assert (out == 3).all()


BAD_PRODUCTS = [
    (lambda a, b: matmul([[1.0]], b), DTypeError, "NotAnArray", "a"),
    (lambda a, b: matmul(a.astype(np.int64), b), DTypeError, "UnsupportedDType", "a"),
    (lambda a, b: matmul(a, b.astype(np.float32)), DTypeError, "UnsupportedDType", "b"),
    (lambda a, b: matmul(a[:, ::2], b), DTypeError, "NotContiguous", "a"),
    (lambda a, b: matmul(a[0], b), ShapeError, "ShapeMismatch", "a"),
    (lambda a, b: matmul(a, b[0]), ShapeError, "ShapeMismatch", "b"),
    (lambda a, b: matmul(a, b, transpose_b=True), ShapeError, "ShapeMismatch", "b"),
    (lambda a, b: matmul(np.ones((2, 2, 4)), np.ones((3, 4, 4))), ShapeError, "ShapeMismatch", "b"),
    (lambda a, b: matmul(a, b, out=np.empty((2, 6))), ShapeError, "ShapeMismatch", "out"),
    (lambda a, b: matmul(a, b, transpose_a=1), RangeError, "OutOfRange", "transpose_a"),
    (lambda a, b: matmul(b[:, :4].copy(), a.T.copy(), out=a), ShapeError, "ShapeMismatch", "out"),
    (lambda a, b: matmul_d_weight(a, b, accumulate=True), ShapeError, "ShapeMismatch", "d_y"),
    (lambda a, b: matmul_d_weight(a, a, accumulate=True), ShapeError, "ShapeMismatch", "out"),
    (lambda a, b: matmul_d_weight(a[0], a[0]), ShapeError, "ShapeMismatch", "x"),
]


@pytest.mark.parametrize(("call", "error", "kind", "name"), BAD_PRODUCTS)
def test_bad_arguments_are_named(call, error, kind, name):
    a, b = np.ones((2, 4)), np.ones((4, 5))
    with pytest.raises(error) as caught:
        call(a, b)
    assert caught.value.kind == kind
    assert caught.value.name == name


def test_out_may_not_overlap_an_operand():
    a = np.eye(3)
    before = a.copy()
    with pytest.raises(DTypeError) as caught:
        matmul(a, np.ones((3, 3)), out=a)
    assert caught.value.kind == "Overlap"
    assert_same_bits(a, before)
