"""A whole life of a model with a ``tokenizer.json`` from elsewhere: train, verify, generate."""

import json
from pathlib import Path

import pytest

from llmcy.run import load_model
from llmcy.tokenizer import JsonTokenizer
from tests.cli.command import llmcy

TINY = (
    "--d-model", 16, "--n-layers", 1, "--n-heads", 4, "--context-length", 8, "--steps", 4,
    "--batch-size", 4, "--eval-every", 2,
)  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    for n in range(40):
        (folder / f"{n:02}.txt").write_text(f"The fox number {n} sees <s> a dog. " * 4)
    return folder


@pytest.fixture(scope="module")
def tokenizer_file(text: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = pytest.importorskip("tokenizers")
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=["<s>", "</s>"],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(path) for path in text.iterdir()], trainer)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_train_resume_verify_and_generate(
    text: Path, tokenizer_file: Path, tmp_path: Path, dtype: str
) -> None:
    run = tmp_path / "run"
    result = llmcy(
        "train", text, *TINY, "--tokenizer", tokenizer_file, "--dtype", dtype, "--run", run
    )
    assert result.returncode == 0, result.stderr
    assert json.loads((run / "tokenizer.json").read_text())["kind"] == "json"
    assert not (run / "selected.ckpt").exists()
    loaded = load_model(run)
    assert loaded.tokenizer == JsonTokenizer.from_file(tokenizer_file)
    assert (loaded.tokenizer.bos_id, loaded.tokenizer.eos_id) == (0, 1)

    result = llmcy("verify", run, text)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "the run was given the tokenizer" in result.stdout

    ids = loaded.tokenizer.encode("The fox").tolist()
    asked = ("--temperature", 0, "--max-new-tokens", 6, "--json")
    by_text = llmcy("generate", run, "--prompt", "The fox", *asked)
    assert by_text.returncode == 0, by_text.stderr
    by_ids = llmcy("generate", run, "--prompt-ids", " ".join(map(str, [0, *ids])), *asked)
    assert by_text.stdout == by_ids.stdout


def test_a_file_that_is_none(text: Path, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    wrong = tmp_path / "tokenizer.json"
    wrong.write_text("{}")
    result = llmcy("train", text, *TINY, "--tokenizer", wrong, "--run", tmp_path / "run")
    assert result.returncode == 1
    assert result.stderr.startswith("error: tokenizer.json: ")
    assert not (tmp_path / "run").exists()
