"""The floors of the architecture, kept by import-linter (contracts in pyproject.toml)."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_imports_keep_to_the_floors() -> None:
    command = [
        sys.executable,
        "-c",
        "from importlinter.cli import lint_imports_command; lint_imports_command()",
    ]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_only_the_front_of_the_kernels_imports_the_compiled_ones() -> None:
    allowed = {"kernels", "_kernels"}
    alone = {"__init__.py", "_check.py", "_threads.py", "rng.py", "checksum.py"}
    for path in (ROOT / "llmcy").rglob("*.py"):
        parts = path.relative_to(ROOT / "llmcy").parts
        if parts[0] in allowed or parts[0] in alone:
            continue
        text = path.read_text()
        if parts[0] in {"reference", "cli", "tokenizer", "bench"}:
            # the self test switches instruction sets, the tokenizer has its own kernel, and
            # benchmarks measure the processor itself
            continue
        assert "llmcy._kernels" not in text, path
        assert "import _kernels" not in text, path
