"""The training report and the trace: what they say follows from the run they are given."""

from dataclasses import replace

import pytest

from llmcy.reference import expected
from llmcy.reference.figure import SELECTED, TRAIN, VALIDATION, loss_figure
from llmcy.reference.fixtures import PUBLISHED
from llmcy.reference.report import training_report
from llmcy.reference.selftest import Published, compare, measure_published
from llmcy.reference.trace import axis, schedule_ranges, training_trace
from llmcy.reference.training import (
    MeasuredTraining,
    earliest_minimum,
    measure_training,
    refuses_test_updates,
    same_bits,
)
from llmcy.trainer import UPDATE_EVENT_ORDER


@pytest.fixture(scope="module")
def published() -> Published:
    return measure_published()


@pytest.fixture(scope="module")
def free() -> MeasuredTraining:
    """The published run under a ceiling that no step reaches, with other rates."""
    return measure_training(
        replace(
            PUBLISHED,
            max_grad_norm=10.0,
            rates=(0.01, 0.01, 0.01),
            validation_steps=(0, 3),
        )
    )


def field(report: str, key: str, name: str) -> list[str]:
    """Every value of a field, over all lines with that key."""
    return [
        dict(pair.split(":", 1) for pair in line.removeprefix(f"{key}=").split(" "))[name]
        for line in report.splitlines()
        if line.startswith(f"{key}=")
    ]


def test_all_published_values_are_met(published: Published) -> None:
    assert compare(published) == []


def test_a_changed_run_is_noticed(published: Published) -> None:
    steps = list(published.training.result.steps)
    steps[4] = replace(steps[4], train_loss=steps[4].train_loss * (1 + 2.0**-52))
    result = published.training.result
    other = type(result)(
        tuple(steps),
        result.checkpoints,
        result.selected_validation_loss,
        result.selected_training_state,
        result.final_state,
        result.final_optimizer,
    )
    assert not same_bits(result, other)
    changed = replace(published, training=replace(published.training, result=other))
    problems = compare(changed)
    assert [problem.split(":")[0] for problem in problems] == ["update losses"]


@pytest.mark.feature("C04")
def test_axis_is_tenths_around_the_measured_losses(published: Published) -> None:
    losses = [
        loss
        for checkpoint in published.training.result.checkpoints
        for loss in (checkpoint.train.loss, checkpoint.validation.loss)
    ]
    assert axis(losses) == (1.3, 1.7, 2.1)
    assert axis([1.25, 1.25]) == (1.2, 1.25, 1.3)
    assert axis([2.0, 2.0]) == (2.0, 2.05, 2.1)  # on a tick: widened by a tenth
    assert "AXIS|min=1.3|middle=1.7|max=2.1" in published.trace.splitlines()


@pytest.mark.feature("C01", "C02", "C03", "C05", "C12")
def test_trace_has_its_lines_in_order(published: Published) -> None:
    lines = published.trace.splitlines()
    kinds = [line.split("|")[0] for line in lines]
    assert kinds == (
        ["TRAINING_SELECTION_TRACE_V1", "CONFIG", "ORDER"]
        + ["SCHEDULE"] * 4
        + ["UPDATE"] * 8
        + ["AXIS"]
        + ["CHECKPOINT"] * 5
        + ["SELECT", "PROOF", "END"]
    )
    assert sum("selected=true" in line for line in lines) == 1
    for line in lines:
        if line.startswith(("UPDATE|", "PROOF|")):
            assert "|nodes_preserved=true|" in line
            assert "|cleared=true" in line


@pytest.mark.feature("C10")
def test_trace_says_which_partition_does_what(published: Published) -> None:
    proof = next(line for line in published.trace.splitlines() if line.startswith("PROOF|"))
    assert "|updates=train|selection=validation|test=rejected|" in proof
    assert refuses_test_updates(PUBLISHED)


@pytest.mark.feature("B11", "A09")
def test_the_order_of_events_can_be_read_and_is_what_happened(published: Published) -> None:
    order = ("forward", "backward", "finite-check", "clip", "adamw-step", "zero-grad")
    assert order == UPDATE_EVENT_ORDER  # a constant: nothing has to run
    assert {step.events for step in published.training.result.steps} == {UPDATE_EVENT_ORDER}
    assert "ORDER|" + "|".join(order) in published.trace.splitlines()
    assert "order=" + ",".join(order) in published.training_report.splitlines()


def test_schedule_ranges_join_equal_neighbours_only() -> None:
    assert schedule_ranges([0.1, 0.1, 0.2, 0.1]) == [(1, 2, 0.1), (3, 3, 0.2), (4, 4, 0.1)]


@pytest.mark.feature("H09", "A17", "D03")
@pytest.mark.parametrize(
    ("losses", "selected"),
    [([2.0, 1.5, 1.2], 2), ([2.0, 1.3, 1.4], 1), ([1.8, 1.6, 1.6], 1), ([1.0], 0)],
)
def test_earliest_minimum(losses: list[float], selected: int) -> None:
    assert earliest_minimum(losses) == selected


@pytest.mark.feature("C11X")
def test_a_run_in_which_no_step_clips_is_reported_as_such(free: MeasuredTraining) -> None:
    report = training_report(free)
    assert field(report, "clipping", "observed") == ["false"]
    assert field(report, "clipping", "finite") == ["true"]
    trace = training_trace(free)
    assert trace.count("clipped=false") == 3
    assert trace.count("scale=1.000000") == 3


def test_flags_of_the_report_follow_the_measurement(free: MeasuredTraining) -> None:
    for name, key, shown in (
        ("replay_bitwise", "replay", "bitwise"),
        ("test_partition_rejected", "selection", "test_partition_rejected"),
        ("input_model_unchanged", "ownership", "input_model_unchanged"),
        ("input_optimizer_unchanged", "ownership", "input_optimizer_unchanged"),
        ("selected_restored", "ownership", "selected_restored"),
    ):
        report = training_report(replace(free, **{name: False}))
        assert field(report, key, shown) == ["false"]
        assert field(training_report(free), key, shown) == ["true"]


def test_numbers_of_the_report_follow_the_run(free: MeasuredTraining) -> None:
    report = training_report(free)
    assert report != expected.TRAINING_REPORT
    assert field(report, "config", "updates") == ["3"]
    assert field(report, "checkpoint", "step") == ["0", "3"]
    # nothing has been updated at step 0: the published first losses
    assert field(report, "checkpoint", "validation_loss")[0] == "1.918167"
    assert field(report, "selection", "step") == [str(free.result.selected_step)]


@pytest.mark.feature("C08X", "C09", "D06")
def test_figure_has_one_isolated_mark_for_each_measurement(published: Published) -> None:
    checkpoints = published.training.result.checkpoints
    figure = loss_figure(checkpoints)
    rows = [line.split("|", 1)[1] for line in figure.splitlines() if "|" in line]
    places = [(r, c) for r, row in enumerate(rows) for c, glyph in enumerate(row) if glyph != " "]
    glyphs = [rows[r][c] for r, c in places]
    assert sorted(glyphs) == sorted([TRAIN] * 5 + [VALIDATION] * 4 + [SELECTED])
    # isolated: no mark touches another, so nothing joins two measurements
    for r, c in places:
        near = [(a, b) for a, b in places if (a, b) != (r, c) and abs(a - r) < 2 and abs(b - c) < 2]
        assert near == []
    # the selected mark is the earliest minimum of the validation marks
    losses = [checkpoint.validation.loss for checkpoint in checkpoints]
    column = next(c for r, c in places if rows[r][c] == SELECTED)
    assert column // 8 == earliest_minimum(losses) == 4
    # and marks stand where their losses are: within half a row, a twentieth
    for r, c in places:
        checkpoint = checkpoints[c // 8]
        loss = checkpoint.train.loss if rows[r][c] == TRAIN else checkpoint.validation.loss
        assert abs((2.1 - r / 20.0) - loss) <= 0.5 / 20.0 + 1e-9
