"""Choosing an instruction set: by name, by environment, and refusing one that is not there."""

import os
import subprocess
import sys

import pytest

from llmcy import _kernels, available_isas, isa
from llmcy.errors import ConfigError


def run_python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("LLMCY_")} | environment
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)


def test_the_strongest_set_is_the_default() -> None:
    result = run_python("import llmcy; print(llmcy.isa())")
    assert result.stdout.strip() == available_isas()[-1], result.stderr


@pytest.mark.parametrize("name", available_isas())
def test_the_environment_forces_one(name: str) -> None:
    result = run_python("import llmcy; print(llmcy.isa())", LLMCY_ISA=name)
    assert result.stdout.strip() == name, result.stderr


def test_an_unknown_set_is_refused_by_name() -> None:
    result = run_python("import llmcy; llmcy.isa()", LLMCY_ISA="z80")
    assert result.returncode != 0
    assert "'z80' is not available here; available: " in result.stderr
    with pytest.raises(ConfigError) as caught:
        _kernels.set_isa("z80")
    assert (caught.value.kind, caught.value.name) == ("UnknownInstructionSet", "z80")


def test_threads_from_the_environment() -> None:
    code = "import llmcy; print(llmcy.num_threads())"
    assert run_python(code, LLMCY_NUM_THREADS="3").stdout.strip() == "3"
    for bad in ("0", "many", "1.5"):
        result = run_python(code, LLMCY_NUM_THREADS=bad)
        assert result.returncode != 0
        assert "LLMCY_NUM_THREADS must be a whole number from 1 to 256" in result.stderr


def test_use_isa_gives_the_choice_back() -> None:
    before = isa()
    with _kernels.use_isa(available_isas()[0]):
        assert isa() == available_isas()[0]
    assert isa() == before
