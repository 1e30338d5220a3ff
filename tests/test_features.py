"""Every row of docs/features.md has a test, and the page names it."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def index() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "feature_index", ROOT / "tools" / "feature_index.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def page() -> str:
    return (ROOT / "docs" / "features.md").read_text(encoding="utf-8")


def test_the_page_lists_all_rows(index: ModuleType, page: str) -> None:
    rows = index.rows(page)
    training = [row for row in rows if row[0] in "ABCDEH"]
    checkpoint = [row for row in rows if row[0] in "JKLMNPQ"]
    assert (len(training), len(checkpoint), len(rows)) == (127, 107, 234)


def test_every_row_has_a_test(index: ModuleType, page: str) -> None:
    found = index.proofs()
    assert [row for row in index.rows(page) if row not in found] == []


def test_no_mark_names_an_unknown_row(index: ModuleType, page: str) -> None:
    assert sorted(set(index.proofs()) - set(index.rows(page))) == []


def test_every_proof_the_page_names_exists(index: ModuleType, page: str) -> None:
    """Run tools/feature_index.py when this fails.  Tests that are newer than the page may lack."""
    found = {row: set(tests) for row, tests in index.proofs().items()}
    named = index.named_proofs(page)
    assert [row for row in index.rows(page) if not named[row]] == []
    stale = {row: tests - found[row] for row, tests in named.items() if tests - found[row]}
    assert stale == {}


def test_the_reader_of_marks_sees_functions_classes_and_modules(
    index: ModuleType, tmp_path: Path
) -> None:
    tests = tmp_path / "tests"
    tests.mkdir()
    (tests / "test_one.py").write_text(
        "import pytest\n"
        "pytestmark = pytest.mark.feature('A01')\n"
        "@pytest.mark.feature('A02', 'A03')\n"
        "def test_f(): pass\n"
        "class TestK:\n"
        "    @pytest.mark.feature('A04')\n"
        "    def test_m(self): pass\n"
        "CASES = [pytest.param(1, marks=pytest.mark.feature('A05'))]\n"
        "@pytest.mark.parametrize('x', CASES)\n"
        "def test_p(x): pass\n",
        encoding="utf-8",
    )
    assert index.proofs(tests) == {
        "A01": [
            ("tests/test_one.py", "test_f"),
            ("tests/test_one.py", "TestK.test_m"),
            ("tests/test_one.py", "test_p"),
        ],
        "A02": [("tests/test_one.py", "test_f")],
        "A03": [("tests/test_one.py", "test_f")],
        "A04": [("tests/test_one.py", "TestK.test_m")],
        "A05": [("tests/test_one.py", "test_p")],
    }
