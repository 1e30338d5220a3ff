"""``tokenizer.json``: the byte-pair tokenizer in the form of the ``tokenizers`` library, and back.

Rules here are applied in rank order, each in one pass from left to right.  The library joins the
pair of lowest rank that is anywhere in the text, leftmost first, until none is left.  A rule only
joins tokens that rules of lower rank have made, so what rule r makes cannot be taken up by a rule
before it, and both procedures do the same replacements in the same order.  Text is not cut into
words first, in either.
"""

from __future__ import annotations

import json
from typing import Any

from llmcy.interop.files import as_json
from llmcy.interop.vocabulary import BOS, EOS, Vocabulary
from llmcy.tokenizer import BytePairTokenizer, JsonTokenizer, Tokenizer

__all__ = ["byte_pair_from_json", "byte_pair_to_json", "tokenizer_files"]


def byte_pair_to_json(tokenizer: BytePairTokenizer) -> bytes:
    """The bytes of a ``tokenizer.json`` that gives the ids of ``tokenizer``.

    ``encode(text, add_special_tokens=False)`` of the library equals ``encode`` here, for every text
    without the names of the two control tokens, and with ``encode_special_tokens = True`` for every
    text.  By default it puts the begin token in front.

    Raises
    ------
    InteropError
        ``DuplicateToken``.
    """
    return as_json(_described(Vocabulary.of(tokenizer)))


def _described(vocabulary: Vocabulary) -> dict[str, Any]:
    byte_level = {
        "type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False,
    }  # fmt: skip
    begin: dict[str, Any] = {"SpecialToken": {"id": BOS, "type_id": 0}}
    first: dict[str, Any] = {"Sequence": {"id": "A", "type_id": 0}}
    second: dict[str, Any] = {"Sequence": {"id": "B", "type_id": 0}}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": token_id,
                "content": name,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for token_id, name in enumerate((BOS, EOS))
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [begin, first],
            "pair": [begin, first, second],
            "special_tokens": {BOS: {"id": BOS, "ids": [0], "tokens": [BOS]}},
        },
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: token_id for token_id, token in enumerate(vocabulary.tokens)},
            "merges": [" ".join(merge) for merge in vocabulary.merges],
        },
    }


def byte_pair_from_json(data: bytes) -> BytePairTokenizer | None:
    """The tokenizer that `byte_pair_to_json` wrote, also after the library wrote it again.

    None for every other file: its tokenizer cuts, changes or merges text in another way.
    """
    try:
        described = json.loads(data)
        merges = [
            tuple(merge.split(" ")) if isinstance(merge, str) else tuple(merge)
            for merge in described["model"]["merges"]
        ]
        vocab = described["model"]["vocab"]
        pairs = [(vocab[left] - 2, vocab[right] - 2) for left, right in merges]
        tokenizer = BytePairTokenizer.from_pairs(pairs)
        wanted = _described(Vocabulary.of(tokenizer))
    except (ValueError, KeyError, TypeError, AttributeError):  # errors of llmcy among them
        return None
    described["model"]["merges"] = [" ".join(merge) for merge in merges]
    return tokenizer if _same(described, wanted) else None


def _same(given: Any, wanted: Any) -> bool:
    """Does ``given`` say all that ``wanted`` says?  Keys that later versions add are let through
    only when they are empty or false."""
    if isinstance(wanted, dict):
        return (
            isinstance(given, dict)
            and all(key in given and _same(given[key], value) for key, value in wanted.items())
            and not any(given[key] for key in given.keys() - wanted.keys())
        )
    return bool(given == wanted) and type(given) is type(wanted)


def tokenizer_files(tokenizer: Tokenizer, max_seq_len: int) -> dict[str, bytes]:
    """``tokenizer.json`` and ``tokenizer_config.json``; nothing for a list of pieces."""
    if isinstance(tokenizer, BytePairTokenizer):
        text = byte_pair_to_json(tokenizer)
    elif isinstance(tokenizer, JsonTokenizer):
        text = tokenizer.text.encode()
    else:
        return {}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": _name(tokenizer, tokenizer.bos_id),
        "eos_token": _name(tokenizer, tokenizer.eos_id),
        "clean_up_tokenization_spaces": False,
        "model_max_length": max_seq_len,
    }
    return {"tokenizer.json": text, "tokenizer_config.json": as_json(config)}


def _name(tokenizer: BytePairTokenizer | JsonTokenizer, token_id: int | None) -> str | None:
    if isinstance(tokenizer, BytePairTokenizer):
        return (BOS, EOS)[token_id or 0]
    return tokenizer.token_name(token_id)
