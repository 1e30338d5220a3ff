"""Every epoch has an order of its own, which depends on the seed and its number alone."""

import numpy as np
import pytest

from llmcy.data import (
    BatchDocument,
    BatchOrder,
    MiniBatchConfig,
    MiniBatchEpoch,
    Partition,
    ReshuffledEpochs,
    WindowConfig,
    epoch_seed,
)
from llmcy.errors import DataError, RangeError
from llmcy.rng import SplitMix64

TOKENS = [np.arange(17) % 5, np.arange(14) % 7]


def documents() -> list[BatchDocument]:
    return [BatchDocument(f"d{k}", Partition.TRAIN, ids) for k, ids in enumerate(TOKENS)]


def epochs(seed: int = 9) -> ReshuffledEpochs:
    return ReshuffledEpochs(documents(), WindowConfig(4, 2), 3, seed)


@pytest.mark.parametrize("seed", [0, 9, 2**64 - 1])
def test_the_seeds_are_the_draws_of_one_stream(seed: int) -> None:
    stream = SplitMix64(seed)
    seeds = [epoch_seed(seed, e) for e in range(50)]
    assert seeds == [seed, *(stream.next_u64() for _ in range(49))]
    assert len(set(seeds)) == 50


def test_the_first_epoch_is_the_published_one() -> None:
    config = MiniBatchConfig(3, BatchOrder.shuffled(9))
    published = MiniBatchEpoch.build(Partition.TRAIN, documents(), WindowConfig(4, 2), config)
    assert epochs().epoch(0).windows.tobytes() == published.windows.tobytes()


def test_every_epoch_visits_every_window_once_in_another_order() -> None:
    orders = [epochs().epoch(e).windows.tolist() for e in range(4)]
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    assert len({str(order) for order in orders}) == 4


def test_a_batch_depends_on_its_number_alone() -> None:
    forward, anywhere = epochs(), epochs()
    n = forward.batch_count
    steps = list(range(1, 3 * n + 1))
    in_order = {step: forward.batch_of(step) for step in steps}
    for step in reversed(steps):
        batch = anywhere.batch_of(step)
        assert batch.provenance == in_order[step].provenance
        assert batch.inputs.tobytes() == in_order[step].inputs.tobytes()
        position = anywhere.position(step)
        assert (position.epoch, position.cursor) == ((step - 1) // n, (step - 1) % n)
    rows = [p for step in steps[n : 2 * n] for p in in_order[step].provenance]
    assert len(set(rows)) == len(rows) == forward.epoch(0).window_count


def test_a_step_before_the_first_is_refused() -> None:
    with pytest.raises(RangeError):
        epochs().position(0)
    with pytest.raises(DataError):
        ReshuffledEpochs(documents(), WindowConfig(4, 2), 0, 1)


def test_a_mapped_document_reads_the_same_rows_and_copies_nothing() -> None:
    held = np.concatenate(TOKENS).astype(np.uint32)
    mapped = [
        BatchDocument.mapped("d0", Partition.TRAIN, held[:17]),
        BatchDocument.mapped("d1", Partition.TRAIN, held[17:]),
    ]
    assert np.shares_memory(mapped[0].token_ids, held)
    assert not mapped[0].token_ids.flags.writeable
    a = ReshuffledEpochs(mapped, WindowConfig(4, 2), 3, 9)
    for step in range(1, a.batch_count + 1):
        ours, theirs = a.batch_of(step), epochs().batch_of(step)
        assert ours.inputs.dtype == np.int64
        assert ours.inputs.tobytes() == theirs.inputs.tobytes()
        assert ours.targets.tobytes() == theirs.targets.tobytes()
