"""The stub of each compiled kernel against every build of it: same functions, same parameters."""

import ast
import importlib
import inspect
from pathlib import Path

import pytest

import llmcy._kernels
from llmcy import available_isas

HERE = Path(llmcy._kernels.__file__).parent
SOURCES = sorted(p.stem for p in HERE.glob("*.pyx"))
BUILDS = [f"{isa}_{dtype}" for isa in available_isas() for dtype in ("f64", "f32")]


def runtime_modules(kernel: str) -> list[str]:
    once = f"llmcy._kernels.{kernel}"
    if importlib.util.find_spec(once) is not None:
        return [once]
    return [f"llmcy._kernels.{build}.{kernel}" for build in BUILDS]


def stub_functions(kernel: str) -> dict[str, list[str]]:
    tree = ast.parse((HERE / f"{kernel}.pyi").read_text())
    return {
        node.name: [a.arg for a in node.args.posonlyargs + node.args.args + node.args.kwonlyargs]
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    }


@pytest.mark.parametrize("kernel", [k for k in SOURCES if (HERE / f"{k}.pyi").exists()])
def test_stub_describes_every_build(kernel: str) -> None:
    wanted = stub_functions(kernel)
    for name in runtime_modules(kernel):
        module = importlib.import_module(name)
        actual = {
            k: list(inspect.signature(f).parameters)
            for k, f in vars(module).items()
            if not k.startswith("_")
            and callable(f)
            and not isinstance(f, type)
            and getattr(f, "__module__", "").startswith("llmcy._kernels")
        }
        assert actual == wanted, name


@pytest.mark.parametrize("kernel", SOURCES)
def test_every_module_with_functions_has_a_stub(kernel: str) -> None:
    if not (HERE / f"{kernel}.pyi").exists():
        source = (HERE / f"{kernel}.pyx").read_text()
        assert not any(line.startswith("def ") for line in source.splitlines())
