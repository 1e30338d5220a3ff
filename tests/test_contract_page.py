"""docs/numerics.md has every section that the code cites, and states its version."""

import re
from pathlib import Path

import pytest

from llmcy.config import CONTRACT_VERSION

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted(
    path
    for folder in ("llmcy", "tests")
    for pattern in ("*.py", "*.pyx", "*.pxd", "*.h")
    for path in (ROOT / folder).rglob(pattern)
    if path.name != "test_contract_page.py"
)
NUMBERS = r"(\d+(?:(?:, | and | to |-)\d+)*)"
CITED = {
    "part one": rf"contract,? sections? {NUMBERS}",
    "part two": rf"part two, sections? {NUMBERS}",
    "float32": rf"float32, rules? {NUMBERS}",
}


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs" / "numerics.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def sections(page: str) -> dict[str, set[int]]:
    one, two = page.split("# Part two")
    rules = two.split("## 1. float32")[1].split("\n## ")[0]
    return {
        "part one": {int(n) for n in re.findall(r"^## (\d+)\. ", one, re.MULTILINE)},
        "part two": {int(n) for n in re.findall(r"^## (\d+)\. ", two, re.MULTILINE)},
        "float32": {int(n) for n in re.findall(r"^(\d+)\. ", rules, re.MULTILINE)},
    }


def test_the_page_is_numbered_without_gaps(sections: dict[str, set[int]]) -> None:
    assert {name: max(numbers) for name, numbers in sections.items()} == {
        "part one": 16,
        "part two": 7,
        "float32": 10,
    }
    for numbers in sections.values():
        assert numbers == set(range(1, max(numbers) + 1))


@pytest.mark.parametrize("part", CITED)
def test_every_citation_leads_somewhere(part: str, sections: dict[str, set[int]]) -> None:
    lost, found = [], 0
    for path in SOURCES:
        # a citation may run over the end of a comment line
        text = re.sub(r"\s*\n\s*(?:#|\*)?\s*", " ", path.read_text(encoding="utf-8"))
        for match in re.finditer(CITED[part], text):
            numbers = {int(n) for n in re.findall(r"\d+", match[1])}
            found += 1
            if not numbers <= sections[part]:
                lost.append((path.name, match[0]))
    assert found > 0
    assert lost == []


def test_the_page_and_the_code_name_the_same_version(page: str) -> None:
    assert f"Contract version: **{CONTRACT_VERSION}**." in page
