"""One-token attention over a cache against the slow scalar form and against full attention."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcy import kernels
from llmcy.errors import DTypeError, RangeError, ShapeError
from tests.kernels.check import everywhere
from tests.oracle import attention_step as oracle
from tests.oracle.scalar import assert_same_bits
from tests.strategies import filled, finite_flavours, seeds


def filled_cache(rng, batch, kv_heads, capacity, width, lengths, dtype, flavour):
    """A cache with ``lengths`` filled positions, and the same keys and values as plain lists."""
    keys, values = kernels.empty_cache(batch, kv_heads, capacity, width, dtype)
    plain = []
    for row, length in enumerate(lengths):
        k = filled(rng, (length, kv_heads * width), dtype, flavour)
        v = filled(rng, (length, kv_heads * width), dtype, flavour)
        kernels.cache_append(
            k, v, keys, values, np.full(length, row), np.arange(length, dtype=np.int64)
        )
        plain.append((k, v))
    return keys, values, plain


def head(x, h, width):
    return x[..., h * width : (h + 1) * width]


@settings(max_examples=40)
@given(
    seed=seeds,
    lengths=st.lists(st.integers(0, 40), min_size=1, max_size=3),
    heads=st.sampled_from([(1, 1), (2, 2), (4, 2), (3, 1), (9, 3)]),
    width=st.sampled_from([1, 2, 6, 16, 18]),
    flavour=finite_flavours,
)
def test_a_step_equals_the_scalar_form(dtype, seed, lengths, heads, width, flavour):
    rng = np.random.default_rng(seed)
    n_heads, kv_heads = heads
    n = len(lengths)
    keys, values, plain = filled_cache(rng, n, kv_heads, 41, width, lengths, dtype, flavour)
    q = filled(rng, (n, n_heads * width), dtype, flavour)
    new_key, new_value = (filled(rng, (n, kv_heads * width), dtype, flavour) for _ in range(2))
    rows = rng.permutation(n)
    counts = np.array(lengths)[rows]
    expected = np.zeros_like(q)
    probabilities = np.zeros((n, n_heads, int(counts.max()) + 1), dtype)
    for i, row in enumerate(rows):
        for h in range(n_heads):
            g = h // (n_heads // kv_heads)
            k = np.concatenate([head(plain[row][0], g, width), head(new_key[i : i + 1], g, width)])
            v = np.concatenate(
                [head(plain[row][1], g, width), head(new_value[i : i + 1], g, width)]
            )
            out, p = oracle.attention_step(head(q[i], h, width), k, v)
            expected[i, h * width : (h + 1) * width] = out
            probabilities[i, h, : len(p)] = p

    def step(n_threads):
        weights = np.zeros_like(probabilities)
        out = kernels.attention_step(
            q, new_key, new_value, keys, values, rows, counts, n_heads,
            weights=weights, n_threads=n_threads,
        )  # fmt: skip
        return out, weights

    everywhere(step, (expected, probabilities))


@pytest.mark.parametrize(("length", "width"), [(1, 8), (33, 64), (150, 20), (64, 32)])
def test_every_position_has_the_bits_of_full_attention(isa, dtype, length, width):
    rng = np.random.default_rng(2)
    q, k, v = (filled(rng, (1, length, 2 * width), dtype) for _ in range(3))
    whole = kernels.attention(q, k, v, 2)[0]
    keys, values = kernels.empty_cache(3, 2, length + 5, width, dtype)
    keys[[0, 2]] = np.nan  # other sequences are never read
    values[[0, 2]] = np.nan
    row = np.array([1])
    for t in range(length):
        at = np.array([t])
        token = (k[0, t : t + 1], v[0, t : t + 1])
        out = kernels.attention_step(q[0, t : t + 1], *token, keys, values, row, at, 2)
        assert_same_bits(out[0], whole[t])
        kernels.cache_append(*token, keys, values, row, at)
    stored = kernels.cached_keys(keys, length)[1]
    assert_same_bits(stored.transpose(1, 0, 2).reshape(length, -1), k[0])
    assert_same_bits(values[1, :, :length].transpose(1, 0, 2).reshape(length, -1), v[0])


def arguments():
    keys, values = kernels.empty_cache(2, 1, 4, 2, np.float64)
    one = np.ones((1, 2))
    return [np.ones((1, 4)), one, one, keys, values, np.array([0]), np.array([3]), 2]


BAD = [
    (0, np.ones((1, 3)), ShapeError, "q"),
    (0, np.ones((1, 4), np.float32), DTypeError, "values"),
    (1, np.ones((2, 2)), ShapeError, "new_key"),
    (2, np.ones((1, 4)), ShapeError, "new_value"),
    (3, np.ones((2, 1, 4, 2)), ShapeError, "keys"),
    (4, np.ones((2, 4, 2)), ShapeError, "values"),
    (5, np.array([2]), RangeError, "rows"),
    (5, np.array([-1]), RangeError, "rows"),
    (5, np.array([0.0]), DTypeError, "rows"),
    (6, np.array([4]), RangeError, "lengths"),
    (6, np.array([1, 1]), ShapeError, "lengths"),
    (7, 0, RangeError, "n_heads"),
]


@pytest.mark.parametrize(("place", "value", "error", "name"), BAD)
def test_bad_arguments_are_named(place, value, error, name):
    given_arguments = arguments()
    given_arguments[place] = value
    with pytest.raises(error) as caught:
        kernels.attention_step(*given_arguments)
    assert caught.value.name == name


def test_appending_checks_before_it_writes():
    _, key, value, keys, values, rows, _, _ = arguments()
    for bad_rows, bad_positions in (([2], [0]), ([0], [4]), ([0], [-1])):
        with pytest.raises(RangeError):
            kernels.cache_append(
                key, value, keys, values, np.array(bad_rows), np.array(bad_positions)
            )
    values.flags.writeable = False
    with pytest.raises(DTypeError) as caught:
        kernels.cache_append(key, value, keys, values, rows, np.array([0]))
    assert caught.value.kind == "ReadOnly"
    assert not keys.any()
