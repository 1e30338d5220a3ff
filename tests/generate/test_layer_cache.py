"""One attention layer, one new token: the bits of the full layer, and every refusal."""

from collections.abc import Callable

import numpy as np
import pytest

from llmcy.errors import CacheError
from llmcy.generate.layer_cache import LayerKVCache, PreparedTokens, forward_incremental
from llmcy.nn import Attention, Linear, Parameter, RotaryTable
from llmcy.tape import Tensor, no_grad
from tests.oracle.scalar import assert_same_bits
from tests.strategies import filled

SWAP = np.array([[0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0], [0, 1, 0, 0]], np.float64)


def layer(
    query: np.ndarray | None = None, theta: float = 100.0, positions: int = 4, heads: int = 2
) -> Attention:
    """The published one-layer fixture: identity projections, an output that swaps the heads."""
    eye = np.eye(4) if query is None else query
    width = eye.shape[0]
    names = ("query", "key", "value")
    parts = [Linear(Parameter(f"{name}.weight", eye)) for name in names]
    output = SWAP if width == 4 else np.eye(width)
    table = RotaryTable(positions, width // heads, theta, eye.dtype.name)
    parts.append(Linear(Parameter("output.weight", output)))
    return Attention(*parts, n_heads=heads, n_kv_heads=heads, rotary=table)


def test_a_layer_step_by_step(isa: str) -> None:
    attention = layer()
    x = filled(np.random.default_rng(37), (2, 4, 4), np.float64)
    with no_grad():
        whole = attention(Tensor(x)).data
    cache = LayerKVCache(attention, 2, 4)
    for t in range(4):
        found = forward_incremental(attention, x[:, t : t + 1], cache)
        assert_same_bits(found.output[:, 0], whole[:, t])
        assert (found.position, found.cache_length, len(cache)) == (t, t + 1, t + 1)
        assert (found.full_prefix_rows, found.incremental_rows, found.reused_rows) == (t + 1, 1, t)
        assert found.weights.shape == (2, 2, 1, t + 1)
        np.testing.assert_allclose(found.weights.sum(-1), 1.0, rtol=1e-12)
        assert_same_bits(cache.keys()[:, :, t : t + 1], found.key)
        assert_same_bits(cache.values()[:, :, t : t + 1], found.value)
        assert_same_bits(found.merged.reshape(2, 2, 1, 2), found.heads)
    # values are not rotated, keys are
    assert_same_bits(cache.values(), x.reshape(2, 4, 2, 2).transpose(0, 2, 1, 3).copy())
    assert not np.array_equal(cache.keys()[:, :, 1:], cache.values()[:, :, 1:])
    assert cache.is_full
    cache.reset()
    assert (len(cache), cache.keys().shape) == (0, (2, 2, 0, 2))
    again = forward_incremental(attention, x[:, :1], cache)
    assert_same_bits(again.output[:, 0], whole[:, 0])


ERRORS: list[tuple[Callable[[Attention], tuple[Attention, np.ndarray]], str]] = [
    (lambda a: (a, np.ones((1, 4))), "InputRank"),
    (lambda a: (a, np.ones((1, 2, 4))), "SingleTokenRequired"),
    (lambda a: (a, np.ones((2, 1, 4))), "InputBatchMismatch"),
    (lambda a: (a, np.ones((1, 1, 6))), "InputWidthMismatch"),
    (lambda a: (layer(np.eye(6), heads=3), np.ones((1, 1, 4))), "CacheModelWidthMismatch"),
    (lambda a: (layer(heads=1), np.ones((1, 1, 4))), "CacheHeadCountMismatch"),
    (lambda a: (other_table(a, 4), np.ones((1, 1, 4))), "CacheHeadWidthMismatch"),
    (lambda a: (layer(), np.ones((1, 1, 4))), "CacheLayerMismatch"),
    (lambda a: (changed(a), np.ones((1, 1, 4))), "CacheLayerRevisionMismatch"),
    (lambda a: (other_table(a), np.ones((1, 1, 4))), "CacheRopeMismatch"),
    (lambda a: (a, np.full((1, 1, 4), np.nan)), "Autodiff"),
    (lambda a: (a, np.full((1, 1, 4), 1e200)), "Autodiff"),
]


def changed(attention: Attention) -> Attention:
    weight = attention.value.weight
    weight.assign(weight.data)
    return attention


def other_table(attention: Attention, width: int = 2) -> Attention:
    attention.rotary = RotaryTable(4, width, 101.0, "float64")
    return attention


@pytest.mark.parametrize(("prepare", "kind"), ERRORS, ids=[kind for _, kind in ERRORS])
def test_a_refused_token_leaves_the_cache_alone(
    prepare: Callable[[Attention], tuple[Attention, np.ndarray]], kind: str
) -> None:
    attention = layer()
    cache = LayerKVCache(attention, 1, 4)
    forward_incremental(attention, np.ones((1, 1, 4)), cache)
    before = [array.tobytes() for array in cache.storage]
    other, x = prepare(attention)
    with pytest.raises(CacheError) as caught:
        forward_incremental(other, x, cache)
    assert caught.value.kind == kind
    if kind == "CacheLayerRevisionMismatch":
        error = caught.value
        assert (error.parameter, error.cache, error.layer) == ("value", 0, 1)
    assert len(cache) == 1
    assert [array.tobytes() for array in cache.storage] == before


def test_a_full_cache_says_so_last() -> None:
    attention = layer()
    cache = LayerKVCache(attention, 1, 1)
    forward_incremental(attention, np.ones((1, 1, 4)), cache)
    with pytest.raises(CacheError) as caught:
        forward_incremental(attention, np.ones((1, 1, 4)), cache)
    assert (caught.value.kind, caught.value.cause.kind) == ("Cache", "Full")
    assert caught.value.cause.capacity == 1
    with pytest.raises(CacheError) as caught:
        forward_incremental(layer(), np.ones((1, 1, 4)), cache)
    assert caught.value.kind == "CacheLayerMismatch"


def test_sequences_of_different_lengths() -> None:
    cache = LayerKVCache(layer(), 3, 4)
    rows, positions = np.array([0, 2, 2]), np.array([0, 0, 1])
    ones = np.ones((3, 4))
    prepared = PreparedTokens(rows, positions, ones, 2 * ones)
    assert cache.accepts(prepared)
    cache.commit(prepared)
    assert not cache.accepts(prepared)
    assert cache.lengths.tolist() == [1, 0, 2]
    assert cache.keys()[:, 0, :, 0].tolist() == [[1, 0], [0, 0], [1, 1]]
    assert cache.values()[:, 1, :, 1].tolist() == [[2, 0], [0, 0], [2, 2]]
    assert not cache.is_full
    for array in cache.storage:
        assert not array.flags.writeable


def test_a_cache_too_large_for_memory() -> None:
    attention = layer(positions=2**20)
    with pytest.raises(CacheError) as caught:
        LayerKVCache(attention, 2**40, 2**20)
    assert caught.value.kind in ("AllocationFailed", "ElementCountOverflow")
    with pytest.raises(CacheError) as caught:
        LayerKVCache(attention, 2**45, 2**20)
    assert caught.value.kind == "ElementCountOverflow"
