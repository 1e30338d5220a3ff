"""docs/formats.md says what the code does."""

import re
from pathlib import Path

import pytest

from llmcy.checkpoint import DType, Role, inspect_bytes
from llmcy.checkpoint.layout import MAGIC
from llmcy.errors import CheckpointError

PAGE = Path(__file__).resolve().parents[2] / "docs" / "formats.md"


@pytest.fixture(scope="module")
def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def words(page: str) -> str:
    """The page as one line without markup."""
    page = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", page)
    return " ".join(re.sub(r"[*`|]", " ", page).split())


def section(page: str, title: str) -> str:
    start = page.index(f"\n## {title}\n")
    end = page.find("\n## ", start + 1)
    return page[start:end]


def test_header_tables_have_the_offsets_of_the_published_file(page, published):
    fields = {field.offset: field for field in inspect_bytes(published).fields}
    rows = re.findall(
        r"^\| (\d+) \| (\d+) \| ", section(page, "Fixed header") + section(page, "Variable header"),
        flags=re.MULTILINE,
    )  # fmt: skip
    assert len(rows) == 26
    for offset, width in rows:
        assert fields[int(offset)].width == int(width)
    assert [int(offset) for offset, _ in rows] == [o for o in sorted(fields) if o <= 171]
    assert MAGIC.hex(" ") in page


def test_rows_behind_the_groups(page, published):
    groups = 504 - 172
    fields = {field.offset: field for field in inspect_bytes(published).fields}
    rows = re.findall(
        r"^\| (\d+) \+ G \| (\d+) \| ", section(page, "Variable header"), flags=re.MULTILINE
    )
    assert [(int(o), int(w)) for o, w in rows] == [
        *((172, 8), (180, 8), (188, 8), (196, 4), (200, 4), (204, 4)),
    ]
    assert all(fields[int(o) + groups].width == int(w) for o, w in rows)


def test_tags(page):
    table = section(page, "Descriptor")
    for role in Role:
        assert f"| {int(role)} | `{role.label}` |" in table
    for dtype in DType:
        assert f"| {int(dtype)} `{dtype.label}` | {dtype.width} |" in table


def test_every_error_kind_is_listed_with_its_fields(page):
    text = section(page, "Errors")
    listed = {}
    for kinds, fields in re.findall(r"^\| (`[A-Z][^|]*) \|([^|]*)\|", text, flags=re.MULTILINE):
        names = tuple(name for name in re.findall(r"`(\w+)`", fields) if name != "cause")
        listed |= dict.fromkeys(re.findall(r"`(\w+)`", kinds), names)
    for kind, fields in re.findall(r"^`(\w+)` \((`[^)]*)\)", text, flags=re.MULTILINE):
        listed[kind] = tuple(re.findall(r"`(\w+)`", fields))
    listed |= dict.fromkeys(re.findall(r"^`(Consumed)`", text, flags=re.MULTILINE), ())
    assert listed == CheckpointError.KINDS


def test_the_section_on_loading_names_every_kind_that_loading_raises(page):
    raised = set()
    for kinds, when in re.findall(
        r"^\| (`[A-Z][^|]*) \|[^|]*\| ([^|]*) \|", section(page, "Errors"), flags=re.MULTILINE
    ):
        if "loading" in when:
            raised |= set(re.findall(r"`(\w+)`", kinds))
    named = set(re.findall(r"`([A-Z]\w+)`", section(page, "Loading")))
    assert len(raised) == 28
    assert raised - named == {"Io"}
    wrapped = {"UnknownMergeOperand", "DuplicateMergePair", "Autodiff", "NonFiniteLeaf"}
    assert named - raised == wrapped


@pytest.mark.feature("J12")
def test_inventory(page):
    rows = dict(
        re.findall(
            r"^\| (stored|supplied by the caller|still required[^|]*|outside) \| ([^|]*) \|",
            page,
            flags=re.MULTILINE,
        )
    )
    assert len(rows) == 4
    stored, supplied, required, outside = rows.values()
    for word in ("tokenizer", "configuration", "parameter bits", "moments", "sampling state"):
        assert word in stored
    assert "schedule" in supplied
    assert "batch order" in required
    assert "gradients" in outside
    assert "lineage" in outside


STATEMENTS = [
    pytest.param("FNV-1a is no signature", marks=pytest.mark.feature("J17X"), id="J17X"),
    pytest.param("neither zero-copy nor streaming", marks=pytest.mark.feature("M23X"), id="M23X"),
    pytest.param("no run can be restarted from the file alone", id="not-a-restart"),
    pytest.param("no proof against a forger", marks=pytest.mark.feature("N04X"), id="N04X"),
    pytest.param("Permissions of an old file are not carried over", id="permissions"),
    pytest.param("new file is in place although the call reports an error", id="step-6"),
    pytest.param("up to 2^60 - 1 positions", id="positions"),
    pytest.param("2874 + 5 x 4 x 8", marks=pytest.mark.feature("P01"), id="P01"),
]


@pytest.mark.parametrize("statement", STATEMENTS)
def test_statements(page, statement):
    assert statement in words(page)
