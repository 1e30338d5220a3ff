"""Measurements in files."""

import math
from pathlib import Path

import pytest

from llmcy.bench.record import Measurement, compare, read_results, write_results
from llmcy.errors import RunError

OLD = Measurement("kernel", "add", "llmcy", "float32", 1, 2e-3, best=1e-3, facts={"flop/s": 5.0})


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    plain = Measurement("machine", "peak", "llmcy", "float64", 2, 1e11, "flop/s")
    write_results(path, {"cpu": "this"}, [OLD, plain])
    machine, results = read_results(path)
    assert machine == {"cpu": "this"}
    assert results[0] == OLD
    assert results[1].key == plain.key
    assert math.isnan(results[1].best)


def test_only_common_figures_are_compared() -> None:
    new = [
        Measurement("kernel", "add", "llmcy", "float32", 2, 1e-3),
        Measurement("kernel", "add", "llmcy", "float32", 1, 1e-3),
    ]
    (change,) = compare([OLD], new)
    assert change.new is new[1]
    assert change.ratio == 0.5


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 2}', '{"format": 1, "machine": {}}'])
def test_other_files_are_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "m.json"
    path.write_text(text)
    with pytest.raises(RunError) as refused:
        read_results(path)
    assert refused.value.kind == "NoMeasurements"
    assert refused.value.path == str(path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a file of measurements"):
        read_results(tmp_path / "none.json")
