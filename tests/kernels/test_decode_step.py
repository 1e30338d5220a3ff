"""A whole decoder for single tokens against the slow scalar form and the single kernels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcy import _kernels, kernels
from llmcy.errors import DTypeError, RangeError, ShapeError
from llmcy.kernels import BlockWeights, DecoderWeights, DecodeStep
from tests.kernels.check import everywhere
from tests.oracle import decode_step as oracle
from tests.oracle.scalar import assert_same_bits
from tests.strategies import filled, finite_flavours, seeds

EPS = 1e-6
POSITIONS = 36


def decoder(rng, dtype, flavour, *, d, heads, kv_heads, width, hidden, vocab, layers, tied=False):
    def draw(*shape):
        return filled(rng, shape, dtype, flavour)

    blocks = tuple(
        BlockWeights(
            draw(d), draw(d, heads * width), draw(d, kv_heads * width), draw(d, kv_heads * width),
            draw(heads * width, d), draw(d), draw(d, hidden), draw(d, hidden), draw(hidden, d),
        )
        for _ in range(layers)
    )  # fmt: skip
    table = draw(vocab, d)
    cos, sin = kernels.rope_table(POSITIONS, width, 10000.0, np.dtype(dtype).name)
    return DecoderWeights(table, blocks, draw(d), table if tied else draw(vocab, d), cos, sin)


def filled_caches(rng, weights, batch, kv_heads, capacity, lengths):
    """Storage and lengths of every layer, and the same keys and values as plain arrays a row."""
    dtype, width = weights.table.dtype, 2 * weights.cos.shape[1]
    keys, values, plain = [], [], []
    for _ in weights.blocks:
        k, v = kernels.empty_cache(batch, kv_heads, capacity, width, dtype)
        rows = []
        for row, length in enumerate(lengths):
            pair = tuple(filled(rng, (length, kv_heads * width), dtype) for _ in range(2))
            kernels.cache_append(
                *pair, k, v, np.full(length, row), np.arange(length, dtype=np.int64)
            )
            rows.append(pair)
        keys.append(k)
        values.append(v)
        plain.append(rows)
    return keys, values, np.array([lengths] * len(weights.blocks), np.int64), plain


def stored(keys, values, row, position):
    """What all layers hold at one place: keys and values (L, Hk * w)."""
    at_key = [kernels.cached_keys(k, position + 1)[row, :, position].ravel() for k in keys]
    return np.stack(at_key), np.stack([v[row, :, position].ravel() for v in values])


@settings(max_examples=25)
@given(
    seed=seeds,
    lengths=st.lists(st.integers(0, 34), min_size=1, max_size=4),
    heads=st.sampled_from([(1, 1), (2, 2), (4, 2), (3, 1)]),
    width=st.sampled_from([2, 6, 8]),
    d=st.sampled_from([1, 5, 16, 33]),
    hidden=st.sampled_from([1, 7, 40, 70]),
    vocab=st.sampled_from([2, 31, 65]),
    layers=st.integers(0, 2),
    tied=st.booleans(),
    flavour=finite_flavours,
)
def test_a_step_equals_the_scalar_form(
    dtype, seed, lengths, heads, width, d, hidden, vocab, layers, tied, flavour
):
    """Logits, and what is put into the cache, of several sequences of different lengths."""
    rng = np.random.default_rng(seed)
    n_heads, kv_heads = heads
    weights = decoder(
        rng, dtype, flavour, d=d, heads=n_heads, kv_heads=kv_heads, width=width, hidden=hidden,
        vocab=vocab, layers=layers, tied=tied,
    )  # fmt: skip
    batch = len(lengths)
    keys, values, filled_up, plain = filled_caches(rng, weights, batch, kv_heads, 35, lengths)
    filled_up = filled_up.reshape(layers, batch)
    rows = rng.permutation(batch)
    positions = np.array(lengths)[rows]
    tokens = rng.integers(0, vocab, batch)
    with np.errstate(all="ignore"):
        found = [
            oracle.decode_step(
                weights, EPS, n_heads, kv_heads, int(token), [layer[row] for layer in plain]
            )
            for token, row in zip(tokens, rows, strict=True)
        ]
    logits = np.stack([one for one, _ in found])
    decoding = DecodeStep(weights, EPS, n_heads, kv_heads)
    whole = np.isfinite(logits).all() and all(
        np.isfinite(x).all() for _, new in found for pair in new for x in pair
    )
    if not whole:  # zeros alone have no inverse root mean square only where eps is lost
        assert decoding.over(keys, values, filled_up).step(tokens, rows, positions) is None
        return
    new_keys = [np.stack([k for k, _ in new]) if layers else () for _, new in found]
    new_values = [np.stack([v for _, v in new]) if layers else () for _, new in found]

    def step(n_threads):
        cache = [k.copy() for k in keys], [v.copy() for v in values]
        grown = filled_up.copy()
        attached = decoding.over(*cache, grown)
        result = attached.step(tokens, rows, positions, n_threads=n_threads)
        for before, after in zip((*keys, *values), (*cache[0], *cache[1]), strict=True):
            assert_same_bits(after, before)
        if layers:
            assert attached.append(result, rows, positions) is None
            assert (grown == filled_up + 1).all()
            for i, (row, position) in enumerate(zip(rows, positions, strict=True)):
                k, v = stored(*cache, row, position)
                assert_same_bits(k, new_keys[i])
                assert_same_bits(v, new_values[i])
        return result.logits

    everywhere(step, logits)


@pytest.mark.parametrize("n", [1, 2, 3, 4])
@pytest.mark.parametrize(("d", "hidden", "vocab"), [(64, 96, 200), (130, 344, 65), (20, 257, 129)])
def test_panels_of_every_width_equal_the_single_kernels(dtype, n, d, hidden, vocab):
    rng = np.random.default_rng(n)
    weights = decoder(
        rng, dtype, "plain", d=d, heads=3, kv_heads=1, width=10, hidden=hidden, vocab=vocab,
        layers=1,
    )  # fmt: skip
    keys, values, filled_up, _ = filled_caches(rng, weights, n, 1, POSITIONS, [3] * n)
    tokens, rows, positions = rng.integers(0, vocab, n), np.arange(n), np.full(n, 3)
    block = weights.blocks[0]
    x = weights.table[tokens]
    h = kernels.rms_norm(x, block.attention_gain, EPS).out
    q, k, v = (kernels.matmul(h, w) for w in (block.query, block.key, block.value))
    for y in (q, k):
        heads = y.reshape(n, -1, 10)
        kernels.rope(heads, weights.cos[positions], weights.sin[positions], out=heads)
    mixed = kernels.attention_step(q, k, v, keys[0], values[0], rows, positions, 3)
    x = x + kernels.matmul(mixed, block.output)
    h = kernels.rms_norm(x, block.ffn_gain, EPS).out
    inner = kernels.swiglu(kernels.matmul(h, block.gate), kernels.matmul(h, block.up))
    x = x + kernels.matmul(inner, block.down)
    h = kernels.rms_norm(x, weights.final_gain, EPS).out
    logits = kernels.matmul(h, weights.head, transpose_b=True)
    step = DecodeStep(weights, EPS, 3, 1).over(keys, values, filled_up)
    everywhere(lambda t: step.step(tokens, rows, positions, n_threads=t).logits, logits)


def test_what_is_packed_on_one_instruction_set_is_read_by_all(dtype):
    rng = np.random.default_rng(4)
    weights = decoder(
        rng, dtype, "plain", d=70, heads=2, kv_heads=2, width=8, hidden=90, vocab=77, layers=2
    )
    keys, values, filled_up, _ = filled_caches(rng, weights, 1, 2, 5, [2])
    at = np.array([1]), np.array([0]), np.array([2])
    expected = DecodeStep(weights, EPS, 2, 2).over(keys, values, filled_up).step(*at).logits
    for name in _kernels.available_isas():
        with _kernels.use_isa(name):
            packed = DecodeStep(weights, EPS, 2, 2).over(keys, values, filled_up)
        everywhere(lambda t, packed=packed: packed.step(*at, n_threads=t).logits, expected, (1,))


@pytest.mark.parametrize(
    "spoil",
    ["table", "query", "value", "gate", "down", "output", "head", "final_gain"],
)
def test_values_that_are_not_finite_are_noticed(isa, dtype, spoil):
    rng = np.random.default_rng(5)
    weights = decoder(
        rng, dtype, "plain", d=40, heads=2, kv_heads=2, width=8, hidden=70, vocab=66, layers=2
    )
    array = getattr(weights, spoil, None)
    array = getattr(weights.blocks[1], spoil) if array is None else array
    keys, values, filled_up, _ = filled_caches(rng, weights, 1, 2, 5, [2])
    at = np.array([65]), np.array([0]), np.array([2])
    assert DecodeStep(weights, EPS, 2, 2).over(keys, values, filled_up).step(*at) is not None
    array[..., -1] = np.inf
    before = [x.copy() for x in (*keys, *values)]
    assert DecodeStep(weights, EPS, 2, 2).over(keys, values, filled_up).step(*at) is None
    for x, copy in zip((*keys, *values), before, strict=True):
        assert_same_bits(x, copy)


def test_a_sequence_that_ends_elsewhere_is_not_appended_to():
    weights, keys, values, filled_up = small()
    step = DecodeStep(weights, EPS, 2, 1).over(keys, values, filled_up)
    at = np.array([1, 0]), np.array([2, 1])
    result = step.step(np.array([1, 1]), *at)
    filled_up[1, 0] = 2
    before = [x.copy() for x in (*keys, *values, filled_up)]
    assert step.append(result, *at) == 1
    for x, copy in zip((*keys, *values, filled_up), before, strict=True):
        assert x.tobytes() == copy.tobytes()
    filled_up[1, 0] = 1
    with pytest.raises(RangeError) as caught:
        step.append(result, np.array([1, 1]), np.array([2, 2]))
    assert caught.value.name == "rows"
    assert step.append(result, *at) is None
    assert filled_up.tolist() == [[2, 3], [2, 3]]


@pytest.mark.parametrize("n", [1, 2, 4])
def test_advancing_is_a_step_and_what_follows(isa, dtype, n):
    rng = np.random.default_rng(7)
    weights = decoder(
        rng, dtype, "plain", d=20, heads=2, kv_heads=1, width=6, hidden=30, vocab=33, layers=2
    )
    counts = [3, 1, 2, 5]
    caches = []
    for _ in range(2):
        keys, values, filled_up, _ = filled_caches(
            np.random.default_rng(8), weights, 4, 1, 8, counts
        )
        caches.append((keys, values, filled_up))
    decoding = DecodeStep(weights, EPS, 2, 1)
    one, other = (decoding.over(*cache) for cache in caches)
    lengths = np.array(counts)
    rows, tokens = [2, 0, 3, 1][:n], [32, 0, 7, 9][:n]
    logits, of, positions, grown, total = one.advance(tokens, rows, lengths)
    places = np.array([counts[row] for row in rows])
    result = other.step(np.array(tokens), np.array(rows), places)
    assert other.append(result, np.array(rows), places) is None
    assert_same_bits(logits, result.logits)
    assert (of.tolist(), positions.tolist()) == (rows, places.tolist())
    assert (grown.tolist(), total) == ((places + 1).tolist(), int(places.sum()) + n)
    assert lengths.tolist() == [count + (row in rows) for row, count in enumerate(counts)]
    for x, y in zip(caches[0], caches[1], strict=True):
        for a, b in zip(x, y, strict=True):
            assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize(
    ("tokens", "rows", "lengths"),
    [
        ([5], [0], [1, 2]),
        ([-1], [0], [1, 2]),
        ([2**70], [0], [1, 2]),
        ([1.0], [0], [1, 2]),
        ([True], [0], [1, 2]),
        ([1], [2], [1, 2]),
        ([1], [-1], [1, 2]),
        ([1], [np.int64(0)], [1, 2]),
        ([1, 1], [0, 0], [1, 2]),
        ([1, 1], [0], [1, 2]),
        ([], [], [1, 2]),
        ([1] * 5, [0, 1, 0, 1, 0], [1, 2]),
        ([1], [0], [0, 2]),
        ([1], [1], [1, 4]),
        ([1], [0], [2, 2]),  # the layers say 1
        ([4], [0], [1, 2]),  # not finite
    ],
)
def test_anything_unusual_is_left_to_single_steps(tokens, rows, lengths):
    weights, keys, values, filled_up = small()
    step = DecodeStep(weights, EPS, 2, 1).over(keys, values, filled_up)
    if 4 in tokens:
        weights.table[4] = np.nan
    counts = np.array(lengths)
    before = [x.copy() for x in (*keys, *values, filled_up)]
    assert step.advance(tokens, rows, counts) is None
    for x, copy in zip((*keys, *values, filled_up), before, strict=True):
        assert x.tobytes() == copy.tobytes()
    assert counts.tolist() == lengths


def small(dtype=np.float64):
    rng = np.random.default_rng(6)
    weights = decoder(
        rng, dtype, "plain", d=4, heads=2, kv_heads=1, width=2, hidden=3, vocab=5, layers=2
    )
    return weights, *filled_caches(rng, weights, 2, 1, 4, [1, 2])[:3]


def test_weights_that_make_no_decoder_are_named():
    weights, *_ = small()
    block = weights.blocks[1]
    wrong = [
        (weights._replace(table=weights.table.astype(np.float16)), 2, 1, DTypeError, "table"),
        (weights._replace(final_gain=np.ones(5)), 2, 1, ShapeError, "final_gain"),
        (weights._replace(head=np.ones((5, 4), np.float32)), 2, 1, DTypeError, "head"),
        (weights._replace(sin=weights.sin[:3]), 2, 1, ShapeError, "sin"),
        (weights, 0, 1, RangeError, "n_heads"),
        (weights, 2, 3, RangeError, "n_kv_heads"),
        (weights, 2, 2, ShapeError, "blocks[0].key"),
    ]
    for name in BlockWeights._fields:
        bad = block._replace(**{name: getattr(block, name)[..., :-1].copy()})
        changed = weights._replace(blocks=(weights.blocks[0], bad))
        wrong.append((changed, 2, 1, ShapeError, f"blocks[1].{name}"))
    for bad_weights, heads, kv_heads, error, name in wrong:
        with pytest.raises(error) as caught:
            DecodeStep(bad_weights, EPS, heads, kv_heads)
        assert caught.value.name == name
    with pytest.raises(RangeError):
        DecodeStep(weights, np.nan, 2, 1)


def test_caches_that_do_not_fit_are_named():
    weights, keys, values, filled_up = small()
    step = DecodeStep(weights, EPS, 2, 1)
    wide = [kernels.empty_cache(2, 1, POSITIONS + 1, 2, np.float64) for _ in range(2)]
    for bad_keys, bad_values, name in (
        (keys[:1], values, "keys and values"),
        ([keys[0], keys[1][:1]], values, "keys"),
        (keys, [values[0], values[1].astype(np.float32)], "values"),
        ([k for k, _ in wide], [v for _, v in wide], "values"),
        (keys, [values[0], keys[1].reshape(-1)[:16].reshape(values[1].shape)], "keys"),
    ):
        with pytest.raises((ShapeError, DTypeError)) as caught:
            step.over(bad_keys, bad_values, filled_up)
        assert caught.value.name == name
    for bad_lengths in (filled_up[:1], filled_up.astype(np.int32)):
        with pytest.raises((ShapeError, DTypeError)) as caught:
            step.over(keys, values, bad_lengths)
        assert caught.value.name == "lengths"
    values[1].flags.writeable = False
    with pytest.raises(DTypeError) as caught:
        step.over(keys, values, filled_up)
    assert (caught.value.kind, caught.value.name) == ("ReadOnly", "values")


BAD = [
    (0, np.array([5]), RangeError, "tokens"),
    (0, np.array([-1]), RangeError, "tokens"),
    (0, np.array([1.0]), DTypeError, "tokens"),
    (0, np.array([], np.int64), ShapeError, "tokens"),
    (0, np.zeros(5, np.int64), ShapeError, "tokens"),
    (1, np.array([2]), RangeError, "rows"),
    (1, np.array([0, 1]), ShapeError, "rows"),
    (2, np.array([4]), RangeError, "positions"),
    (2, np.array([-1]), RangeError, "positions"),
]


@pytest.mark.parametrize(("place", "value", "error", "name"), BAD)
def test_bad_tokens_and_places_are_named(place, value, error, name):
    weights, keys, values, filled_up = small()
    step = DecodeStep(weights, EPS, 2, 1).over(keys, values, filled_up)
    arguments = [np.array([1]), np.array([1]), np.array([2])]
    result = step.step(*arguments)
    before = [x.copy() for x in (*keys, *values, filled_up)]
    arguments[place] = value
    with pytest.raises(error) as caught:
        step.step(*arguments)
    assert caught.value.name == name
    if place:
        with pytest.raises(error) as caught:
            step.append(result, *arguments[1:])
        assert caught.value.name in (name, "positions")
    for x, copy in zip((*keys, *values, filled_up), before, strict=True):
        assert x.tobytes() == copy.tobytes()
