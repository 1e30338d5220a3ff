"""Tokenizers as GGUF files hold them: strings, kinds, merges, and the name of a rule for cutting.

llama.cpp cuts a text into words before it merges, by one of the patterns that it knows by name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from llmcy.errors import InteropError
from llmcy.interop.vocabulary import BOS, EOS, Vocabulary
from llmcy.tokenizer import BytePairTokenizer, JsonTokenizer, Tokenizer

__all__ = ["GgufVocabulary"]

PLACEHOLDER_MERGE = "\u0120 t"  # an empty list is refused; this joins nothing

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


BYTE_LEVEL: dict[str, Any] = {
    "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True,
}  # fmt: skip
ADDED = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)

# llama.cpp's name for a way of cutting: the steps of a tokenizer.json, and whether a word that is a
# token is taken whole before any merge
CUTS: dict[str, tuple[list[dict[str, Any]], bool]] = {
    "gpt-2": ([BYTE_LEVEL], False),
    "smollm": ([{"type": "Digits", "individual_digits": True}, BYTE_LEVEL], False),
    "llama-bpe": (
        [
            {
                "type": "Split",
                "pattern": {"Regex": LLAMA_3},
                "behavior": "Isolated",
                "invert": False,
            },
            BYTE_LEVEL | {"use_regex": False},
        ],
        True,
    ),
}


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

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that a file describes; the byte-pair tokenizer itself where `of` wrote one.

        Raises
        ------
        InteropError
            ``UnsupportedTokenizer`` for a name of cutting that is not known here.
        TokenizerError
            As `llmcy.tokenizer.JsonTokenizer`.
        """
        ours = self._byte_pairs()
        if ours is not None:
            return ours
        if self.cut not in CUTS:
            raise _unknown_cut(self.cut)
        steps, whole_words = CUTS[self.cut]
        rule = steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps}
        used = [i for i, kind in enumerate(self.kinds) if kind != "UNUSED"]
        described = {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "normalizer": None,
            "post_processor": None,
            "added_tokens": [
                ADDED | {"id": i, "content": self.tokens[i], "special": self.kinds[i] == "CONTROL"}
                for i in used
                if self.kinds[i] != "NORMAL"
            ],
            "pre_tokenizer": rule,
            "decoder": BYTE_LEVEL,
            "model": {
                "type": "BPE",
                "ignore_merges": whole_words,
                "vocab": {self.tokens[i]: i for i in used},
                "merges": self._rules(),
            },
        }
        text = json.dumps(described, ensure_ascii=False)
        return JsonTokenizer(text, self.bos_id, self.eos_id, len(self.tokens))

    def _rules(self) -> list[str]:
        """The merges without the one that stands for none."""
        none = self.merges == (PLACEHOLDER_MERGE,)
        joined = PLACEHOLDER_MERGE.replace(" ", "")
        return [] if none and joined not in self.tokens else list(self.merges)

    def _byte_pairs(self) -> BytePairTokenizer | None:
        """The tokenizer whose control tokens, bytes and rules these are, if there is one."""
        if self.tokens[:2] != (BOS, EOS) or self.cut != "gpt-2":
            return None
        ids = {token: token_id for token_id, token in enumerate(self.tokens)}
        merges = [merge.split(" ") for merge in self._rules()]
        try:
            pairs = [(ids[left] - 2, ids[right] - 2) for left, right in merges]
            tokenizer = BytePairTokenizer.from_pairs(pairs)
            same = GgufVocabulary.of(tokenizer) == self
        except (KeyError, ValueError):
            return None
        return tokenizer if same else None


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
    for name, (known, whole_words) in CUTS.items():
        if shapes == [_shape(step) for step in known] and ignore_merges is whole_words:
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


def _unknown_cut(name: str) -> InteropError:
    problem = f"it cuts texts by the pattern {name!r}, not by one of {', '.join(CUTS)}"
    return InteropError(
        "UnsupportedTokenizer", f"this file's tokenizer cannot be read: {problem}", problem=problem
    )


def _unsupported(problem: str) -> InteropError:
    text = f"this tokenizer cannot be written to a GGUF file: {problem}"
    return InteropError("UnsupportedTokenizer", text, problem=text)
