"""Run the installed command, or the module when the package is not installed."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path


def llmcy(
    *arguments: object,
    cwd: Path | None = None,
    preexec: Callable[[], None] | None = None,
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run ``llmcy`` with these arguments; environment variables are added to the caller's."""
    script = Path(sys.executable).with_name("llmcy")
    command = [str(script)] if script.exists() else [sys.executable, "-m", "llmcy"]
    return subprocess.run(
        command + [str(a) for a in arguments],
        capture_output=True,
        text=True,
        cwd=cwd,
        env=os.environ | environment,
        preexec_fn=preexec,
    )
