"""Runs that the tests of this folder begin from."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from llmcy.data import TextDataset
from llmcy.run import run_training
from tests.run.tiny import OPTIONS, dataset, settings, stopped


@pytest.fixture(scope="session")
def text() -> TextDataset:
    return dataset()


@pytest.fixture(scope="module")
def fast_disk() -> Iterator[None]:
    """For tests that are not about a disk that loses power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def whole(text: TextDataset, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of the run without a break, made once a dtype."""
    made: dict[str, Path] = {}

    def run(dtype: str) -> Path:
        if dtype not in made:
            made[dtype] = tmp_path_factory.mktemp("whole") / "run"
            run_training(text, settings(dtype), made[dtype], OPTIONS)
        return made[dtype]

    return run


@pytest.fixture
def broken_off(text: TextDataset, tmp_path: Path) -> Path:
    """Stopped after step 12, with checkpoints of 0, 5, 10 and 12."""
    return stopped(text, "float64", tmp_path / "run", 12, replace(OPTIONS, keep_last=9))
