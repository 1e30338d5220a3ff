"""Cached logits have the bits of the uncached pass; a cache that does not fit is refused."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcy import _kernels, kernels
from llmcy.config import ModelConfig
from llmcy.errors import CacheError, OptimizerError
from llmcy.generate import session as session_module
from llmcy.generate.kv_cache import CacheSession, KVCache, WorkCounters
from llmcy.model import Decoder
from llmcy.optim import AdamW, AdamWConfig
from llmcy.state import DecoderModelState
from llmcy.tape import no_grad
from tests.oracle.scalar import assert_same_bits


def full_logits(model: Decoder, tokens: list[int]) -> np.ndarray:
    with no_grad():
        return model.forward(np.array([tokens])).data[0]


@st.composite
def models(draw: st.DrawFn) -> Decoder:
    heads, kv_heads = draw(
        st.sampled_from([(1, None), (2, None), (3, 1), (4, 2), (3, None), (8, 2)])
    )
    config = ModelConfig(
        vocab_size=draw(st.integers(2, 40)),
        d_model=heads * draw(st.sampled_from([2, 6, 8, 16])),
        n_heads=heads,
        n_layers=draw(st.integers(0, 3)),
        d_ff=draw(st.integers(1, 40)),
        max_seq_len=draw(st.integers(1, 40)),
        rope_theta=draw(st.sampled_from([10000.0, 7.5])),
        dtype=draw(st.sampled_from(["float64", "float32"])),
        n_kv_heads=kv_heads,
        head_size=draw(st.sampled_from([None, 4])),
        tied_head=draw(st.booleans()),
    )
    model = Decoder.initialize(config, draw(st.integers(0, 2**32)))
    for _, parameter in model.named_parameters():  # initial values are small: make scores matter
        parameter.assign(parameter.data * np.dtype(config.dtype).type(4))
    return model


@settings(max_examples=60)
@given(model=models(), data=st.data())
def test_cached_logits_have_the_bits_of_the_full_pass(model: Decoder, data: st.DataObject) -> None:
    """Every position, split, batch, mixture of lengths, instruction set, number of threads."""
    config = model.config
    capacity = config.max_seq_len
    token = st.integers(0, config.vocab_size - 1)
    sequences = data.draw(
        st.lists(st.lists(token, min_size=1, max_size=capacity), min_size=1, max_size=7)
    )
    splits = [data.draw(st.integers(1, len(sequence))) for sequence in sequences]
    serial = data.draw(st.booleans())
    n_threads = data.draw(st.sampled_from([1, 2, 5]))
    expected = [full_logits(model, sequence) for sequence in sequences]
    for name in _kernels.available_isas():
        with _kernels.use_isa(name), _kernels.smallest_chunks(), threads(n_threads):
            cached = run_batch(model, sequences, splits, serial)
        for actual, wanted in zip(cached, expected, strict=True):
            assert_same_bits(actual, wanted)


class threads:
    def __init__(self, n: int) -> None:
        self.n = n

    def __enter__(self) -> None:
        from llmcy import num_threads, set_num_threads

        self.before = num_threads()
        set_num_threads(self.n)

    def __exit__(self, *_: object) -> None:
        from llmcy import set_num_threads

        set_num_threads(self.before)


def run_batch(
    model: Decoder, sequences: list[list[int]], splits: list[int], serial: bool
) -> list[np.ndarray]:
    """Prefill each sequence up to its split, then decode the rest together."""
    with KVCache(model, len(sequences)).bind(model) as session:
        prompts = [sequence[:split] for sequence, split in zip(sequences, splits, strict=True)]
        first = session.prefill(prompts, serial=serial, keep_logits=True)
        found = [list(logits) for logits in first.prompt_logits]
        for row, logits in enumerate(first.logits):
            assert_same_bits(logits[0], found[row][-1])
        at = list(splits)
        while going := [r for r, sequence in enumerate(sequences) if at[r] < len(sequence)]:
            going = going[::-1]
            step = session.decode([sequences[r][at[r]] for r in going], going)
            assert step.rows.tolist() == going
            for row, logits in zip(going, step.logits, strict=True):
                found[row].append(logits[0])
                at[row] += 1
            assert step.cache_lengths.tolist() == [at[r] for r in going]
        lengths = [len(sequence) for sequence in sequences]
        assert session.cache.lengths.tolist() == lengths
        layers, heads = model.config.n_layers, model.config.n_heads
        total = sum(lengths)
        assert session.work == WorkCounters(
            token_forwards=total,
            prefill_tokens=sum(splits),
            decode_tokens=total - sum(splits),
            cache_appends=layers * total,
            qkv_projection_rows=3 * layers * total,
            attention_score_values=layers * heads * sum(n * (n + 1) // 2 for n in lengths),
        )
    return [np.stack(rows) for rows in found]


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_long_sequence(isa: str, dtype: str) -> None:
    model = Decoder.initialize(ModelConfig(67, 64, 4, 2, 96, 200, dtype=dtype), 5)
    tokens = np.random.default_rng(3).integers(0, 67, 200).tolist()
    expected = full_logits(model, tokens)
    for split in (1, 31, 32, 33, 199):
        found = run_batch(model, [tokens, tokens[: split + 1]], [split, split], False)
        assert_same_bits(found[0], expected)
        assert_same_bits(found[1], expected[: split + 1])


# ---------------------------------------------------------------------- the published numbers
def published() -> Decoder:
    return Decoder.initialize(ModelConfig(5, 4, 2, 2, 4, 3), 38)


PREFILL = ["3ffc4b42fea302b1", "3fcabac9371f0e4c", "3ff0e637fa49f62a", "bfdceb3a138cb111",
           "3fd8dca8a737c72e"]  # fmt: skip
DECODE = ["3fa0d96fcaf9b0d0", "bfe5bf26280b8d25", "3ff688bb65d2995d", "3fe0d11ab02b9864",
          "bfe2d102efb40284"]  # fmt: skip


def hexbits(logits: np.ndarray) -> list[str]:
    return [f"{bits:016x}" for bits in logits.reshape(-1).view(np.uint64).tolist()]


@pytest.mark.parametrize("serial", [False, True])
def test_the_published_cache_numbers(isa: str, serial: bool) -> None:
    model = published()
    assert DecoderModelState.snapshot(model).fingerprint() == "fnv1a64:6dc4896d044c98c6"
    cache = KVCache(model)
    with cache.bind(model) as session:
        first = session.prefill([0, 1], serial=serial)
        assert first.logits.shape == (1, 1, 5)
        assert hexbits(first.logits) == PREFILL == hexbits(full_logits(model, [0, 1])[-1])
        assert (first.positions.tolist(), first.cache_lengths.tolist()) == ([1], [2])
        assert first.score_values == 4 * (1 + 2)  # layers x heads = 4 lanes
        assert [len(layer) for layer in cache.layers] == [2, 2]
        assert cache.layers[0].keys().shape == (1, 2, 2, 2)
        second = session.decode(2)
        assert hexbits(second.logits) == DECODE == hexbits(full_logits(model, [0, 1, 2])[-1])
        assert (second.positions.tolist(), second.cache_lengths.tolist()) == ([2], [3])
        assert second.score_values == 4 * 3
        assert session.work == WorkCounters(3, 2, 1, 6, 18, 24)
        before = [layer.storage[0].ctypes.data for layer in cache.layers]
        stored = [layer.storage[0].copy() for layer in cache.layers]
        session.reset()
        assert (len(cache), session.work) == (0, WorkCounters())
        assert [len(layer) for layer in cache.layers] == [0, 0]
        assert [layer.storage[0].ctypes.data for layer in cache.layers] == before
        for layer, copy in zip(cache.layers, stored, strict=True):
            assert_same_bits(layer.storage[0], copy)
        assert hexbits(session.prefill([0, 1], serial=serial).logits) == PREFILL
        assert hexbits(session.decode(2).logits) == DECODE


def test_the_layers_have_storage_of_their_own() -> None:
    keys, values = zip(*(layer.storage for layer in KVCache(published()).layers), strict=True)
    arrays = [*keys, *values]
    for i, one in enumerate(arrays):
        assert not any(np.shares_memory(one, other) for other in arrays[i + 1 :])


# ---------------------------------------------------------------------- refusals
def state(cache: KVCache) -> list[Any]:
    return [cache.lengths.tolist(), cache.work] + [
        [layer.lengths.tolist(), *(array.tobytes() for array in layer.storage)]
        for layer in cache.layers
    ]


SESSION_ERRORS: list[tuple[list[int], Callable[[CacheSession], object], str, dict[str, int]]] = [
    ([], lambda s: s.prefill([]), "EmptyPrompt", {"row": 0}),
    ([0], lambda s: s.prefill([1]), "PrefillRequiresEmpty", {"len": 1}),
    ([0], lambda s: s.prefill([]), "EmptyPrompt", {}),
    ([], lambda s: s.prefill([9] * 4), "PromptTooLong", {"tokens": 4, "capacity": 3}),
    ([], lambda s: s.prefill([0, 5]), "PromptTokenOutOfBounds",
     {"position": 1, "token_id": 5, "vocabulary_size": 5}),
    ([], lambda s: s.prefill([[0], [1]]), "PromptCountMismatch", {"expected": 1, "actual": 2}),
    ([], lambda s: s.decode(9), "DecodeRequiresPrefill", {}),
    ([0], lambda s: s.decode(5), "DecodeTokenOutOfBounds", {"token_id": 5}),
    ([0], lambda s: s.decode(-1), "DecodeTokenOutOfBounds", {"token_id": -1}),
    ([0, 1, 2], lambda s: s.decode(5), "DecodeTokenOutOfBounds", {}),
    ([0, 1, 2], lambda s: s.decode(1), "Full", {"capacity": 3}),
    ([0], lambda s: s.decode([1, 1]), "RowsMismatch", {"expected": 1, "actual": 2}),
    ([0], lambda s: s.decode([1, 1], [0, 0]), "RowsMismatch", {}),
    ([0], lambda s: s.decode([1], [1]), "RowsMismatch", {}),
    ([0], lambda s: s.decode([], []), "RowsMismatch", {}),
]  # fmt: skip


@pytest.mark.parametrize(("before", "call", "kind", "fields"), SESSION_ERRORS)
def test_a_refused_call_leaves_the_cache_alone(
    before: list[int],
    call: Callable[[CacheSession], object],
    kind: str,
    fields: dict[str, int],
) -> None:
    model = published()
    cache = KVCache(model)
    with cache.bind(model) as session:
        if before:
            session.prefill(before)
        held = state(cache)
        with pytest.raises(CacheError) as caught:
            call(session)
        assert caught.value.kind == kind
        assert {name: getattr(caught.value, name) for name in fields} == fields
        assert state(cache) == held


def overflowing() -> Decoder:
    """A model in which token 4 overflows in the second block."""
    model = published()
    table = model.token_embedding.weight
    values = table.data.copy()
    values[4] = 0.0
    values[4, 0] = 1.0
    table.assign(values)
    gate = model.blocks[1].ffn.gate.weight
    gate.assign(np.full(gate.shape, 1.7e308))
    return model


def test_a_failed_step_changes_nothing_and_a_failed_prefill_empties() -> None:
    model = overflowing()
    cache = KVCache(model)
    with cache.bind(model) as session:
        for serial in (False, True):
            with pytest.raises(CacheError) as caught:
                session.prefill([4, 4], serial=serial)
            assert caught.value.kind == "Autodiff"
            assert caught.value.cause.kind == "NonFiniteValue"
            assert (len(cache), session.work) == (0, WorkCounters())
            assert all(len(layer) == 0 for layer in cache.layers)


@pytest.mark.parametrize("batch", [1, 5])
def test_a_failed_decode_changes_nothing(batch: int) -> None:
    """The head overflows for one token; five sequences at once take the way of single kernels."""
    model = Decoder.initialize(ModelConfig(5, 4, 2, 2, 4, 3, tied_head=False), 38)
    assert model.output_head is not None
    for block in model.blocks:  # the residual stream is the token's own row
        for layer in (block.attention.output, block.ffn.down):
            layer.weight.assign(np.zeros(layer.weight.shape))
    table = np.eye(5, 4)
    table[4] = [0, 0, 0, 1]
    table[3] = table[0]
    model.token_embedding.weight.assign(table)
    head = np.ones((5, 4))
    head[2, 3] = 1.7e308
    model.output_head.weight.assign(head)
    cache = KVCache(model, batch)
    with cache.bind(model) as session:
        session.prefill([[0, 1]] * batch)
        held = state(cache)
        with pytest.raises(CacheError) as caught:
            session.decode([2] * (batch - 1) + [4])
        assert (caught.value.kind, caught.value.cause.op) == ("Autodiff", "tied_linear")
        assert state(cache) == held
        whole = full_logits(model, [0, 1, 2])[-1]
        assert_same_bits(session.decode([2] * batch).logits[0, 0], whole)


def test_a_row_that_grew_meanwhile_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On both ways: a few sequences in one call, many by single kernels."""
    model = published()
    for batch, where, name in (
        (1, kernels.CachedDecodeStep, "step"), (5, session_module, "head_logits")
    ):  # fmt: skip
        cache = KVCache(model, batch)
        other = cache.bind(model)
        with cache.bind(model) as session:
            session.prefill([[0, 1]] * batch)
            real = getattr(where, name)

            def intrude(*given: Any, real: Any = real, other: Any = other, n: int = batch) -> Any:
                monkeypatch.undo()
                other.decode([3] * n)
                return real(*given)

            monkeypatch.setattr(where, name, intrude)
            with pytest.raises(CacheError) as caught:
                session.decode([2] * batch)
            assert (caught.value.kind, caught.value.layer) == ("PreparedCacheChanged", 0)
            assert cache.lengths.tolist() == [3] * batch
            assert [len(layer) for layer in cache.layers] == [3, 3]
        other.close()


def test_memory_for_packed_weights_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    model = published()
    cache = KVCache(model)

    def none_left(*_: object) -> None:
        raise MemoryError

    with cache.bind(model) as session:
        session.prefill([0, 1])
        held = state(cache)
        monkeypatch.setattr(kernels, "DecodeStep", none_left)
        with pytest.raises(CacheError) as caught:
            session.decode(2)
        assert caught.value.kind == "AllocationFailed"
        assert state(cache) == held
        monkeypatch.undo()
        assert hexbits(session.decode(2).logits) == DECODE


def test_a_full_counter_stops_before_anything_is_stored() -> None:
    model = published()
    cache = KVCache(model)
    cache._work = WorkCounters(decode_tokens=2**64 - 1)
    with cache.bind(model) as session:
        session.prefill([0])
        held = state(cache)
        with pytest.raises(CacheError) as caught:
            session.decode(1)
        assert (caught.value.kind, caught.value.counter) == ("WorkOverflow", "decode_tokens")
        assert state(cache) == held


# ---------------------------------------------------------------------- binding
def other_model(model: Decoder, **changes: Any) -> Decoder:
    """A model over the same parameter nodes with another configuration."""
    config = ModelConfig(**(model.config.to_dict() | changes))
    return Decoder(config, [parameter for _, parameter in model.named_parameters()])


def bind_error(cache: KVCache, model: Decoder) -> CacheError:
    with pytest.raises(CacheError) as caught:
        cache.bind(model)
    return caught.value


def test_binding_refuses_every_other_model() -> None:
    model = published()
    cache = KVCache(model)
    assert bind_error(cache, other_model(model, rope_theta=500.0)).kind == "ModelConfigMismatch"
    assert bind_error(cache, other_model(model, rms_norm_eps=0.0)).kind == "ModelConfigMismatch"
    zero = other_model(model, rms_norm_eps=0.0)
    assert bind_error(KVCache(zero), other_model(zero, rms_norm_eps=-0.0)).kind == (
        "ModelConfigMismatch"
    )
    equal = DecoderModelState.snapshot(model).restore_independent_model()
    error = bind_error(cache, equal)
    assert (error.kind, error.index) == ("ModelParameterMismatch", 0)
    cache._parameters.pop()
    error = bind_error(cache, model)
    assert (error.kind, error.cache, error.model) == ("ModelParameterCountMismatch", 19, 20)


def test_binding_refuses_changed_values() -> None:
    model = published()
    cache = KVCache(model)
    gain = model.blocks[0].ffn_norm.gain
    gain.assign(gain.data)
    error = bind_error(cache, model)
    assert error.kind == "ModelParameterRevisionMismatch"
    assert (error.index, error.cache, error.model) == (6, 0, 1)


def test_binding_refuses_broken_layers() -> None:
    model = published()
    cache = KVCache(model)
    cache._lengths[0] = 1
    error = bind_error(cache, model)
    assert (error.kind, error.layer) == ("LayerLengthInvariant", 0)
    assert (error.expected, error.actual) == (1, 0)
    cache = KVCache(model)
    cache._layers = cache._layers[:1]
    assert bind_error(cache, model).kind == "LayerCountMismatch"
    cache = KVCache(model)
    cache._layers = (cache._layers[0], KVCache(model, 2).layers[1])
    error = bind_error(cache, model)
    assert (error.kind, error.layer) == ("LayerBatchSizeMismatch", 1)
    cache._layers = (cache._layers[0], KVCache(model, 1, 2).layers[1])
    assert bind_error(cache, model).kind == "LayerCapacityMismatch"
    cache._layers = (cache._layers[0], cache._layers[0])
    error = bind_error(cache, model)
    assert (error.kind, error.layer) == ("IncrementalAttention", 1)
    assert error.cause.kind == "CacheLayerMismatch"


def test_an_open_session_holds_the_parameters() -> None:
    model = published()
    optimizer = AdamW(AdamWConfig(0.1))
    named = model.named_parameters()
    model.loss([[0, 1]], [[1, 2]]).backward()
    cache = KVCache(model)
    with cache.bind(model) as session:
        session.prefill([0, 1])
        with pytest.raises(OptimizerError) as caught:
            optimizer.step(named)
        assert caught.value.kind == "ParameterValueBorrowed"
        assert [p.revision for _, p in named] == [0] * len(named)
    assert optimizer.step(named) == 1
    assert bind_error(cache, model).kind == "ModelParameterRevisionMismatch"
    with pytest.raises(CacheError) as closed:
        session.decode(1)
    assert closed.value.kind == "SessionClosed"


def test_a_forgotten_session_lets_go() -> None:
    model = published()
    KVCache(model).bind(model).prefill([0])
    gain = model.final_norm.gain
    gain.assign(gain.data)
    assert gain.revision == 1


@pytest.mark.parametrize("layers", [0, 1])
def test_sizes_of_a_cache(layers: int) -> None:
    model = Decoder.initialize(ModelConfig(5, 4, 2, layers, 4, 3), 1)
    for arguments, kind in (
        ((0, 3), "ZeroBatchSize"),
        ((1, 0), "ZeroCapacity"),
        ((1, 4), "CapacityExceedsPositions"),
    ):
        with pytest.raises(CacheError) as caught:
            KVCache(model, *arguments)
        assert caught.value.kind == kind
