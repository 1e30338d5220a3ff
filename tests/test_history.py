"""Rows that are statements: docs/history.md must make them, plainly."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def history() -> str:
    """The page as one line of words, without markup."""
    text = (ROOT / "docs" / "history.md").read_text(encoding="utf-8")
    text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text)  # a link is its words
    return " ".join(re.sub(r"[*`|]", " ", text).split())


STATEMENTS = [
    pytest.param(
        [
            "NPLM",
            "stopped early by validation",
            "updated after every example",
            "There is no early stopping",
            "A batch size of 1 gives updates per example",
        ],
        marks=pytest.mark.feature("H01"),
        id="H01",
    ),
    pytest.param(
        [
            "GPT-3",
            "used Adam, scheduled rates, clipping of the global norm",
            "Batch growth is absent",
        ],
        marks=pytest.mark.feature("H06"),
        id="H06",
    ),
    pytest.param(
        [
            "The seed, the measuring cadence of two, the eight updates and the tie rule",
            "local choices",
        ],
        marks=pytest.mark.feature("H07X"),
        id="H07X",
    ),
    pytest.param(
        ["A count of uses belongs to one evaluator object", "can be built at any time"],
        marks=pytest.mark.feature("H08X"),
        id="H08X",
    ),
    pytest.param(
        ["It authenticates nothing", "may continue from the same file with other floats"],
        marks=pytest.mark.feature("J17X"),
        id="J17X",
    ),
    pytest.param(
        [
            "model.ckpt.data-00000-of-00001",
            "model.ckpt.index",
            "model.ckpt.meta",
            "hparams.json",
            "absent: a path names one file",
            "encoder.json",
            "vocab.bpe",
            "training-pairs",
        ],
        marks=pytest.mark.feature("L01"),
        id="L01",
    ),
    pytest.param(
        [
            "That bundle is not one file",
            "cannot resume an optimizer",
            "holds no random state",
            "carries no checksum over its parts",
            "is not this format",
        ],
        marks=pytest.mark.feature("L02X"),
        id="L02X",
    ),
    pytest.param(
        ["ZeRO is about memory during training, not about files", "computes activations again"],
        marks=pytest.mark.feature("L04X"),
        id="L04X",
    ),
    pytest.param(
        [
            "header length 8 bytes, little-endian",
            "half-open offsets",
            "holes forbidden forbidden",
            "row-major, little-endian row-major, little-endian",
            "every value keeps its bits",
        ],
        marks=pytest.mark.feature("L05"),
        id="L05",
    ),
    pytest.param(
        [
            "tokenizer, model configuration, optimizer state, random state not defined",
            "checksum, atomic publication not defined",
            "The formats are not compatible",
        ],
        marks=pytest.mark.feature("L06X"),
        id="L06X",
    ),
    pytest.param(
        ["It is not a universal standard", "A full restart needs what a run folder holds besides"],
        marks=pytest.mark.feature("L09X"),
        id="L09X",
    ),
    pytest.param(
        [
            "neither zero-copy nor streaming",
            "the whole file is in memory, besides the decoded tensors",
        ],
        marks=pytest.mark.feature("M23X"),
        id="M23X",
    ),
    pytest.param(
        [
            "shown for the files and states that were compared",
            "a flip that was detected is no signature",
        ],
        marks=pytest.mark.feature("N04X"),
        id="N04X",
    ),
    pytest.param(
        ["an equal FNV-1a does not exclude an adversary"],
        marks=pytest.mark.feature("P08X"),
        id="P08X",
    ),
    pytest.param(
        ["no function returns a test result into a plan or a selection"],
        marks=pytest.mark.feature("E02X"),
        id="E02X",
    ),
    pytest.param(
        ["a fact about that run", "A plan in which no step clips is as valid"],
        marks=pytest.mark.feature("C11X"),
        id="C11X",
    ),
]


@pytest.mark.parametrize("sentences", STATEMENTS)
def test_the_page_says_it(history: str, sentences: list[str]) -> None:
    assert [sentence for sentence in sentences if sentence not in history] == []
