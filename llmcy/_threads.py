"""How many threads kernels use when a call does not say; no result depends on it."""

from __future__ import annotations

import os
from pathlib import Path

from llmcy._kernels import front
from llmcy.errors import ConfigError

__all__ = ["num_threads", "resolve_threads", "set_num_threads"]

MAX_THREADS = 256
_chosen: int | None = None


def _cgroup_cpus() -> float | None:
    """CPUs granted by the control group's quota, if there is one."""
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else int(quota) / int(period)


def _default() -> int:
    text = os.environ.get("LLMCY_NUM_THREADS", "").strip()
    if text:
        try:
            return _checked(int(text), "LLMCY_NUM_THREADS")
        except ValueError as error:
            if isinstance(error, ConfigError):
                raise
            raise ConfigError(
                "InvalidThreadCount",
                f"LLMCY_NUM_THREADS must be a whole number from 1 to {MAX_THREADS}, got {text!r}",
                value=text,
            ) from None
    try:
        cpus = len(os.sched_getaffinity(0))
    except AttributeError:
        cpus = os.cpu_count() or 1
    quota = _cgroup_cpus()
    if quota is not None:
        cpus = min(cpus, max(1, round(quota)))
    return min(cpus, MAX_THREADS)


def _checked(value: int, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_THREADS:
        raise ConfigError(
            "InvalidThreadCount",
            f"{name} must be a whole number from 1 to {MAX_THREADS}, got {value!r}",
            value=value,
        )
    return value


def num_threads() -> int:
    """Threads a kernel may use: as set, else ``LLMCY_NUM_THREADS``, else the CPUs granted."""
    global _chosen
    if _chosen is None:
        _chosen = _default()
        front.set_threads(_chosen)
    return _chosen


def set_num_threads(n_threads: int) -> None:
    """Set the number of threads for every later kernel call of this process."""
    global _chosen
    _chosen = _checked(n_threads, "n_threads")
    front.set_threads(_chosen)


def resolve_threads(n_threads: int | None) -> int:
    """The number a kernel call uses: its own argument, or the process's."""
    return num_threads() if n_threads is None else _checked(n_threads, "n_threads")
