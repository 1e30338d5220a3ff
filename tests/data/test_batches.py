"""Mini-batch epochs: published orders, row contents, errors in order, rules for any epoch."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcy.checksum import fnv1a64
from llmcy.data import (
    BatchDocument,
    BatchOrder,
    MiniBatchConfig,
    MiniBatchEpoch,
    Partition,
    WindowConfig,
    batches,
)
from llmcy.errors import DataError
from tests.oracle.batches import epoch_windows

TRAIN = Partition.TRAIN


def documents(**token_ids):
    return [BatchDocument(name, TRAIN, ids) for name, ids in token_ids.items()]


def epoch(docs, context, stride, size, seed=None, partition=TRAIN):
    order = BatchOrder.sequential() if seed is None else BatchOrder.shuffled(seed)
    return MiniBatchEpoch.build(
        partition, docs, WindowConfig(context, stride), MiniBatchConfig(size, order)
    )


def places(e):
    return [[(p.document_id, p.start) for p in b.provenance] for b in e.batches]


def written(e):
    return " | ".join(",".join(f"{name}@{start}" for name, start in batch) for batch in places(e))


SMALL = documents(A=[0, 10, 11, 12, 1], B=[0, 20, 21, 1])
PUBLISHED = documents(
    a=[0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1], b=[2, 3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3]
)
# FNV-1a over the ids as 32-bit little-endian words, batch by batch
PUBLISHED_FINGERPRINTS = """
ac2d1c90be7546d0 f1ccbb32bd8beef7
f1ccbb32bd8beef7 c5a38738f0495ef7
e44ca2723667c285 6300101856c34205
a7bdf50dd7c99502 e64c6c70ccf4a765
a541df822e19ae17 a40a9d06f59e3b53
7dfb43243498c266 ac2d1c90be7546d0
c3a3bd3a59bc7a17 a541df822e19ae17
7dfb43243498c266 ac2d1c90be7546d0
a20ad3085f115673 6d2259a0b6273262
235765623eb5d6f3 7dfb43243498c266
"""


@pytest.mark.feature("A34")
def test_partitions_are_three_with_stable_labels():
    assert [p.label for p in Partition] == ["train", "validation", "test"]
    assert [str(p) for p in Partition] == ["train", "validation", "test"]
    assert [Partition(label) for label in ("train", "validation", "test")] == list(Partition)
    with pytest.raises(ValueError, match="val"):
        Partition("val")


def test_sequential_rows():
    e = epoch(SMALL, 2, 1, 3)
    first, second = e.batches
    assert first.inputs.tolist() == [[0, 10], [10, 11], [11, 12]]
    assert first.targets.tolist() == [[10, 11], [11, 12], [12, 1]]
    assert second.inputs.tolist() == [[0, 20], [20, 21]]
    assert second.targets.tolist() == [[20, 21], [21, 1]]
    assert (e.window_count, e.batch_count, e.shuffle_state_after) == (5, 2, None)
    assert (first.shape, second.shape) == ((3, 2), (2, 2))
    assert (second.width, second.context_length, second.token_count) == (2, 2, 4)
    assert second.input_row(1).tolist() == [20, 21]
    assert second.target_row(0).tolist() == [20, 21]
    assert second.input_row(2) is None
    assert second.target_row(-1) is None
    assert first.inputs.dtype == np.int64
    assert first.inputs.flags.c_contiguous
    place = second.provenance[1]
    assert (place.partition, place.document_index, place.document_id, place.start) == (
        TRAIN,
        1,
        "B",
        1,
    )


def test_seed_7_order():
    e = epoch(SMALL, 2, 1, 3, seed=7)
    assert written(e) == "B@1,A@1,B@0 | A@0,A@2"
    assert e.shuffle_state_after == 0x78DDE6E5FD29F05B


@pytest.mark.feature("B53", "B54")
def test_published_epochs():
    updates = epoch(PUBLISHED, 2, 1, 2, seed=33)
    assert (updates.window_count, updates.batch_count) == (20, 10)
    assert written(updates) == (
        "b@2,b@8 | a@0,b@9 | a@7,b@0 | a@1,b@7 | a@2,a@6 | a@3,a@4 | b@4,a@5 | a@8,a@9"
        " | b@1,b@3 | b@5,b@6"
    )
    assert updates.shuffle_state_after == 0xBE1E08C4728735B0
    found = [
        f"{fnv1a64(rows.astype('<u4').tobytes()):016x}"
        for batch in updates.batches
        for rows in (batch.inputs, batch.targets)
    ]
    assert found == PUBLISHED_FINGERPRINTS.split()
    train = epoch(PUBLISHED, 2, 1, 5)
    assert (train.window_count, train.batch_count) == (20, 4)
    held_out = [
        BatchDocument("a", Partition.VALIDATION, [0, 1, 2, 3, 4, 0, 1, 2, 3]),
        BatchDocument("b", Partition.VALIDATION, [0] * 9),
    ]
    validation = epoch(held_out, 2, 1, 4, partition=Partition.VALIDATION)
    assert validation.window_count == 14
    assert [b.width for b in validation.batches] == [4, 4, 4, 2]


def test_published_bilingual_epoch():
    # the order depends on the document lengths only
    lengths = {
        "en-river-dawn": 182,
        "ru-river-dawn": 234,
        "en-clock-shop": 191,
        "ru-clock-shop": 290,
        "en-rain-library": 197,
        "ru-rain-library": 295,
        "en-bee-garden": 189,
        "ru-bee-garden": 274,
    }
    e = epoch([BatchDocument(n, TRAIN, range(k)) for n, k in lengths.items()], 4, 1, 16, seed=39)
    assert (e.window_count, e.batch_count) == (1820, 114)
    assert e.shuffle_state_after == 0x342DE90B763FA95E
    assert places(e)[0][:4] == [
        ("en-river-dawn", 61),
        ("ru-clock-shop", 66),
        ("ru-rain-library", 162),
        ("ru-bee-garden", 249),
    ]


def test_stride_two():
    e = epoch(documents(d=[0, 10, 11, 12, 13, 14, 1]), 2, 2, 2)
    assert written(e) == "d@0,d@2 | d@4"


def test_seeds_21_and_22_differ():
    docs = documents(d=[0, 1, 2, 3, 4, 5, 6])
    orders = [places(epoch(docs, 2, 1, 2, seed=s)) for s in (21, 22, 21)]
    assert orders[0] != orders[1]
    assert orders[0] == orders[2]


@pytest.mark.parametrize("docs", [[], documents(d=[0, 1]), documents(d=[0, 1, 2])])
def test_shuffle_of_nothing_or_one_leaves_the_seed(docs):
    e = epoch(docs, 2, 1, 4, seed=99)
    assert e.shuffle_state_after == 99
    assert e.batch_count == e.window_count == len(e.batches) == len(docs and docs[0].token_ids) // 3


def test_huge_stride_and_batch_size():
    e = epoch(documents(d=[7, 8, 9], e=[4, 5]), 1, 2**64 - 1, 2**64 - 1)
    assert written(e) == "d@0,e@0"


@pytest.mark.parametrize(
    ("make", "kind", "fields"),
    [
        (lambda: MiniBatchConfig(0), "ZeroBatchSize", {}),
        (lambda: MiniBatchConfig(-3), "InvalidSize", {"name": "batch_size", "value": -3}),
        (lambda: BatchOrder.shuffled(2**64), "InvalidSize", {"name": "seed", "value": 2**64}),
        (lambda: BatchOrder.shuffled(None), "InvalidSize", {"name": "seed", "value": None}),
        (lambda: BatchDocument("", TRAIN, [1]), "EmptyDocumentId", {}),
        (
            lambda: BatchDocument("d", TRAIN, [1, -1]),
            "InvalidTokenId",
            {"id": "d", "position": 1, "value": -1},
        ),
        (
            lambda: BatchDocument("d", TRAIN, np.array([1, 2, 2**32])),
            "InvalidTokenId",
            {"id": "d", "position": 2, "value": 2**32},
        ),
        (
            lambda: BatchDocument("d", TRAIN, [0, 1.5]),
            "InvalidTokenId",
            {"id": "d", "position": 1, "value": 1.5},
        ),
        (
            lambda: epoch(
                [
                    BatchDocument("d", TRAIN, [1]),
                    BatchDocument("d", TRAIN, [1]),
                    BatchDocument("t", Partition.TEST, [1]),
                ],
                2,
                1,
                1,
            ),
            "DuplicateDocumentId",
            {"id": "d", "first": 0, "repeated": 1},
        ),
        (
            lambda: epoch([BatchDocument("t", Partition.TEST, [1])] * 2, 2, 1, 1),
            "PartitionMismatch",
            {"document_index": 0, "expected": TRAIN, "actual": Partition.TEST},
        ),
        (lambda: batches._list_windows([2**64 - 1, 1], 1), "WindowCountOverflow", {}),
        (lambda: batches._token_count(2**33, 2**31), "TokenCountOverflow", {}),
        (lambda: batches._allocate(2**40, 2**21), "AllocationFailed", {"elements": 2**61}),
    ],
)
def test_errors(make, kind, fields):
    with pytest.raises(DataError) as caught:
        make()
    assert caught.value.kind == kind
    assert caught.value.fields == fields


def test_token_ids_are_copied_and_read_only():
    given_ids = np.array([1, 2, 3])
    document = BatchDocument("d", TRAIN, given_ids)
    given_ids[0] = 9
    assert document.token_ids.tolist() == [1, 2, 3]
    batch = epoch([document], 2, 1, 1).batches[0]
    for array in (document.token_ids, batch.inputs, batch.targets):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5


def test_batches_are_made_one_at_a_time():
    # 200,000 windows of 256 tokens would be 800 MB of rows
    e = epoch([BatchDocument("d", TRAIN, np.arange(200_000) % 97)], 256, 1, 8, seed=1)
    tracemalloc.start()
    total = sum(int(b.inputs[0, 0]) for b in e.batches[:50])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total > 0
    assert peak < 5_000_000


@given(
    lengths=st.lists(st.integers(0, 12), max_size=6),
    context=st.integers(1, 4),
    stride=st.integers(1, 5),
    size=st.integers(1, 9),
    seed=st.none() | st.integers(0, 2**64 - 1),
)
def test_every_epoch(lengths, context, stride, size, seed):
    docs = [
        BatchDocument(f"d{i}", TRAIN, [100 * i + k for k in range(n)])
        for i, n in enumerate(lengths)
    ]
    e = epoch(docs, context, stride, size, seed)
    expected, state = epoch_windows(lengths, context, stride, seed)
    assert e.shuffle_state_after == state
    seen = [(p.document_index, p.start) for b in e.batches for p in b.provenance]
    assert seen == expected
    assert len(set(seen)) == len(seen) == e.window_count
    assert [b.width for b in e.batches] == [
        min(size, len(seen) - at) for at in range(0, len(seen), size)
    ]
    for batch in e.batches:
        assert batch.partition is TRAIN
        for row, place in enumerate(batch.provenance):
            tokens = docs[place.document_index].token_ids.tolist()
            s = place.start
            assert batch.inputs[row].tolist() == tokens[s : s + context]
            assert batch.targets[row].tolist() == tokens[s + 1 : s + context + 1]
