"""Published files, whole and taken apart."""

from pathlib import Path

import pytest

from tests.checkpoint.altering import bpe_file, step0_file, wide_file
from tests.oracle.checkpoint_file import Parts, parse

GOLDEN = Path(__file__).resolve().parent.parent / "golden"


@pytest.fixture(scope="session")
def published() -> bytes:
    """The 6,330 bytes of the published checkpoint."""
    return (GOLDEN / "published.ckpt").read_bytes()


@pytest.fixture
def parts(published: bytes) -> Parts:
    """The published checkpoint as parts that a test may alter."""
    return parse(published)


@pytest.fixture(scope="session")
def bases(published):
    """Valid files to alter: the published one, byte-BPE ones, a step-0 one."""
    bpe = bpe_file([(97, 98), (256, 99)])
    return {
        "published": published,
        "bpe": bpe,
        "bpe-empty": bpe_file([]),
        "step0": step0_file(parse(published)),
        "wide": wide_file(parse(published)),
    }
