"""Tokenizers as GGUF files hold them: strings, kinds, merges, and the name of a rule for cutting.

llama.cpp cuts a text into words before it merges, by one of the patterns that it knows by name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from llmcy.errors import InteropError
from llmcy.interop.vocabulary import Vocabulary
from llmcy.tokenizer import BytePairTokenizer, JsonTokenizer, Tokenizer

__all__ = ["GgufVocabulary"]

PLACEHOLDER_MERGE = "\u0120 t"  # an empty list is refused; this joins nothing

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class GgufVocabulary:
    """What a file says about its tokenizer, a byte-level BPE.

    Attributes
    ----------
    tokens, kinds
        One string an id, in the byte alphabet; NORMAL, CONTROL, USER_DEFINED or UNUSED.
    merges
        ``left right`` of every rule.
    cut
        llama.cpp's name of the pattern that cuts texts.
    bos_id, eos_id
        Control tokens, if there are any; a begin token is put in front of a text.
    """

    tokens: tuple[str, ...]
    kinds: tuple[str, ...]
    merges: tuple[str, ...]
    cut: str
    bos_id: int | None
    eos_id: int | None

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> GgufVocabulary:
        """The tokenizer of a model.

        Raises
        ------
        InteropError
            ``UnsupportedTokenizer`` for a kind that these files or llama.cpp do not have;
            ``DuplicateToken``.
        """
        if isinstance(tokenizer, BytePairTokenizer):
            return cls._of_byte_pairs(tokenizer)
        if isinstance(tokenizer, JsonTokenizer):
            return cls._of_json(tokenizer)
        raise _unsupported(f"it has no way to hold a {tokenizer!r}")

    @classmethod
    def _of_byte_pairs(cls, tokenizer: BytePairTokenizer) -> GgufVocabulary:
        vocabulary = Vocabulary.of(tokenizer)
        kinds = ("CONTROL",) * 2 + ("NORMAL",) * (len(vocabulary.tokens) - 2)
        merges = tuple(" ".join(merge) for merge in vocabulary.merges)
        return cls(vocabulary.tokens, kinds, merges or (PLACEHOLDER_MERGE,), "gpt-2", 0, 1)

    @classmethod
    def _of_json(cls, tokenizer: JsonTokenizer) -> GgufVocabulary:
        file = json.loads(tokenizer.text)
        model = file["model"]
        _require_byte_level(file, model)
        names = {token_id: token for token, token_id in model["vocab"].items()}
        kinds = dict.fromkeys(names, "NORMAL")
        for added in file.get("added_tokens") or ():
            names[added["id"]] = added["content"]
            kinds[added["id"]] = "CONTROL" if added["special"] else "USER_DEFINED"
        ids = range(tokenizer.vocab_size)
        merges = tuple(m if isinstance(m, str) else " ".join(m) for m in model["merges"])
        return cls(
            tuple(names.get(i, f"[PAD{i}]") for i in ids),
            tuple(kinds.get(i, "UNUSED") for i in ids),
            merges or (PLACEHOLDER_MERGE,),
            _cut(file.get("pre_tokenizer"), bool(model.get("ignore_merges"))),
            tokenizer.bos_id,
            tokenizer.eos_id,
        )


def _require_byte_level(file: dict[str, Any], model: dict[str, Any]) -> None:
    """Refuse by name what a byte-level BPE of llama.cpp does not do."""
    if model.get("type") != "BPE":
        raise _unsupported(f"its model is {model.get('type')}, not BPE")
    for name in ("continuing_subword_prefix", "end_of_word_suffix", "byte_fallback", "dropout"):
        if model.get(name):
            raise _unsupported(f"its model has {name} {model[name]!r}")
    if file.get("normalizer") is not None:
        raise _unsupported(f"it changes texts first: {file['normalizer'].get('type')}")
    decoder = (file.get("decoder") or {}).get("type")
    if decoder != "ByteLevel":
        raise _unsupported(f"its decoder is {decoder}, not ByteLevel")


def _cut(rule: dict[str, Any] | None, ignore_merges: bool) -> str:
    """llama.cpp's name for a rule of cutting."""
    steps = rule["pretokenizers"] if rule and rule.get("type") == "Sequence" else [rule]
    shapes = [_shape(step) for step in steps]
    for name, known, whole_words in (
        ("gpt-2", [("ByteLevel", True)], False),
        ("smollm", [("Digits", True), ("ByteLevel", True)], False),
        ("llama-bpe", [("Split", LLAMA_3), ("ByteLevel", False)], True),
    ):
        if shapes == known and ignore_merges is whole_words:
            return name
    raise _unsupported(f"llama.cpp has no name for its way of cutting texts: {json.dumps(rule)}")


def _shape(step: dict[str, Any] | None) -> tuple[str, object] | None:
    """Type and the one setting that matters; None for anything out of the ordinary."""
    kind = (step or {}).get("type")
    if step is None or kind is None:
        return None
    if kind == "ByteLevel" and not step.get("add_prefix_space"):
        return kind, step.get("use_regex", True)
    if kind == "Digits":
        return kind, step.get("individual_digits")
    if kind == "Split" and step.get("behavior") == "Isolated" and not step.get("invert"):
        return kind, step.get("pattern", {}).get("Regex")
    return None


def _unsupported(problem: str) -> InteropError:
    text = f"this tokenizer cannot be written to a GGUF file: {problem}"
    return InteropError("UnsupportedTokenizer", text, problem=text)
