"""Attention and its gradients against the slow scalar form, bit for bit."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcy import _kernels, kernels
from llmcy.errors import DTypeError, RangeError, ShapeError
from llmcy.kernels.attention import attention, attention_backward
from tests.oracle import attention as oracle
from tests.oracle.scalar import assert_same_bits
from tests.strategies import filled, finite_flavours, seeds

THREADS = (1, 2, 3, 7)

shapes = st.tuples(
    st.integers(0, 3), st.integers(0, 12), st.sampled_from([1, 2, 3]), st.sampled_from([1, 2, 6, 5])
)


def inputs(seed, B, T, H, w, dtype, flavour):
    rng = np.random.default_rng(seed)
    q, k, v, d_out = (filled(rng, (B, T, H * w), dtype, flavour) for _ in range(4))
    return d_out, q, k, v


@settings(max_examples=40)
@given(shape=shapes, seed=seeds, flavour=finite_flavours)
def test_forward_and_backward_equal_the_scalar_form(dtype, shape, seed, flavour):
    H = shape[2]
    d_out, q, k, v = inputs(seed, *shape, dtype, flavour)
    expected = oracle.attention(q, k, v, H)
    gradients = oracle.attention_backward(d_out, q, k, v, H)
    for name in _kernels.available_isas():
        with _kernels.use_isa(name), _kernels.smallest_chunks():
            for n_threads in THREADS:
                assert_same_bits(attention(q, k, v, H, n_threads=n_threads), expected)
                actual = attention_backward(d_out, q, k, v, H, n_threads=n_threads)
                for a, e in zip(actual, gradients, strict=True):
                    assert_same_bits(a, e)


# (B, T, H, w): several blocks of queries, widths around the vectors of every instruction set
@pytest.mark.parametrize("shape", [(1, 70, 1, 8), (2, 33, 2, 18), (1, 131, 1, 3)], ids=str)
def test_longer_rows(dtype, shape):
    H = shape[2]
    d_out, q, k, v = inputs(5, *shape, dtype, "plain")
    expected = oracle.attention(q, k, v, H)
    gradients = oracle.attention_backward(d_out, q, k, v, H)
    for name in _kernels.available_isas():
        with _kernels.use_isa(name), _kernels.smallest_chunks():
            for n_threads in (1, 3):
                assert_same_bits(attention(q, k, v, H, n_threads=n_threads), expected)
                actual = attention_backward(d_out, q, k, v, H, n_threads=n_threads)
                for a, e in zip(actual, gradients, strict=True):
                    assert_same_bits(a, e)


# (B, T, H, K, w): K heads of keys and values for H of queries
@pytest.mark.parametrize(
    "shape",
    [
        (2, 9, 4, 2, 6),
        (1, 35, 3, 1, 4),
        (3, 5, 6, 3, 18),
        (2, 1, 2, 1, 2),
        (0, 3, 4, 2, 2),
        (2, 0, 4, 2, 2),
    ],
    ids=str,
)
def test_shared_heads_equal_the_scalar_form(dtype, shape):
    B, T, H, K, w = shape
    rng = np.random.default_rng(11)
    d_out, q = (filled(rng, (B, T, H * w), dtype, "plain") for _ in range(2))
    k, v = (filled(rng, (B, T, K * w), dtype, "plain") for _ in range(2))
    expected = oracle.attention(q, k, v, H, K)
    gradients = oracle.attention_backward(d_out, q, k, v, H, K)
    for name in _kernels.available_isas():
        with _kernels.use_isa(name), _kernels.smallest_chunks():
            for n in THREADS:
                assert_same_bits(attention(q, k, v, H, n_kv_heads=K, n_threads=n), expected)
                actual = attention_backward(d_out, q, k, v, H, n_kv_heads=K, n_threads=n)
                for a, e in zip(actual, gradients, strict=True):
                    assert_same_bits(a, e)


def test_a_shared_head_is_a_head_repeated_whose_gradients_are_added(isa, dtype):
    rng = np.random.default_rng(12)
    d_out, q = (filled(rng, (2, 40, 6 * 4), dtype, "plain") for _ in range(2))
    k, v = (filled(rng, (2, 40, 2 * 4), dtype, "plain") for _ in range(2))

    def repeated(x):
        return np.repeat(x.reshape(2, 40, 2, 1, 4), 3, axis=3).reshape(2, 40, 24)

    wide = (q, repeated(k), repeated(v), 6)
    assert_same_bits(attention(q, k, v, 6, n_kv_heads=2), attention(*wide))
    d_q, d_k, d_v = attention_backward(d_out, q, k, v, 6, n_kv_heads=2)
    wide_q, *wide_kv = attention_backward(d_out, *wide)
    assert_same_bits(d_q, wide_q)
    for d_shared, d_wide in zip((d_k, d_v), wide_kv, strict=True):
        shares = d_wide.reshape(2, 40, 2, 3, 4)
        total = (shares[:, :, :, 0] + shares[:, :, :, 1]) + shares[:, :, :, 2]
        assert_same_bits(d_shared, total.reshape(2, 40, 8))


@settings(max_examples=30)
@given(shape=shapes, seed=seeds, cut=st.integers(0, 12))
def test_a_position_depends_on_its_own_row_and_prefix_only(dtype, shape, seed, cut):
    B, T, H, _ = shape
    _, q, k, v = inputs(seed, *shape, dtype, "plain")
    whole = attention(q, k, v, H)
    n = min(cut, T)
    for b in range(B):
        part = attention(*(np.ascontiguousarray(x[b : b + 1, :n]) for x in (q, k, v)), H)
        assert_same_bits(part, whole[b : b + 1, :n])


def test_values_behind_the_mask_are_never_read(isa, dtype):
    _, q, k, v = inputs(3, 1, 70, 2, 20, dtype, "plain")
    clean = attention(q, k, v, 2)
    for x in (q, k, v):
        x[:, 41:] = np.nan
    assert_same_bits(attention(q, k, v, 2)[:, :41], clean[:, :41])


def test_products_that_overflow_behind_the_mask_do_not_matter(isa, dtype):
    d_out, q, k, v = inputs(4, 1, 21, 1, 6, dtype, "plain")
    large = 2.0 ** (np.finfo(dtype).maxexp * 0.6)
    for early, late in ((d_out, v), (q, k)):
        early[:, 0] *= large
        late[:, -1] *= large
    gradients = oracle.attention_backward(d_out, q, k, v, 1)
    assert np.isfinite(gradients).all()
    for actual, expected in zip(attention_backward(d_out, q, k, v, 1), gradients, strict=True):
        assert_same_bits(actual, expected)
    assert_same_bits(attention(q, k, v, 1), oracle.attention(q, k, v, 1))


def test_equal_scores_share_the_weight_exactly(isa, dtype):
    v = np.arange(8, dtype=dtype).reshape(1, 4, 2)
    q = np.zeros_like(v)
    out = attention(q, q, v, 1)[0].tolist()
    assert [out[0], out[1], out[3]] == [[0.0, 1.0], [1.0, 2.0], [3.0, 4.0]]


@pytest.mark.parametrize("T", [2, 18, 50])
def test_probabilities_are_those_of_the_causal_softmax(isa, dtype, T):
    """With the unit matrix as values the result is the matrix of probabilities."""
    _, q, k, _ = inputs(8, 1, T, 1, T, dtype, "plain")
    scale = dtype.type(1) / np.sqrt(dtype.type(T))
    scores = kernels.scale(kernels.matmul(q, k, transpose_b=True), float(scale))
    unit = np.eye(T, dtype=dtype)[None]
    assert_same_bits(attention(q, k, unit, 1), kernels.causal_softmax(scores))
    d_p = filled(np.random.default_rng(1), (1, T, T), dtype)
    d_r = kernels.scale(
        kernels.causal_softmax_backward(kernels.causal_softmax(scores), d_p), float(scale)
    )
    d_q, _, _ = attention_backward(d_p, q, k, unit, 1)
    assert_same_bits(d_q, kernels.matmul(d_r, k))


BAD_CALLS = [
    (lambda q: attention(q[0], q[0], q[0], 1), ShapeError, "q"),
    (lambda q: attention(q, q[:1], q, 2), ShapeError, "k"),
    (lambda q: attention(q, q, q.astype(np.float32), 2), DTypeError, "v"),
    (lambda q: attention(q, q, q, 4), ShapeError, "q"),
    (lambda q: attention(q, q, q, 0), RangeError, "n_heads"),
    (lambda q: attention(q, q, q, 2, out=q), DTypeError, "out"),
    (lambda q: attention(q, q, q, 2, n_kv_heads=0), RangeError, "n_kv_heads"),
    (lambda q: attention(q, q, q, 3, n_kv_heads=2), RangeError, "n_kv_heads"),
    (lambda q: attention(q, q, q, 2, n_kv_heads=1), ShapeError, "k"),
    (lambda q: attention(q, q[..., :3].copy(), q, 2, n_kv_heads=1), ShapeError, "v"),
    (lambda q: attention_backward(q[:1], q, q, q, 2), ShapeError, "d_out"),
]


@pytest.mark.parametrize(("call", "error", "name"), BAD_CALLS)
def test_bad_arguments_are_named(call, error, name):
    with pytest.raises(error) as caught:
        call(np.ones((2, 3, 6)))
    assert caught.value.name == name
