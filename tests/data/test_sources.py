"""Reading text: which files, in which order, under which names, and clear refusals."""

import gzip
import os

import pytest

from llmcy.data import builtin_corpus, read_sources
from llmcy.errors import ConfigError, DataError


@pytest.fixture
def tree(tmp_path):
    """A small directory tree; contents name their file."""
    for name in (
        "b.txt",
        "a/z.md",
        "a/A.rst",
        "a-b.text",
        "a/deep/x.TXT",
        "skip.py",
        "corpus.json",
        ".hidden.txt",
        ".git/c.txt",
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    (tmp_path / "empty.txt").write_bytes(b"")
    (tmp_path / "packed.txt.gz").write_bytes(gzip.compress(b"packed"))
    (tmp_path / "rows.jsonl").write_bytes(b'{"text": "first"}\n\n{"n": 1, "text": "\\u00e9"}\n')
    return tmp_path


def read(*sources, **settings):
    return [(d.id, d.content) for d in read_sources(sources, **settings).documents]


def refuse(*sources, **settings):
    with pytest.raises(DataError) as caught:
        read_sources(sources, **settings)
    return caught.value


def test_a_directory_tree(tree):
    assert read(tree) == [
        ("a-b.text", b"a-b.text"),
        ("a/A.rst", b"a/A.rst"),
        ("a/deep/x.TXT", b"a/deep/x.TXT"),
        ("a/z.md", b"a/z.md"),
        ("b.txt", b"b.txt"),
        ("packed.txt.gz", b"packed"),
        ("rows.jsonl#1", b"first"),
        ("rows.jsonl#3", b"\xc3\xa9"),
    ]


def test_names_do_not_depend_on_where_the_text_is_or_how_it_is_written(tree, monkeypatch):
    absolute = read(tree)
    monkeypatch.chdir(tree)
    assert read(".") == absolute
    assert read(str(tree / "a" / "..")) == absolute
    monkeypatch.chdir(tree / "a")
    assert read("..") == absolute


def test_links_to_directories_are_not_followed(tree):
    before = read(tree)
    (tree / "again").symlink_to(tree, target_is_directory=True)
    (tree / "c.txt").symlink_to(tree / "b.txt")
    assert read(tree) == sorted([*before, ("c.txt", b"b.txt")])


def test_named_files_are_taken_whatever_they_are_called(tree):
    assert read(tree / "skip.py", tree / "a" / "z.md") == [
        ("skip.py", b"skip.py"),
        ("a/z.md", b"a/z.md"),
    ]
    assert read(tree / ".git" / "c.txt", tree / "b.txt")[0] == (".git/c.txt", b".git/c.txt")
    assert read(tree / "a" / "z.md", tree / "a" / "A.rst") == [
        ("z.md", b"a/z.md"),
        ("A.rst", b"a/A.rst"),
    ]


def test_patterns(tree):
    assert [name for name, _ in read(tree / "*.t*")] == ["a-b.text", "b.txt", "packed.txt.gz"]
    assert [name for name, _ in read(f"{tree}/**/*.[tT][xX][tT]")] == ["a/deep/x.TXT", "b.txt"]
    # a name that exists is a name, even with a bracket in it
    (tree / "odd[1].txt").write_bytes(b"odd")
    assert read(tree / "odd[1].txt") == [("odd[1].txt#1", b"odd")]


def test_a_file_reached_twice_is_read_once(tree):
    names = [name for name, _ in read(tree / "b.txt", tree, f"{tree}/*.txt", cut="never")]
    assert names[0] == "b.txt"
    assert len(names) == len(set(names)) == 8


def test_bytes_stay_as_they_are(tmp_path):
    content = b"\xef\xbb\xbfline\r\n\xff\x00\n"
    (tmp_path / "raw.txt").write_bytes(content)
    assert read(tmp_path / "raw.txt", cut="never") == [("raw.txt", content)]


PARAGRAPHS = b"one\n\ntwo\n\nthree"


def test_a_single_text_is_cut_at_paragraphs(tmp_path):
    path = tmp_path / "book.txt"
    path.write_bytes(PARAGRAPHS)
    cut = [("book.txt#1", b"one\n\n"), ("book.txt#2", b"two\n\n"), ("book.txt#3", b"three")]
    assert read(path, min_document_bytes=1) == cut
    assert read(tmp_path, min_document_bytes=1) == cut
    assert read(path) == [("book.txt#1", PARAGRAPHS)]
    assert read(path, cut="never") == [("book.txt", PARAGRAPHS)]
    (tmp_path / "other.txt").write_bytes(b"x\n\ny")
    assert [n for n, _ in read(tmp_path, min_document_bytes=1)] == ["book.txt", "other.txt"]
    always = read(tmp_path, cut="always", min_document_bytes=3)
    assert [n for n, _ in always] == ["book.txt#1", "book.txt#2", "book.txt#3", "other.txt#1"]


def test_the_default_minimum_applies_to_the_text_after_decompression(tmp_path):
    paragraph = b"word " * 210 + b"\n\n"
    path = tmp_path / "book.gz"
    path.write_bytes(gzip.compress(paragraph * 3))
    assert read(path) == [(f"book.gz#{k}", paragraph) for k in (1, 2, 3)]


def test_json_lines(tmp_path):
    path = tmp_path / "r.ndjson"
    path.write_bytes(
        b'{"body": "a", "text": "no"}\r\n   \n{"body": ""}\n{"body": "\\ud83e\\udd80", "x": NaN}'
    )
    assert read(path, text_field="body") == [
        ("r.ndjson#1", b"a"),
        ("r.ndjson#4", b"\xf0\x9f\xa6\x80"),
    ]
    path.write_bytes(b'{"body": "a", "text": "yes\\n\\nyes"}')
    assert read(path, cut="always", min_document_bytes=1) == [("r.ndjson#1", b"yes\n\nyes")]


@pytest.mark.parametrize(
    "line",
    [
        b"{",
        b"[]",
        b'"text"',
        b"{}",
        b'{"text": 1}',
        b'{"text": null}',
        b'{"text": "\\ud800"}',
        b'{"text": "a", "text": "b"}',
        b'{"text": "\xff"}',
        b'{"text": "a"} {"text": "b"}',
        b"[" * 100_000,
    ],
)
def test_bad_json_lines(tmp_path, line):
    path = tmp_path / "r.jsonl"
    path.write_bytes(b'{"text": "fine"}\n\n' + line + b'\n{"text": 1}\n')
    error = refuse(path)
    assert (error.kind, error.path, error.line) == ("InvalidRecord", str(path), 3)
    assert "line 3" in str(error)


def test_what_cannot_be_found(tree):
    for missing in (tree / "nowhere.txt", tree / "no*match", tree / "a" / "*" / "*.md"):
        error = refuse(missing)
        assert (error.kind, error.source) == ("NoSuchSource", str(missing))
        assert str(missing) in str(error)
    (tree / "code").mkdir()
    (tree / "code" / "x.py").write_bytes(b"x")
    error = refuse(tree, tree / "code")
    assert (error.kind, error.source) == ("NoTextFiles", str(tree / "code"))


def test_nothing_to_read(tree):
    assert refuse().kind == "NoDocuments"
    assert refuse(tree / "empty.txt").kind == "NoDocuments"
    assert refuse(tree / "empty.txt", cut="never").kind == "NoDocuments"
    (tree / "blank.jsonl").write_bytes(b'\n{"text": ""}\n')
    assert refuse(tree / "blank.jsonl", tree / "empty.txt").kind == "NoDocuments"


def test_a_json_corpus_needs_its_split(tree):
    error = refuse(tree / "corpus.json")
    assert (error.kind, error.path) == ("SplitManifestMissing", str(tree / "corpus.json"))


BROKEN_GZIP = {"none at all": b"not gzip", "cut short": gzip.compress(b"x" * 99)[:-9]}


@pytest.mark.parametrize("data", BROKEN_GZIP.values(), ids=BROKEN_GZIP.keys())
def test_broken_gzip(tmp_path, data):
    path = tmp_path / "x.txt.gz"
    path.write_bytes(data)
    error = refuse(path)
    assert (error.kind, error.path) == ("UnreadableSource", str(path))


def test_unreadable_file(tmp_path):
    path = tmp_path / "x.txt"
    path.symlink_to(tmp_path / "x.txt")
    (tmp_path / "y.txt").write_bytes(b"y")
    error = refuse(tmp_path)
    assert (error.kind, error.path) == ("UnreadableSource", str(path))
    assert isinstance(error.cause, OSError)


def test_two_documents_with_one_name(tmp_path):
    (tmp_path / "r.jsonl").write_bytes(b'{"text": "a"}')
    (tmp_path / "r.jsonl#1").write_bytes(b"b")
    error = refuse(tmp_path / "r.jsonl", tmp_path / "r.jsonl#1")
    assert error.kind == "DuplicateDocumentId"
    assert error.fields == {"id": "r.jsonl#1", "first": 0, "repeated": 1}


def test_file_names_that_are_not_text(tmp_path):
    name = os.fsdecode(b"n\xff.txt")
    try:
        (tmp_path / name).write_bytes(b"x")
    except OSError:
        pytest.skip("the file system takes only text as names")
    assert read(tmp_path, cut="never") == [("n\\xff.txt", b"x")]


def test_unknown_choice_of_cutting(tmp_path):
    with pytest.raises(ConfigError) as caught:
        read_sources([tmp_path], cut="sometimes")
    assert (caught.value.kind, caught.value.name) == ("InvalidSetting", "cut")


def test_the_description_says_what_was_read(tree):
    source = read_sources([tree / "a"], cut="never")
    assert source.description == {
        "kind": "text",
        "files": ["A.rst", "deep/x.TXT", "z.md"],
        "text_field": "text",
        "cut_at_paragraphs": False,
        "min_document_bytes": None,
    }


def test_the_built_in_text():
    source = builtin_corpus()
    names = [d.id for d in source.documents]
    assert names == sorted(names)
    assert len(names) > 50
    assert all(name.startswith("pydoc/") for name in names)
    by_name = {d.id: d.content for d in source.documents}
    assert b"yield" in by_name["pydoc/yield"]
    assert sum(map(len, by_name.values())) > 200_000
