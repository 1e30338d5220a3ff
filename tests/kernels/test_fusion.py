"""No float64 kernel contains a fused multiply-add.

Flags forbid fusing, but compilers have had patterns that do it all the same, and then only some
inputs on some processors show it.  The machine code cannot hide it.
"""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from llmcy import _kernels

FUSED = re.compile(r"\b(vfn?m(add|sub)\w*|fn?m(add|sub)|fml[as]|fcmla)\b")
FOLDER = Path(_kernels.__file__).parent


def fused_instructions(module: Path) -> int:
    listing = subprocess.run(
        ["objdump", "-d", "--no-show-raw-insn", module], capture_output=True, text=True, check=True
    )
    return len(FUSED.findall(listing.stdout))


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
def test_float64_kernels_never_fuse():
    modules = sorted(FOLDER.glob("*_f64/*.so"))
    assert modules
    assert {m.relative_to(FOLDER): n for m in modules if (n := fused_instructions(m))} == {}


@pytest.mark.skipif(shutil.which("objdump") is None, reason="needs objdump")
@pytest.mark.skipif("avx2" not in _kernels.available_isas(), reason="needs an AVX2 build")
def test_the_search_finds_fused_instructions():
    assert fused_instructions(next(FOLDER.glob("avx2_f32/matmul.*so")))
