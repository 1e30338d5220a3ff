"""Runs that the tests of this folder begin from."""

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from llmcy.data import TextDataset
from llmcy.run import JobOptions, run_training
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


@pytest.fixture(scope="session")
def finished(text: TextDataset, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A finished run of a dtype with checkpoints of steps 0, 10, 15, 20 and 24."""
    made: dict[str, Path] = {}

    def make(dtype: str) -> Path:
        if dtype not in made:
            made[dtype] = tmp_path_factory.mktemp("finished") / "run"
            options = JobOptions(checkpoint_every=5, keep_last=3, keep_every=10, micro_batch_size=2)
            run_training(text, settings(dtype), made[dtype], options)
        return made[dtype]

    return make


@pytest.fixture(params=["float32", "float64"])
def honest(request: pytest.FixtureRequest, finished: Callable[[str], Path]) -> Path:
    """That run, not to be altered."""
    return finished(request.param)


@pytest.fixture
def run(honest: Path, tmp_path: Path) -> Path:
    """A copy to alter."""
    return Path(shutil.copytree(honest, tmp_path / "run"))
