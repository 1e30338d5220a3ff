"""One altered token, document, tokenizer or split is found and named."""

import hashlib
import json
import random
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from llmcy.data import BatchDocument, SplitRule, prepare_dataset, read_sources
from llmcy.run import run_training
from llmcy.run.verify import Request, verify_run
from tests.run import tiny
from tests.run.forging import ALL, FILES, edited_json, first


def test_one_token(run):
    tokens, index, config = run / "tokens.bin", run / "tokens.json", run / "config.json"
    listed = json.loads(index.read_text())["documents"]
    data = bytearray(tokens.read_bytes())
    at = 4 * (listed[0]["tokens"] + 3)  # in the second document
    data[at] ^= 1
    tokens.write_bytes(data)
    disproof = first(run, FILES)
    assert listed[1]["id"] in disproof.text
    assert disproof.file == "tokens.bin"

    def fit(values):
        part = data[4 * listed[0]["tokens"] :][: 4 * listed[1]["tokens"]]
        values["documents"][1]["sha256"] = hashlib.sha256(part).hexdigest()
        values["sha256"] = hashlib.sha256(data).hexdigest()

    edited_json(index, fit)
    assert first(run, FILES).field == "data.tokens"
    edited_json(config, lambda c: c["data"].update(tokens=hashlib.sha256(data).hexdigest()))
    disproof = first(run, FILES)
    assert (disproof.file, disproof.field) == ("config.json", "data.tokens")


def test_the_tokenizer_and_the_split(run):
    for name, edit, word in (
        ("tokenizer.json", lambda t: t["pairs"].pop(), "vocab_size"),
        ("tokenizer.json", lambda t: t["pairs"].reverse(), "tokenizer"),
        ("split.json", lambda s: s["documents"][2].update(sha256="0" * 64), "split"),
        ("split.json", lambda s: s["source"].update(kind="told"), "split"),
    ):
        whole = (run / name).read_bytes()
        edited_json(run / name, edit)
        disproof = first(run, FILES)
        assert word in disproof.field, disproof
        (run / name).write_bytes(whole)
    assert verify_run(run).exit_code == 0


@pytest.fixture(scope="module")
def from_texts(tmp_path_factory):
    """A run whose texts are files, and the files."""
    folder = tmp_path_factory.mktemp("texts")
    texts = folder / "texts"
    texts.mkdir()
    rng = random.Random(5)
    for number in range(24):
        (texts / f"{number:02}.txt").write_text(" ".join(rng.choices(tiny.WORDS, k=24)))
    rule = SplitRule(validation=0.25, test=0.1)
    dataset = prepare_dataset(read_sources([texts]), rule, 30)
    settings = replace(tiny.settings("float32"), epochs=0, steps=2, eval_at=())
    run_training(dataset, settings, folder / "run", tiny.OPTIONS)
    return folder / "run", texts


def test_documents_read_again(from_texts, tmp_path):
    run, original = from_texts
    texts = Path(shutil.copytree(original, tmp_path / "texts"))
    found = verify_run(run, Request(sources=[texts]))
    assert found.exit_code == 0, "\n".join(found.lines())
    assert any(line.startswith("documents: 24 read again") for line in found.proved)
    document = texts / "03.txt"
    text = document.read_text()
    document.write_text(text.replace("a", "A", 1))
    assert first(run, Request(sources=[texts])).field == "sha256 of 03.txt"
    document.write_text(text + "!")
    assert first(run, Request(sources=[texts])).field == "bytes of 03.txt"
    document.unlink()
    assert first(run, Request(sources=[texts])).field == "number of documents"
    assert verify_run(run, Request(sources=[tmp_path / "gone"])).exit_code == 2


def test_tokens_that_do_not_come_from_the_documents(from_texts, tmp_path):
    """A forger who trains on other tokens and writes down honest digests of the documents."""
    _, texts = from_texts
    stored = prepare_dataset(read_sources([texts]), SplitRule(validation=0.25, test=0.1), 30)
    other = prepare_dataset(read_sources([texts]), SplitRule(validation=0.25, test=0.1), 29)
    victim = stored.documents.train[1]
    ids = victim.token_ids.copy()
    ids[5] += 1
    train = list(stored.documents.train)
    train[1] = BatchDocument(victim.id, victim.partition, ids)
    documents = replace(stored.documents, train=tuple(train))
    settings = replace(tiny.settings("float32"), epochs=0, steps=2, eval_at=())
    for name, forged, word in (
        ("tokens", replace(stored, documents=documents), victim.id),
        ("rules", other, "rule 29"),
    ):
        run_training(forged, settings, tmp_path / name, tiny.OPTIONS)
        assert verify_run(tmp_path / name, ALL).exit_code == 0
        found = verify_run(tmp_path / name, Request(sources=[texts]))
        if name == "rules":  # fewer rules than could be learned are as good a choice
            assert found.exit_code == 0
        else:
            assert word in found.first.text
