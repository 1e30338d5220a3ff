"""The byte audit."""

import dataclasses

import pytest

from llmcy.checkpoint import inspect_bytes, inspect_file
from llmcy.checkpoint.inspect import Audit
from llmcy.errors import CheckpointError


@pytest.fixture(scope="module")
def inspection(published):
    return inspect_bytes(published)


@pytest.mark.feature("K09", "K12")
def test_record_lines(inspection):
    lines = list(inspection.record_lines())
    assert len(lines) == 38
    assert lines[0].split() == ["2869", "2870", "LiteralToken", "u8", "[1]", "0"]
    assert lines[5].split() == [
        *("2874", "3034", "ModelParameter", "f64", "[5,4]", "token_embedding.weight"),
    ]
    assert lines[37].split() == [
        *("6170", "6330", "OptimizerSecondMoment", "f64", "[5,4]", "token_embedding.weight"),
    ]


@pytest.mark.feature("N02")
def test_prefix(inspection):
    first, second = list(inspection.summary_lines())[:2]
    assert first.endswith("4c 4c 4d 43 50 33 35 00 01 00 04 03 02 01 35 0b")
    assert "schema version 1, byte-order marker 0x01020304" in second
    assert second.endswith("2869")


@pytest.mark.feature("L03", "N01")
def test_summary(inspection):
    text = "\n".join(inspection.summary_lines())
    assert "6330 bytes = header 2869 + payload 3461" in text
    assert "fnv1a64:2b8b6097eaed6a91" in text
    assert "parameters 11 records, 1152 bytes" in text
    assert "gradients  0 records, 0 bytes" in text
    assert "moments    22 records, 2304 bytes" in text
    assert "NO" not in text


@pytest.mark.feature("N01")
def test_the_audit_recomputes(inspection):
    assert inspection.audit() == Audit(contiguous=True, sized=True, complete=True)
    rows = list(inspection.records)

    def with_rows(rows):
        return dataclasses.replace(inspection, records=tuple(rows)).audit()

    moved = [*rows[:3], dataclasses.replace(rows[3], offset=9), *rows[4:]]
    assert with_rows(moved).contiguous is False
    reshaped = [*rows[:5], dataclasses.replace(rows[5], shape=(5, 5)), *rows[6:]]
    assert with_rows(reshaped) == Audit(contiguous=True, sized=False, complete=True)
    assert with_rows(rows[:-1]) == Audit(contiguous=True, sized=True, complete=False)


def test_field_lines(inspection):
    lines = list(inspection.field_lines())
    assert len(lines) == 384
    assert lines[2].split(None, 2) == ["10", "4", "byte-order marker = 0x01020304"]
    assert lines[5].split(None, 2) == ["30", "8", "checksum = 0x2b8b6097eaed6a91"]
    assert any(line.endswith("RoPE base = 10000.0") for line in lines)


def test_only_valid_files_are_shown(published, tmp_path):
    with pytest.raises(CheckpointError) as caught:
        inspect_bytes(published[:-1])
    assert caught.value.kind == "FileExtent"
    with pytest.raises(CheckpointError) as caught:
        inspect_file(tmp_path / "missing")
    assert caught.value.kind == "Io"
    (tmp_path / "file").write_bytes(published)
    assert inspect_file(tmp_path / "file") == inspect_bytes(bytearray(published))
