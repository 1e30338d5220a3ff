"""The random stream against published draws and the definition in plain integers."""

import numpy as np
import pytest

from llmcy.errors import RangeError
from llmcy.rng import SplitMix64

MASK = 2**64 - 1


def plain_draw(state: int) -> tuple[int, int]:
    state = (state + 0x9E3779B97F4A7C15) & MASK
    z = state
    z = ((z ^ z >> 30) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ z >> 27) * 0x94D049BB133111EB) & MASK
    return z ^ z >> 31, state


def test_published_draws() -> None:
    rng = SplitMix64(33)
    assert [rng.next_u64() for _ in range(3)] == [
        0x2C0E0FEDBE2218A8,
        0x134268759688C202,
        0x4C540E1AB04E72E1,
    ]
    zero = SplitMix64(0)
    assert [zero.next_u64() for _ in range(4)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
        0xF88BB8A8724C81EC,
    ]


def test_seed_35_state_and_next_draw() -> None:
    rng = SplitMix64(35)
    rng.next_u64()
    assert rng.state == 0x9E3779B97F4A7C38
    assert rng.next_u64() == 0x9A8C505971939232


def test_unit_below_and_shuffle_follow_the_definition() -> None:
    rng, state = SplitMix64(2**64 - 5), 2**64 - 5
    for n in (1, 2, 3, 10, 2**63 + 1, MASK):
        floor = (2**64 - n) % n
        draw, state = plain_draw(state)
        while draw < floor:
            draw, state = plain_draw(state)
        assert rng.below(n) == draw % n
    draw, state = plain_draw(state)
    assert rng.unit() == (draw >> 11) / 2**53
    rows = np.arange(34, dtype=np.int64).reshape(17, 2)
    plain = rows.tolist()
    for i in range(16, 0, -1):
        draw, state = plain_draw(state)  # a rejection has probability 2**-60 here
        j = draw % (i + 1)
        plain[i], plain[j] = plain[j], plain[i]
    rng.shuffle(rows)
    assert rows.tolist() == plain
    assert rng.state == state
    units = rng.fill_unit(5)
    for value in units:
        draw, state = plain_draw(state)
        assert value == (draw >> 11) / 2**53


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, True])
def test_seed_outside_64_bits_is_refused(seed: object) -> None:
    with pytest.raises(RangeError, match="seed"):
        SplitMix64(seed)  # type: ignore[arg-type]
