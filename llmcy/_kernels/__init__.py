"""Compiled kernels, one build per instruction set and scalar type.

``active.f64.<kernel>`` and ``active.f32.<kernel>`` are the modules of the chosen instruction set.
The choice is made once at import: the strongest set that this processor runs and this build
has, or the one ``LLMCY_ISA`` names.  No result depends on it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from llmcy._kernels import cpu, front, pool
from llmcy.errors import ConfigError

__all__ = [
    "active",
    "available_isas",
    "for_dtype",
    "isa",
    "set_isa",
    "smallest_chunks",
    "use_isa",
]


class KernelSet:
    """The modules of one (instruction set, dtype) build; a module is imported on first use.

    A build for an instruction set the processor lacks must not even be imported (its start-up
    code may use those instructions), hence nothing is loaded before it is asked for.
    """

    def __init__(self, package: str) -> None:
        self._package = package

    def __getattr__(self, name: str) -> ModuleType:
        if name.startswith("__"):
            raise AttributeError(name)
        module = importlib.import_module(f"llmcy._kernels.{self._package}.{name}")
        setattr(self, name, module)  # later look-ups are plain attributes
        return module


class _Active:
    """The kernel sets in use now."""

    isa: str
    f64: Any
    f32: Any

    def __getattr__(self, name: str) -> Any:
        # reached only as long as nothing has been chosen: LLMCY_ISA names an unavailable set
        if name in ("isa", "f64", "f32"):
            _choose()
        return super().__getattribute__(name)


_built: dict[str, tuple[KernelSet, KernelSet]] = {}
active = _Active()


def available_isas() -> tuple[str, ...]:
    """Instruction sets that are built and that this processor runs, weakest first."""
    here = Path(__file__).parent
    return tuple(
        name for name in cpu.supported_isas() if any((here / f"{name}_f64").glob("elementwise.*"))
    )


def isa() -> str:
    """The instruction set in use."""
    return active.isa


def set_isa(name: str) -> None:
    """Use another instruction set for every later kernel call of this process."""
    if name not in available_isas():
        raise ConfigError(
            "UnknownInstructionSet",
            f"instruction set {name!r} is not available here; available: "
            + ", ".join(available_isas()),
            name=name,
            available=available_isas(),
        )
    if name not in _built:
        _built[name] = (KernelSet(f"{name}_f64"), KernelSet(f"{name}_f32"))
    active.f64, active.f32 = _built[name]
    front.use(*_built[name])
    active.isa = name


@contextmanager
def use_isa(name: str) -> Iterator[None]:
    """Use another instruction set inside a ``with`` block, for the whole process."""
    before = active.isa
    set_isa(name)
    try:
        yield
    finally:
        set_isa(before)


@contextmanager
def smallest_chunks() -> Iterator[None]:
    """Let threads share even work that is too small to be worth it, inside a ``with`` block.

    Where the cuts are can reach no result, so this costs time and changes nothing; with it, a test
    of small arrays on several threads is one.
    """
    before = pool.set_smallest_chunks(True)
    try:
        yield
    finally:
        pool.set_smallest_chunks(before)


def for_dtype(dtype: Any) -> Any:
    """The active kernel set for a numpy dtype that is float64 or float32."""
    return active.f64 if dtype.itemsize == 8 else active.f32


def _choose() -> None:
    set_isa(os.environ.get("LLMCY_ISA") or available_isas()[-1])


# a set that is not available is reported at its first use, where a program can explain it, and not
# by an import that fails
with contextlib.suppress(ConfigError):
    _choose()
