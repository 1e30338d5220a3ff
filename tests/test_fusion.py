"""The float64 builds contain no fused multiply-add, whatever the compiler was tempted to do.

``-ffp-contract=off`` forbids the compiler to contract expressions, yet GCC's vectoriser still turns
``a*c - b*s`` beside ``a*s + b*c`` into one ``vfmaddsub``.  Reading the machine code is the only
check that covers every kernel and every shape (numerics contract, section 1).
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from llmcy import _kernels, available_isas

FUSED = re.compile(r"\b(?:vfn?m(?:add|sub)\w*|fn?m(?:add|sub|la|ls)\w*)\s")  # x86; ARM


def fused_instructions(library: Path) -> list[str]:
    listing = subprocess.run(
        ["objdump", "--disassemble", "--no-show-raw-insn", str(library)],
        capture_output=True,
        text=True,
        check=True,
    )
    return FUSED.findall(listing.stdout)


def kernels_of(build: str) -> list[Path]:
    folder = Path(_kernels.__file__).parent / build
    return sorted(path for path in folder.iterdir() if path.suffix in (".so", ".pyd"))


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
@pytest.mark.parametrize("isa", available_isas())
def test_float64_kernels_hold_no_fused_instruction(isa: str) -> None:
    libraries = kernels_of(f"{isa}_f64")
    assert len(libraries) > 10
    assert {lib.name: found for lib in libraries if (found := fused_instructions(lib))} == {}


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
@pytest.mark.skipif("avx2" not in available_isas(), reason="needs a build that may fuse")
def test_the_search_finds_the_fused_products_of_float32() -> None:
    matmul = next(lib for lib in kernels_of("avx2_f32") if lib.name.startswith("matmul"))
    assert fused_instructions(matmul) != []
