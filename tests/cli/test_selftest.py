"""``llmcy selftest`` as a user runs it: a process, its output, its exit status."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from llmcy import available_isas, isa
from llmcy.cli.selftest import selftest
from llmcy.reference import expected, expected_inference

FIRST_REPORT = expected.TRAINING_REPORT.splitlines()
SECOND_REPORT = expected.REPLAY_REPORT.splitlines()


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "llmcy", "selftest", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def finished() -> subprocess.CompletedProcess[str]:
    return run()


@pytest.mark.feature("B58")
def test_exits_0_and_complains_about_nothing(finished: subprocess.CompletedProcess[str]) -> None:
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout.endswith("selftest=passed\n")


@pytest.mark.feature("B57", "A13", "C07", "B50", "B51", "B56", "A12")
def test_prints_the_published_training_report_once(
    finished: subprocess.CompletedProcess[str],
) -> None:
    lines = finished.stdout.splitlines()
    assert lines[: len(FIRST_REPORT)] == FIRST_REPORT
    assert sum(line.startswith("selection=") for line in lines) == 1


@pytest.mark.feature("M50", "M44", "M45", "L07", "L08", "J12", "N03")
def test_prints_the_published_checkpoint_report_once(
    finished: subprocess.CompletedProcess[str],
) -> None:
    lines = finished.stdout.splitlines()
    start = len(FIRST_REPORT)
    assert lines[start : start + len(SECOND_REPORT)] == SECOND_REPORT
    assert sum(line.startswith("schema=") for line in lines) == 1


@pytest.mark.feature("M39", "M40", "M42", "J15")
def test_measures_every_instruction_set_with_1_2_and_3_threads(
    finished: subprocess.CompletedProcess[str],
) -> None:
    values = (
        "checkpoint:2b8b6097eaed6a91 logits:6029064fe7cd162d replayed_logits:0b875a0c9f380d8f "
        "next_draw:0x9a8c505971939232 published:true"
    )
    lines = finished.stdout.splitlines()
    assert [line for line in lines if line.startswith("run=")] == [
        f"run=isa:{isa} threads:{n_threads} {values}"
        for isa in available_isas()
        for n_threads in (1, 2, 3)
    ]


@pytest.mark.parametrize(
    ("key", "values"),
    [
        (
            "odd_sized",
            "clip_1.2:35b3ff87ea863cfb,f27e49c9c83ce84e,6 "
            "clip_2.2:b9e2d0dfc82ab0f8,8ae2074a1b6a8d85,6 "
            "clip_100:8c43d11c4bbbb42a,a7614a93c0cce768,3",
        ),
        (
            "odd_sized_float32",
            "clip_1.2:1678fb51e7234b8c,0ee6836dc41dc3d7,6 "
            "clip_2.2:59961387dcb8d683,63efb2902ee2fc9d,6 "
            "clip_100:6f986951d5a6c4d9,c3429ccea6fad467,3",
        ),
    ],
)
def test_measures_the_odd_sized_run_everywhere(
    finished: subprocess.CompletedProcess[str], key: str, values: str
) -> None:
    lines = finished.stdout.splitlines()
    assert [line for line in lines if line.startswith(f"{key}=")] == [
        f"{key}=isa:{isa} threads:{n_threads} {values}"
        for isa in available_isas()
        for n_threads in (1, 2, 3)
    ]


@pytest.mark.feature("C06", "C01", "C02", "C03", "C05", "C10", "C12")
def test_trace_prints_the_published_trace_only() -> None:
    finished = run("--trace")
    assert (finished.returncode, finished.stderr) == (0, "")
    assert finished.stdout == expected.TRACE


@pytest.mark.feature("C08X", "C09", "D06")
def test_figure_prints_isolated_marks() -> None:
    finished = run("--figure")
    assert (finished.returncode, finished.stderr) == (0, "")
    plot, legend = finished.stdout.rsplit("step", 1)
    assert plot.count("o") == 5
    assert plot.count("x") == 4
    assert plot.count("#") == 1
    assert "o training   x validation   # selected" in legend


def test_a_difference_is_printed_and_gives_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = "fnv1a64:0000000000000000"
    monkeypatch.setattr(expected, "FILE_CHECKSUM", wrong)
    monkeypatch.setattr("llmcy._kernels.available_isas", lambda: (isa(),))
    done = CliRunner().invoke(selftest)
    assert done.exit_code == 1
    problems = [line for line in done.output.splitlines() if line.startswith("problem on ")]
    assert problems == [
        f"problem on {isa()}, {n_threads} threads: checkpoint checksum: "
        f"measured fnv1a64:2b8b6097eaed6a91, published {wrong}"
        for n_threads in (1, 2, 3)
    ]
    assert done.output.count("published:false") == 3
    assert "selftest=failed" in done.output


def test_the_trace_of_a_run_that_differs_gives_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    other = expected.TRACE.replace("selected=true", "selected=false")
    monkeypatch.setattr(expected, "TRACE", other)
    done = CliRunner().invoke(selftest, ["--trace"])
    assert done.exit_code == 1
    assert "problem: trace: + CHECKPOINT|step=8|" in done.output


def test_the_reports_of_inference() -> None:
    done = CliRunner().invoke(selftest, ["--inference"])
    assert done.exit_code == 0
    assert done.output.splitlines() == [
        *expected_inference.EVALUATION_REPORT.splitlines(),
        *expected_inference.SAMPLING_REPORT.splitlines(),
        *expected_inference.CACHE_REPORT.splitlines(),
    ]


def test_a_difference_in_inference_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    other = expected_inference.SAMPLING_REPORT.replace("draws:8", "draws:9")
    monkeypatch.setattr(expected_inference, "SAMPLING_REPORT", other)
    done = CliRunner().invoke(selftest, ["--inference"])
    assert done.exit_code == 1
    assert "problem: sampling report: - sample=seed:36" in done.output
