"""Samples of several processes are one body of samples."""

from __future__ import annotations

import argparse

import pytest

from benchmarks import compare, paired
from benchmarks.compare import Comparison
from benchmarks.paired import Paired


def test_samples_of_the_same_entries_join() -> None:
    one = Paired({"a": (1.0,), "b": (2.0,)}, {"a": (3.0,), "b": (4.0,)})
    other = Paired({"a": (5.0, 6.0), "b": (7.0, 8.0)}, {"a": (9.0, 1.0), "b": (2.0, 3.0)})
    both = one + other
    assert both.samples == {"a": (1.0, 5.0, 6.0), "b": (2.0, 7.0, 8.0)}
    assert both.busy == {"a": (3.0, 9.0, 1.0), "b": (4.0, 2.0, 3.0)}
    assert both.ratio("b", "a") == 7.0 / 5.0


def test_every_process_takes_all_rounds(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: set[int] = set()

    def measure(opened, *case):
        started.update(side.process.pid for side in opened.values())
        return paired.measure(opened, *case)

    monkeypatch.setattr(compare, "measure", measure)
    comparison = Comparison(
        argparse.Namespace(
            only="^16.3 tn",
            dtypes=["float64"],
            threads=[1],
            rounds=3,
            processes=2,
            processor_time=True,
        )
    )
    comparison._against("gemm", ["16^3 nn", "16^3 tn"], [])
    assert len(started) == 2
    (kept,) = comparison.results
    assert (kept.case, kept.facts["samples"]) == ("16^3 tn", 6)
    assert capsys.readouterr().out.count("16^3 tn") == 1


@pytest.mark.parametrize("option", ["--rounds", "--processes"])
def test_a_comparison_of_nothing_is_refused(
    option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["compare", "gemm", option, "0"])
    with pytest.raises(SystemExit):
        compare.main()
    assert f"argument {option}: invalid positive value: '0'" in capsys.readouterr().err
