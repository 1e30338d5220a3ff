#!/usr/bin/env python3
"""Write, into docs/features.md, the tests that prove each row.

A test names its rows with ``@pytest.mark.feature("A01", "A02")`` on itself, on its class, on a
case of a parametrised test, or with a module-level ``pytestmark``.  The marks are read from the
syntax tree; no test is imported or run.

    python tools/feature_index.py            rewrite the last column
    python tools/feature_index.py --check    exit 1 when it is out of date, name rows without a test
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "features.md"
ROW = re.compile(r"^\| (?P<row>[A-Z]\d\dX?) \| (?P<text>[^|]+) \|(?P<proof>[^|]*)\|$")


def rows(page: str) -> dict[str, str]:
    """Row id to wording, in the page's order."""
    found: dict[str, str] = {}
    for line in page.splitlines():
        match = ROW.match(line)
        if match:
            if match["row"] in found:
                raise SystemExit(f"row {match['row']} is listed twice")
            found[match["row"]] = match["text"]
    return found


def _marked(node: ast.AST, constants: dict[str, list[str]]) -> Iterator[str]:
    """Row ids of every ``pytest.mark.feature(...)`` call in an expression or in a list it names."""
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            yield from constants.get(part.id, [])
        if (
            isinstance(part, ast.Call)
            and isinstance(part.func, ast.Attribute)
            and part.func.attr == "feature"
        ):
            for argument in part.args:
                if not (isinstance(argument, ast.Constant) and isinstance(argument.value, str)):
                    raise SystemExit(f"line {part.lineno}: feature ids must be plain strings")
                yield argument.value


def _walk(
    body: list[ast.stmt], inherited: list[str], outer: dict[str, list[str]]
) -> Iterator[tuple[str, str]]:
    """(row id, name of the test) of all tests in a module's or a class's body."""
    own, constants = list(inherited), dict(outer)
    for node in body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            marks = list(_marked(node.value, constants))
            for target in targets:
                if isinstance(target, ast.Name):
                    constants[target.id] = marks
                    if target.id == "pytestmark":
                        own += marks
    for node in body:
        if not isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        marks = own + [
            r for decorator in node.decorator_list for r in _marked(decorator, constants)
        ]
        if isinstance(node, ast.ClassDef):
            for row, name in _walk(node.body, marks, constants):
                yield row, f"{node.name}.{name}"
        elif node.name.startswith("test_"):
            for row in dict.fromkeys(marks):
                yield row, node.name
        elif len(marks) > len(own):
            raise SystemExit(f"{node.name} carries feature marks but is not a test")


def proofs(tests: Path = ROOT / "tests") -> dict[str, list[tuple[str, str]]]:
    """Row id to its tests, each as (path from the repository's root, name)."""
    found: dict[str, list[tuple[str, str]]] = {}
    for path in sorted(tests.rglob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
        for row, name in _walk(tree.body, [], {}):
            found.setdefault(row, []).append((path.relative_to(tests.parent).as_posix(), name))
    return found


def named_proofs(page: str) -> dict[str, set[tuple[str, str]]]:
    """Row id to the tests that the page's last column names, in the form of :func:`proofs`."""
    named: dict[str, set[tuple[str, str]]] = {}
    for line in page.splitlines():
        match = ROW.match(line)
        if match:
            files = (entry.split("`: ") for entry in match["proof"].strip().split("; ") if entry)
            named[match["row"]] = {
                (path.removeprefix("`"), name)
                for path, names in files
                for name in names.split(", ")
            }
    return named


def _cell(tests: list[tuple[str, str]]) -> str:
    shown: dict[str, list[str]] = {}
    for path, name in tests:
        shown.setdefault(path, []).append(name)
    return "; ".join(f"`{path}`: {', '.join(sorted(set(names)))}" for path, names in shown.items())


def indexed(page: str, found: dict[str, list[tuple[str, str]]]) -> str:
    """The page with its last column written anew."""
    lines = []
    for line in page.splitlines():
        match = ROW.match(line)
        if match:
            cell = _cell(found.get(match["row"], []))
            line = (
                f"| {match['row']} | {match['text']} | {cell} |"
                if cell
                else (f"| {match['row']} | {match['text']} | |")
            )
        lines.append(line)
    return "\n".join(lines) + "\n"


def main() -> int:
    page = PAGE.read_text(encoding="utf-8")
    known, found = rows(page), proofs()
    missing = [row for row in known if row not in found]
    unknown = sorted(set(found) - set(known))
    for row in missing:
        print(f"no test proves {row}: {known[row]}")
    for row in unknown:
        print(f"unknown row {row}, named in {found[row][0][0]}")
    new = indexed(page, found)
    if "--check" in sys.argv[1:]:
        if new != page:
            print("docs/features.md is out of date: run tools/feature_index.py")
        return int(bool(missing or unknown or new != page))
    PAGE.write_text(new, encoding="utf-8")
    print(f"{len(known) - len(missing)} of {len(known)} rows have a test")
    return int(bool(missing or unknown))


if __name__ == "__main__":
    sys.exit(main())
