"""AdamW's state as a value: every way in which it can be wrong."""

import math

import numpy as np
import pytest

from llmcy.errors import DTypeError, OptimizerError, OptimizerStateError, RangeError
from llmcy.optim import (
    AdamW,
    AdamWConfig,
    AdamWState,
    AdamWStateEntry,
    OptimizerSnapshot,
    ParameterGroups,
)
from llmcy.tape import Tensor

CONFIG = AdamWConfig(0.1)


def entry(name: str = "w", shape: tuple[int, ...] = (2, 3), **moments: object) -> AdamWStateEntry:
    count = math.prod(shape)
    first = moments.get("first", np.arange(count) - 1.0)
    second = moments.get("second", np.arange(count) * 0.5)
    return AdamWStateEntry(name, shape, first, second)


ENTRY_FAULTS = [
    ("EmptyParameterName", {"name": ""}, {}),
    ("ShapeOverflow", {"shape": (2**32, 2**32, 0), "first": [], "second": []}, {"name": "w"}),
    (
        "ElementCountMismatch",
        {"first": np.zeros(5)},
        {"name": "w", "moment": "first", "expected": 6, "actual": 5},
    ),
    (
        "ElementCountMismatch",
        {"second": np.zeros(7)},
        {"name": "w", "moment": "second", "expected": 6, "actual": 7},
    ),
    (
        "NonFiniteMoment",
        {"first": np.array([0, 1, math.inf, 0, math.nan, 0])},
        {"name": "w", "moment": "first", "index": 2, "value": math.inf},
    ),
    (
        "NonFiniteMoment",
        {"second": np.array([0, 1, 1, 0, -math.inf, 0])},
        {"name": "w", "moment": "second", "index": 4, "value": -math.inf},
    ),
    (
        "NegativeSecondMoment",
        {"second": np.array([0, -0.0, 1, 0, 1, -1e-300])},
        {"name": "w", "index": 5, "value": -1e-300},
    ),
]


@pytest.mark.feature("M01", "M08")
@pytest.mark.parametrize(("kind", "change", "fields"), ENTRY_FAULTS)
def test_a_malformed_entry_carries_its_data(
    kind: str, change: dict[str, object], fields: dict[str, object]
) -> None:
    with pytest.raises(OptimizerStateError) as caught:
        entry(**change)
    assert caught.value.kind == kind
    for name, value in fields.items():
        assert getattr(caught.value, name) == value
        assert str(value) in str(caught.value)


@pytest.mark.feature("M01")
def test_entries_are_checked_in_order() -> None:
    faults = [change for _, change, _ in ENTRY_FAULTS if "shape" not in change]
    kinds = [kind for kind, change, _ in ENTRY_FAULTS if "shape" not in change]
    for index in range(len(faults)):
        merged: dict[str, object] = {}
        for change in faults[index:]:
            merged = {**change, **merged}  # what is at fault earlier stays
        with pytest.raises(OptimizerStateError) as caught:
            entry(**merged)
        assert caught.value.kind == kinds[index]


def test_moments_are_float64_or_float32_and_alike() -> None:
    for first, second in (
        (np.zeros(6, np.int64), np.zeros(6)),
        (np.zeros(6), np.zeros(6, np.float32)),
        (np.zeros(6, np.float16), np.zeros(6, np.float16)),
    ):
        with pytest.raises(DTypeError):
            entry(first=first, second=second)
    assert entry(first=np.zeros(6, np.float32), second=np.zeros(6, np.float32)).dtype == np.float32


@pytest.mark.feature("M05")
def test_entries_are_read_only_copies() -> None:
    first = np.arange(6.0)
    made = entry(first=first)
    first[:] = 7.0
    assert made.first_moment.tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    for array in (made.first_moment, made.second_moment):
        with pytest.raises(ValueError):
            array[0, 0] = 1.0
        with pytest.raises(ValueError):
            array.flags.writeable = True
    with pytest.raises(AttributeError):
        made.name = "other"  # type: ignore[misc]


def test_negative_zero_is_a_second_moment() -> None:
    assert math.copysign(1.0, entry(second=-np.zeros(6)).second_moment[0, 0]) == -1.0


# --------------------------------------------------------------------------- the whole state
@pytest.mark.feature("M02")
def test_step_zero_has_powers_of_one_and_no_moments() -> None:
    assert AdamWState(0, 1.0, 1.0).entries == ()
    assert AdamWState.initial().step == 0
    for name, powers in (("beta1", (1.0 - 2.0**-53, 1.0)), ("beta2", (1.0, 1.0 - 2.0**-53))):
        with pytest.raises(OptimizerStateError) as caught:
            AdamWState(0, *powers)
        assert (caught.value.kind, caught.value.name, caught.value.step) == (
            "InvalidBetaPower", name, 0,
        )  # fmt: skip
    with pytest.raises(OptimizerStateError) as caught:
        AdamWState(0, 1.0, 1.0, [entry()])
    assert (caught.value.kind, caught.value.step, caught.value.entries) == ("StatePresence", 0, 1)


@pytest.mark.feature("M03", "M08")
def test_later_steps_have_powers_below_one_and_moments() -> None:
    assert AdamWState(3, 0.0, 0.5, [entry()]).beta1_power == 0.0
    for power in (1.0, -1e-9, math.nan, math.inf):
        for powers, name in (((power, 0.5), "beta1"), ((0.5, power), "beta2")):
            with pytest.raises(OptimizerStateError) as caught:
                AdamWState(3, *powers, [entry()])
            assert (caught.value.kind, caught.value.name, caught.value.step) == (
                "InvalidBetaPower", name, 3,
            )  # fmt: skip
            assert str(caught.value.value) == str(power)
    with pytest.raises(OptimizerStateError) as caught:
        AdamWState(8, 0.5, 0.5)
    assert (caught.value.kind, caught.value.step, caught.value.entries) == ("StatePresence", 8, 0)


@pytest.mark.feature("M06")
def test_a_repeated_name_is_refused() -> None:
    with pytest.raises(OptimizerStateError) as caught:
        AdamWState(1, 0.9, 0.9, [entry("a"), entry("b"), entry("a")])
    assert (caught.value.kind, caught.value.name) == ("DuplicateParameterName", "a")


@pytest.mark.parametrize("step", [-1, 2**64, 1.0, True])
def test_a_step_is_a_64_bit_count(step: object) -> None:
    with pytest.raises(RangeError):
        AdamWState(step, 1.0, 1.0)  # type: ignore[arg-type]


@pytest.mark.feature("M05")
def test_entries_are_kept_in_byte_order() -> None:
    state = AdamWState(1, 0.9, 0.9, [entry("b_x"), entry("c"), entry("b.x")])
    assert state.names() == ("b.x", "b_x", "c")
    assert state.entry("c") is state.entries[2]
    assert state.entry("d") is None
    other = AdamWState(1, 0.9, 0.9, [entry("b.x"), entry("b_x"), entry("c")])
    assert state.equal_bits(other)
    assert not state.equal_bits(AdamWState(1, 0.9, 0.9, [entry("b.x"), entry("b_x"), entry("d")]))


# --------------------------------------------------------------------------- with an optimizer
def stepped(groups: ParameterGroups | None, betas: tuple[float, float] = (0.9, 0.999)) -> AdamW:
    optimizer = AdamW(AdamWConfig(0.1, betas=betas), groups)
    named = named_tensors()
    for _ in range(3):
        optimizer.step(named)
    return optimizer


def named_tensors() -> list[tuple[str, Tensor]]:
    named = []
    for k, name in enumerate(("w", "g")):
        tensor = Tensor(np.arange(4.0) + k, requires_grad=True)
        tensor.grad = np.array([0.5, -1.0, 0.25 * k, 3.0])
        named.append((name, tensor))
    return named


@pytest.mark.feature("M07")
def test_groups_must_cover_the_moments_after_step_zero() -> None:
    state = stepped(None).state()
    wrong = ParameterGroups(["w"], ["gain"])
    for make in (AdamW.from_state, OptimizerSnapshot):
        with pytest.raises(OptimizerStateError) as caught:
            make(CONFIG, wrong, state)
        assert caught.value.kind == "ParameterGroupsMismatch"
        assert (caught.value.expected, caught.value.actual) == (("gain", "w"), ("g", "w"))
        make(CONFIG, ParameterGroups(["w"], ["g"]), state)
        make(CONFIG, wrong, AdamWState.initial())  # nothing to compare with yet


@pytest.mark.feature("M04")
def test_powers_are_restored_and_never_recomputed() -> None:
    optimizer = stepped(None)
    state = optimizer.state()
    assert state.beta1_power == (0.9 * 0.9) * 0.9
    running = 1.0
    differs = []
    for step in range(1, 60):
        running *= 0.9
        differs.append(running != 0.9**step)
    assert any(differs)  # a recomputed power would be another number
    odd = AdamWState(state.step, 0.123, 0.456, state.entries)
    restored = AdamW.from_state(CONFIG, None, odd)
    assert (restored.state().beta1_power, restored.state().beta2_power) == (0.123, 0.456)
    named = named_tensors()
    assert restored.step(named) == 4
    assert restored.state().beta1_power == 0.123 * 0.9


@pytest.mark.feature("M05", "M17")
def test_the_order_of_parameters_does_not_matter() -> None:
    state = stepped(None).state()
    results = []
    for order in (1, -1):
        optimizer = AdamW.from_state(CONFIG, None, state)
        named = named_tensors()[::order]
        optimizer.step(named)
        results.append(({n: t.data.tobytes() for n, t in named}, optimizer.state()))
    assert results[0][0] == results[1][0]
    assert results[0][1].equal_bits(results[1][1])


def test_a_restored_optimizer_owns_its_moments() -> None:
    state = stepped(None).state()
    bits = [array.tobytes() for array in state.moment_arrays()]
    for _ in range(3):
        AdamW.from_state(CONFIG, None, state).step(named_tensors())
    assert [array.tobytes() for array in state.moment_arrays()] == bits
    with pytest.raises(OptimizerError):
        AdamW.from_state(CONFIG, None, state).step(named_tensors()[:1])
