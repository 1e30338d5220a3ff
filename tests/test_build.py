"""The build: the flags bits depend on, one module per kernel, instruction set and dtype."""

import importlib
import re
import runpy
from pathlib import Path

import pytest

import llmcy._kernels
from llmcy import available_isas

ROOT = Path(__file__).parent.parent
SETUP = runpy.run_path(str(ROOT / "setup.py"), run_name="setup_for_tests")


def test_flags_forbid_contraction_and_value_changing_shortcuts() -> None:
    assert "-ffp-contract=off" in SETUP["FLAGS"]
    everything = SETUP["FLAGS"] + [f for flags in SETUP["ISA_FLAGS"].values() for f in flags]
    for flag in (
        "-ffast-math",
        "-Ofast",
        "-march=native",
        "-fassociative-math",
        "-funsafe-math-optimizations",
    ):
        assert flag not in everything


@pytest.mark.parametrize("kernel", SETUP["FLOAT_KERNELS"])
@pytest.mark.parametrize("isa", available_isas())
def test_every_kernel_is_built_for_both_dtypes_with_the_same_functions(
    isa: str, kernel: str
) -> None:
    names = []
    for dtype in ("f64", "f32"):
        module = importlib.import_module(f"llmcy._kernels.{isa}_{dtype}.{kernel}")
        names.append({n for n in vars(module) if not n.startswith("_")})
    assert names[0] == names[1]


def test_the_kernel_list_and_the_sources_agree() -> None:
    here = Path(llmcy._kernels.__file__).parent
    sources = {p.stem for p in (ROOT / "llmcy" / "_kernels").glob("*.pyx")}
    assert sources == set(SETUP["FLOAT_KERNELS"]) | set(SETUP["PLAIN_MODULES"])
    assert here.exists()


def test_no_kernel_uses_the_maths_library() -> None:
    names = set()
    for path in sorted((ROOT / "llmcy" / "_kernels").glob("*.p[yx][xd]")):
        for line in re.findall(r"from libc\.math cimport (.*)", path.read_text()):
            names |= {name.strip() for name in line.split(",")}
        assert "cimport libc.math" not in path.read_text(), path
    assert names <= {"INFINITY", "NAN"}  # constants, no functions
