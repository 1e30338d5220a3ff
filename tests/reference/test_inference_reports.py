"""The reports of final evaluation, sampling and cached generation, and what moves their lines."""

from dataclasses import replace

import pytest

from llmcy.generate import WorkCounters
from llmcy.reference import expected_inference as expected
from llmcy.reference.cache_report import cache_report
from llmcy.reference.evaluation_report import FORWARD, evaluation_report, measure_evaluation
from llmcy.reference.inference import Inference, measure_inference
from llmcy.reference.sampling_report import sampling_report
from llmcy.reference.selftest import Published, measure_published

EXPECTED = {
    "evaluation report": expected.EVALUATION_REPORT,
    "sampling report": expected.SAMPLING_REPORT,
    "cache report": expected.CACHE_REPORT,
}


@pytest.fixture(scope="module")
def published() -> Published:
    return measure_published()


@pytest.fixture(scope="module")
def inference(published: Published) -> Inference:
    return measure_inference(published.training, published.replay.encoded.bytes)


def fields(report: str, key: str) -> dict[str, str]:
    (line,) = [line for line in report.splitlines() if line.startswith(f"{key}=")]
    return dict(part.split(":", 1) for part in line.removeprefix(f"{key}=").split(" "))


@pytest.mark.parametrize("name", EXPECTED)
def test_every_published_line(isa: str, published: Published, name: str) -> None:
    measured = measure_inference(published.training, published.replay.encoded.bytes)
    assert measured.reports()[name].splitlines() == EXPECTED[name].splitlines()
    assert list(measured.problems()) == []


def test_on_the_training_cycle_the_order_reverses(published: Published) -> None:
    report = evaluation_report(measure_evaluation(published.training, FORWARD))
    assert fields(report, "comparison") == {
        "lower_loss": "frozen-bigram", "gap": "-0.708944", "same_targets": "true",
    }  # fmt: skip
    assert fields(report, "decoder")["mean_nll"] == "1.264663"
    assert fields(report, "bigram")["mean_nll"] == "0.555720"
    assert fields(report, "test")["fingerprint"] == "fnv1a64:ccaa919d3dec4081"


def test_evaluation_flags_follow_the_measurement(inference: Inference) -> None:
    measured = inference.evaluation
    open_gate = evaluation_report(replace(measured, openings_after=2))
    assert fields(open_gate, "test")["gate_openings_after"] == "2"
    assert fields(open_gate, "evidence")["within_run_selection_isolated"] == "false"
    let_in = evaluation_report(replace(measured, test_partition_rejected=False))
    assert fields(let_in, "selection")["test_partition_rejected"] == "false"
    assert fields(let_in, "proof")["selection_closed"] == "false"
    assert fields(let_in, "evidence")["within_run_selection_isolated"] == "false"
    moved = evaluation_report(replace(measured, baseline_unchanged=False, provenance_match=False))
    assert fields(moved, "baseline")["frozen"] == "false"
    assert fields(moved, "proof")["provenance_assertions_match"] == "false"
    score = replace(measured.report.decoder, total_nll=measured.report.decoder.total_nll + 1.0)
    unweighted = replace(measured, report=replace(measured.report, decoder=score))
    assert fields(evaluation_report(unweighted), "proof")["token_weighted"] == "false"


def test_sampling_lines_follow_the_measurement(inference: Inference) -> None:
    measured = inference.sampling
    changed = replace(
        measured,
        replayed=False,
        rng_unchanged=False,
        greedy_moved=True,
        draws=7,
        rejected={**measured.rejected, "top_k_zero": False},
        narrow=measured.drawn,
    )
    report = sampling_report(replace(changed, narrow=measured.narrow))
    assert fields(report, "checkpoint")["replay_identical"] == "false"
    assert fields(report, "errors")["top_k_zero"] == "false"
    assert fields(report, "errors")["rng_unchanged"] == "false"
    assert fields(report, "history")["greedy_rng_advanced"] == "true"
    assert fields(report, "sample")["draws"] == "7"


def test_cache_lines_follow_the_measurement(inference: Inference) -> None:
    measured = inference.cache
    changed = replace(
        measured,
        decode=replace(measured.decode, difference=0.5, layer_lengths=(3, 2)),
        work=WorkCounters(3, 2, 1, 6, 18, 25),
        storage_distinct=False,
        unchanged=False,
        rejected={**measured.rejected, "overflow": False},
        text=replace(measured.text, states_equal=False),
        ended=replace(measured.ended, cached=measured.text.cached),
    )
    report = cache_report(changed)
    assert fields(report, "decode")["max_abs_diff"] == "0.500000000000"
    assert fields(report, "decode")["layer_lengths"] == "[3,2]"
    assert fields(report, "work")["cached_scores"] == "25"
    assert fields(report, "history")["avoided_scores"] == "27"
    assert fields(report, "work")["layer_storage_distinct"] == "false"
    assert fields(report, "errors")["overflow"] == fields(report, "errors")["unchanged"] == "false"
    assert fields(report, "loaded")["rng_match"] == "false"
    assert fields(report, "eos")["tokens_match"] == "false"


def test_what_differs_is_named(inference: Inference) -> None:
    other = replace(
        inference,
        sampling=replace(inference.sampling, draws=9),
        cache=replace(inference.cache, fingerprint="fnv1a64:0000000000000000"),
    )
    problems = list(other.problems())
    assert [p[:20] for p in problems] == [
        "sampling report: - s", "sampling report: + s", "parameters of the ca",
    ]  # fmt: skip
    assert "draws:9" in problems[1]
