"""``llmcy bench``: the table, the file, two files side by side."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from llmcy.cli.bench import bench
from llmcy.errors import RunError


def run(*arguments: str) -> str:
    result = CliRunner().invoke(bench, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_it_measures_the_machine_and_a_step_and_keeps_both(tmp_path: Path) -> None:
    path = tmp_path / "now.json"
    told = run(
        "--no-kernels", "--model", "fixture", "--dtype", "float64", "--threads", "1",
        "--samples", "1", "--json", str(path),
    )  # fmt: skip
    assert "multiply-add in registers" in told
    assert "of peak" in told
    kept = json.loads(path.read_text())
    assert kept["machine"]["isa"]
    step = kept["results"][-1]
    assert (step["group"], step["case"], step["dtype"]) == ("training step", "fixture", "float64")
    assert step["value"] > 0
    assert 0 < step["facts"]["share of peak"] < 1


def test_two_files_side_by_side(tmp_path: Path) -> None:
    def file(name: str, seconds: float, rate: float) -> str:
        rows = [
            {"group": "kernel", "case": "add", "side": "llmcy", "dtype": "float32", "threads": 1,
             "value": seconds, "unit": "s", "facts": {}},
            {"group": "machine", "case": "peak", "side": "llmcy", "dtype": "", "threads": 1,
             "value": rate, "unit": "flop/s", "facts": {}},
        ]  # fmt: skip
        path = tmp_path / name
        path.write_text(json.dumps({"format": 1, "machine": {"cpu": name}, "results": rows}))
        return str(path)

    told = run("--compare", file("old", 2.0, 5.0), file("new", 1.0, 2.5))
    lines = told.splitlines()
    assert "cpu: old -> new" in lines
    assert any("add" in line and "2.000x  faster" in line for line in lines)
    assert any("peak" in line and "0.500x  slower" in line for line in lines)
    assert lines[-1] == "2 figures in both files, 1.000x on (geometric) average"


def test_a_wrong_name_or_file_is_refused(tmp_path: Path) -> None:
    wrong = CliRunner().invoke(bench, ["--model", "9B"])
    assert wrong.exit_code == 2
    assert "'9B' is none of fixture, 0.8M, 3.3M, 28M" in wrong.output
    with pytest.raises(RunError):
        run("--compare", str(tmp_path / "a"), str(tmp_path / "b"))
