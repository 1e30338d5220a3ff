"""The checkpoint report: measured on the published state and on another one."""

from dataclasses import replace

import pytest

from llmcy.checkpoint import Checkpoint
from llmcy.reference import expected
from llmcy.reference.fixtures import PUBLISHED
from llmcy.reference.replay_report import (
    SCOPE,
    MeasuredReplay,
    measure_replay,
    replay_report,
    reseal,
)


@pytest.fixture(scope="module")
def published() -> MeasuredReplay:
    return measure_replay(PUBLISHED.train_decoder().selected_training_state)


@pytest.fixture(scope="module")
def other() -> MeasuredReplay:
    """Four updates instead of eight."""
    fixture = replace(PUBLISHED, rates=PUBLISHED.rates[:4], validation_steps=(0, 2, 4))
    return measure_replay(fixture.train_decoder().selected_training_state)


def line(report: str, key: str) -> str:
    return next(text for text in report.splitlines() if text.startswith(f"{key}="))


@pytest.mark.feature("M50")
def test_published_report(published: MeasuredReplay) -> None:
    assert replay_report(published) == expected.REPLAY_REPORT


@pytest.mark.feature("J12")
def test_scope_has_27_entries_and_no_restart() -> None:
    entries = [entry for heading in SCOPE.values() for entry in heading]
    assert len(entries) == len(set(entries)) == 27
    assert list(SCOPE) == ["stored", "validated", "not_stored", "required"]
    assert line(expected.REPLAY_REPORT, "scope").endswith(" whole_job_resume:false")


def test_another_state_gives_other_numbers(
    published: MeasuredReplay, other: MeasuredReplay
) -> None:
    a, b = replay_report(published), replay_report(other)
    assert "selected_step:4 optimizer_step:4" in line(b, "state")
    assert "next_step:5" in line(b, "component_replay")
    for key in ("schema", "roundtrip", "component_replay"):
        assert line(a, key) != line(b, key)
    # a step number does not change a file's length
    assert line(a, "layout") == line(b, "layout")


@pytest.mark.feature("M38", "M40", "M43")
def test_flags_follow_the_measurement(published: MeasuredReplay) -> None:
    changed = replace(
        published,
        bytes_deterministic=False,
        next_draw_identical=False,
        branch=published.changed_batch,
        replaced_complete_file=False,
        rejected={**published.rejected, "truncation": False},
    )
    report = replay_report(changed)
    assert "bytes_deterministic:false" in line(report, "roundtrip")
    assert "sampling_rng_next_identical:false" in line(report, "roundtrip")
    replay = line(report, "component_replay")
    for name in ("parameter_bits", "optimizer_state", "logits_bits"):
        assert f"{name}_identical:false" in replay
    assert "changed_batch_diverges:false" in replay
    assert "changed_learning_rate_diverges:true" in replay
    assert "truncation:false" in line(report, "reject")
    assert "replaced_complete_file:false" in line(report, "atomic")


def test_another_rate_moves_parameters_and_leaves_moments(published: MeasuredReplay) -> None:
    report = replay_report(replace(published, branch=published.changed_rate))
    replay = line(report, "component_replay")
    assert "parameter_bits_identical:false" in replay
    assert "optimizer_state_identical:true" in replay
    assert "changed_learning_rate_diverges:false" in replay


def test_resealing_restores_a_valid_checksum(published: MeasuredReplay) -> None:
    data = published.encoded.bytes
    assert reseal(data) == data
    broken = data[:30] + bytes(8) + data[38:]
    assert reseal(broken) == data
    assert Checkpoint.from_bytes(reseal(broken)).encode().bytes == data
