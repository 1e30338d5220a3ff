"""What a measurement was taken on: without it a number means nothing."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from llmcy import _kernels
from llmcy._threads import num_threads
from llmcy._version import __version__

__all__ = ["busy_programs", "machine_facts"]


def _cpu_model() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Processor"):
            return value.strip()
    return platform.machine()


def busy_programs() -> float:
    """The load average of the last minute; NaN where the system has none."""
    try:
        return os.getloadavg()[0]
    except OSError:
        return float("nan")


def machine_facts() -> dict[str, Any]:
    """Processor, instruction set, versions, load and time, ready for JSON."""
    return {
        "cpu": _cpu_model(),
        "cores": num_threads(),
        "isa": _kernels.isa(),
        "system": f"{platform.system()} {platform.release()}",
        "python": sys.version.split()[0],
        "numpy": np.__version__,
        "llmcy": __version__,
        "load": round(busy_programs(), 2),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
