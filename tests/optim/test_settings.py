"""AdamW's numbers, its groups, and the schedules."""

import math

import pytest
from mpmath import mp, mpf

from llmcy.errors import OptimizerError, RangeError, TrainerError
from llmcy.optim import AdamWConfig, LearningRateSchedule, ParameterGroups
from llmcy.reference.fixtures import PUBLISHED

INF, NAN = math.inf, math.nan


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        *[("InvalidLearningRate", {"learning_rate": x}) for x in (0.0, -1.0, NAN, INF, -INF)],
        *[("InvalidBeta1", {"betas": (x, 0.999)}) for x in (-1e-9, 1.0, NAN, INF)],
        *[("InvalidBeta2", {"betas": (0.9, x)}) for x in (-1e-9, 1.0, NAN, INF)],
        *[("InvalidEpsilon", {"eps": x}) for x in (0.0, -1e-8, NAN, INF)],
        *[("InvalidWeightDecay", {"weight_decay": x}) for x in (-0.01, NAN, INF)],
        ("InvalidDecayProduct", {"learning_rate": 0.5, "weight_decay": 2.0}),
        ("InvalidDecayProduct", {"learning_rate": 1e-200, "weight_decay": 1e-200}),
        ("InvalidDecayProduct", {"learning_rate": 1e200, "weight_decay": 1e200}),
    ],
)
def test_a_setting_out_of_range_is_named(kind: str, changes: dict[str, float]) -> None:
    with pytest.raises(OptimizerError) as caught:
        AdamWConfig(**{"learning_rate": 0.04, **changes})
    assert caught.value.kind == kind
    changed = [v for x in changes.values() for v in (x if isinstance(x, tuple) else (x,))]
    if kind != "InvalidDecayProduct":
        assert any(math.isnan(v) if math.isnan(caught.value.value) else v == caught.value.value
                   for v in changed)  # fmt: skip


def test_settings_are_checked_in_order() -> None:
    with pytest.raises(OptimizerError) as caught:
        AdamWConfig(0.1, betas=(2.0, 2.0), eps=0.0, weight_decay=-1.0)
    assert caught.value.kind == "InvalidBeta1"
    with pytest.raises(OptimizerError) as caught:
        AdamWConfig(0.1, betas=(0.0, 0.0), eps=NAN, weight_decay=-1.0)
    assert caught.value.kind == "InvalidEpsilon"


def test_zero_decay_has_no_product() -> None:
    assert AdamWConfig(1e300, weight_decay=0.0).weight_decay == 0.0


def test_another_rate_checks_the_product_again() -> None:
    config = AdamWConfig(0.04, weight_decay=0.5)
    assert config.with_learning_rate(0.02) == AdamWConfig(0.02, weight_decay=0.5)
    with pytest.raises(OptimizerError) as caught:
        config.with_learning_rate(2.0)
    assert (caught.value.kind, caught.value.value) == ("InvalidDecayProduct", 1.0)


# --------------------------------------------------------------------------- groups
@pytest.mark.parametrize(
    ("kind", "decay", "no_decay", "name"),
    [
        ("EmptyGroupedParameterName", ["a", ""], [], None),
        ("EmptyGroupedParameterName", [], [""], None),
        ("DuplicateGroupedParameter", ["a", "b", "a"], ["b"], "a"),
        ("DuplicateGroupedParameter", ["a"], ["c", "c"], "c"),
        ("EmptyParameterGroups", [], [], None),
        ("ParameterInMultipleGroups", ["z", "b", "a"], ["z", "b"], "b"),
    ],
)
def test_groups_that_contradict_themselves(
    kind: str, decay: list[str], no_decay: list[str], name: str | None
) -> None:
    with pytest.raises(OptimizerError) as caught:
        ParameterGroups(decay, no_decay)
    assert caught.value.kind == kind
    assert name is None or caught.value.name == name


def test_groups_are_kept_in_byte_order() -> None:
    groups = ParameterGroups(["blocks.2.w", "b_x", "blocks.10.w", "b.x"], ["\U0001f600", "￿"])
    assert groups.decay == ("b.x", "b_x", "blocks.10.w", "blocks.2.w")
    assert groups.no_decay == ("￿", "\U0001f600")  # UTF-16 would order them the other way
    assert groups.names == (*groups.decay, *groups.no_decay)


@pytest.mark.feature("B55")
def test_gains_do_not_decay() -> None:
    groups = ParameterGroups.from_rule(PUBLISHED.model_config.parameter_shapes())
    assert len(groups.decay) == 8
    assert groups.no_decay == (
        "blocks.0.attention_norm.gain",
        "blocks.0.ffn_norm.gain",
        "final_norm.gain",
    )


# --------------------------------------------------------------------------- schedules
@pytest.mark.feature("B01", "A08")
def test_a_schedule_tells_its_rates() -> None:
    schedule = LearningRateSchedule([0.04, 0.02, 5e-324])
    assert schedule.steps() == len(schedule) == 3
    assert schedule.rates() == (0.04, 0.02, 5e-324)
    assert [schedule.learning_rate(s) for s in (-1, 0, 1, 2, 3, 4)] == [
        None, None, 0.04, 0.02, 5e-324, None,
    ]  # fmt: skip


@pytest.mark.feature("B02")
def test_an_empty_schedule() -> None:
    with pytest.raises(TrainerError) as caught:
        LearningRateSchedule([])
    assert caught.value.kind == "EmptyLearningRateSchedule"


@pytest.mark.feature("A08", "B03")
@pytest.mark.parametrize("bad", [0.0, -0.0, -1.0, NAN, INF, -INF])
@pytest.mark.parametrize("step", [1, 2, 3])
def test_a_bad_rate_is_named_with_its_step(bad: float, step: int) -> None:
    rates = [0.1, 0.1, 0.1, bad]
    rates[step - 1] = bad
    with pytest.raises(TrainerError) as caught:
        LearningRateSchedule(rates)
    assert (caught.value.kind, caught.value.step) == ("InvalidScheduledLearningRate", step)
    assert str(caught.value.value) == str(bad)


@pytest.mark.feature("A03", "H02")
def test_segments_and_halving_lists_are_exact() -> None:
    schedule = LearningRateSchedule.segments([(0.04, 2), (0.025, 2), (0.015, 2), (0.008, 2)])
    assert schedule == LearningRateSchedule(PUBLISHED.rates)
    assert hash(schedule) == hash(LearningRateSchedule(PUBLISHED.rates))
    halved = LearningRateSchedule.segments((0.7 / 2**k, 3) for k in range(4))
    assert halved.rates() == (0.7,) * 3 + (0.35,) * 3 + (0.175,) * 3 + (0.0875,) * 3
    assert LearningRateSchedule.constant(0.04, 3).rates() == (0.04,) * 3


@pytest.mark.feature("H03")
def test_warmup_and_inverse_root_have_the_closed_form() -> None:
    d_model, warmup, steps = 512, 40, 200
    peak = 1.0 / math.sqrt(d_model * warmup)
    rates = LearningRateSchedule.warmup_inverse_sqrt(peak, warmup, steps).rates()
    with mp.workdps(40):
        for step, rate in enumerate(rates, start=1):
            closed = mpf(d_model) ** -0.5 * min(mpf(step) ** -0.5, step * mpf(warmup) ** -1.5)
            assert abs(rate / closed - 1) < 1e-15
    assert len(rates) == steps
    assert max(rates) == rates[warmup - 1] == peak


def test_warmup_and_cosine() -> None:
    peak, low, warmup, steps = 3e-3, 3e-4, 5, 50
    rates = LearningRateSchedule.warmup_cosine(peak, warmup, steps, low).rates()
    assert len(rates) == steps
    assert rates[:5] == tuple(peak * (s / 5) for s in range(1, 6))
    assert rates[-1] == low
    with mp.workdps(40):
        for step in range(warmup + 1, steps + 1):
            angle = mp.pi * (step - warmup) / (steps - warmup)
            closed = low + (mpf(peak) - low) * (1 + mp.cos(angle)) / 2
            assert abs(rates[step - 1] - closed) < 1e-17
    assert LearningRateSchedule.warmup_cosine(peak, 0, 1, low).rates() == (low,)
    assert LearningRateSchedule.warmup_cosine(peak, 9, 4, low).steps() == 4


def test_warmup_and_a_straight_line() -> None:
    peak, low, warmup, steps = 3e-3, 3e-4, 5, 50
    rates = LearningRateSchedule.warmup_linear(peak, warmup, steps, low).rates()
    assert rates[:5] == tuple(peak * (s / 5) for s in range(1, 6))
    assert (rates[4], rates[-1]) == (peak, low)
    with mp.workdps(40):
        for step in range(warmup + 1, steps + 1):
            closed = low + (mpf(peak) - low) * (steps - step) / (steps - warmup)
            assert abs(rates[step - 1] - closed) < 1e-17
    assert LearningRateSchedule.warmup_linear(peak, 0, 1, low).rates() == (low,)
    assert LearningRateSchedule.warmup_linear(peak, 9, 4, low).rates() == tuple(
        peak * (s / 9) for s in range(1, 5)
    )


def test_warmup_then_stable_then_decay() -> None:
    peak, low = 0.7, 0.1
    rates = LearningRateSchedule.warmup_stable_decay(peak, 3, 12, 4, low).rates()
    assert rates[:3] == (peak * (1 / 3), peak * (2 / 3), peak)
    assert rates[3:8] == (peak,) * 5
    assert rates[8:] == tuple(low + (peak - low) * (k / 4) for k in (3, 2, 1, 0))
    assert rates[-1] == low
    never = LearningRateSchedule.warmup_stable_decay(peak, 0, 5, 0, low)
    assert never == LearningRateSchedule.constant(peak, 5)
    only = LearningRateSchedule.warmup_stable_decay(peak, 2, 6, 6, low).rates()
    assert only == (peak * 0.5, peak, *(low + (peak - low) * (k / 6) for k in (3, 2, 1, 0)))


@pytest.mark.parametrize(
    "make",
    [
        lambda: AdamWConfig("0.1"),
        lambda: AdamWConfig(0.1, betas=(None, 0.9)),
        lambda: LearningRateSchedule([0.1, "fast"]),
        lambda: LearningRateSchedule.constant(0.1, -1),
        lambda: LearningRateSchedule.constant(0.1, 2.5),
        lambda: LearningRateSchedule.warmup_inverse_sqrt(0.1, 0, 10),
        lambda: LearningRateSchedule.warmup_inverse_sqrt(NAN, 1, 10),
        lambda: LearningRateSchedule.warmup_cosine(0.1, 1, 10, 0.0),
        lambda: LearningRateSchedule.warmup_linear(0.1, 1, 10, 0.0),
        lambda: LearningRateSchedule.warmup_stable_decay(0.1, 1, 10, -1, 0.01),
        lambda: LearningRateSchedule.warmup_stable_decay(0.1, 1, 10, 2, 0.0),
    ],
)
def test_what_is_no_number_is_refused(make: object) -> None:
    with pytest.raises(RangeError):
        make()  # type: ignore[operator]
