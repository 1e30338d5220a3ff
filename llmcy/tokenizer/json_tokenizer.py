"""A tokenizer that somebody else trained, run by the ``tokenizers`` library.

Any Hugging Face ``tokenizer.json`` will do.  The ids are that library's business, and so is whether
another version of it gives the same ones; run folders and model files keep the JSON text itself.
"""

from __future__ import annotations

import json
import os
import re
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmcy.errors import TokenizerError
from llmcy.tokenizer import byte_alphabet
from llmcy.tokenizer._ids import TokenIds, as_text, id_array, require_known

__all__ = ["JsonTokenizer"]

BOS_NAMES = ("<|bos|>", "<s>", "<|begin_of_text|>", "<bos>", "<|startoftext|>")
EOS_NAMES = ("<|eos|>", "</s>", "<|end_of_text|>", "<eos>", "<|endoftext|>", "<|im_end|>")
_BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")


class JsonTokenizer:
    """The tokenizer of a ``tokenizer.json``; needs ``pip install 'llmcy[hf]'``.

    Parameters
    ----------
    text
        The content of the file.
    bos_id, eos_id
        Ids that begin and end a document; None when there is none.
    vocab_size
        Ids of the model that goes with it, when those are more than the tokenizer's; the surplus
        ids stand for no bytes.

    Raises
    ------
    TokenizerError
        ``MissingPackage`` without the ``tokenizers`` library; ``InvalidTokenizerFile`` when the
        library does not accept the text, or when an id or size does not fit it.

    Notes
    -----
    Text never becomes a control token: ``<s>`` in a document is three characters, as
    long as the tokenizer marks the token of that name as special.
    """

    __slots__ = ("__dict__", "_text", "_tokenizer", "bos_id", "eos_id", "vocab_size")

    bos_id: int | None
    eos_id: int | None
    vocab_size: int

    def __init__(
        self,
        text: str,
        bos_id: int | None = None,
        eos_id: int | None = None,
        vocab_size: int | None = None,
    ) -> None:
        self._text = text
        self._tokenizer = _load(text)
        used = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        self.vocab_size = used if vocab_size is None else vocab_size
        self.bos_id, self.eos_id = bos_id, eos_id
        if used == 0:
            raise _invalid("it has no tokens")
        if self.vocab_size < used:
            raise _invalid(f"its ids reach {used - 1}, the model has {self.vocab_size}")
        for name, token_id in (("bos_id", bos_id), ("eos_id", eos_id)):
            if token_id is not None and not 0 <= token_id < self.vocab_size:
                raise _invalid(f"{name} {token_id} is outside its {self.vocab_size} ids")

    @classmethod
    def from_file(
        cls, path: str | os.PathLike[str], *, vocab_size: int | None = None
    ) -> JsonTokenizer:
        """Read a ``tokenizer.json``, or the one of a folder.

        The control tokens are those that ``tokenizer_config.json`` beside it names; without that
        file, the first special tokens with a well-known name.

        Raises
        ------
        TokenizerError
            As the constructor; ``Io`` for a file that cannot be read.
        """
        file = Path(path)
        if file.is_dir():
            file = file / "tokenizer.json"
        text = _read(file)
        bos_id, eos_id = _controls(file, text)
        return cls(text, bos_id, eos_id, vocab_size)

    # -- what it knows

    @property
    def text(self) -> str:
        """The JSON text."""
        return self._text

    @cached_property
    def byte_level(self) -> bool:
        """Whether tokens are byte strings, so that decoding gives back every byte."""
        return "ByteLevel" in self._decoder_types

    @cached_property
    def _decoder_types(self) -> set[str]:
        return _types(json.loads(self._text).get("decoder"))

    @cached_property
    def token_lengths(self) -> NDArray[np.int64]:
        """Bytes that each id stands for, (vocab_size,), read-only; 0 for the two controls.

        Exact for byte-level tokenizers; one that changes text before cutting it is measured on the
        changed text.
        """
        sizes = [len(self.token_bytes(token_id) or b"") for token_id in range(self.vocab_size)]
        lengths = np.array(sizes, np.int64)
        lengths.flags.writeable = False
        return lengths

    def token_name(self, token_id: int | None) -> str | None:
        """The file's string for one id; None when it has none."""
        if token_id is None:
            return None
        name: str | None = self._tokenizer.id_to_token(int(token_id))
        return name

    def token_bytes(self, token_id: int) -> bytes | None:
        """Bytes of one id; None for the two controls and ids outside the vocabulary."""
        if token_id in (self.bos_id, self.eos_id) or not 0 <= token_id < self.vocab_size:
            return None
        token = self._tokenizer.id_to_token(int(token_id))
        if token is None:
            return b""
        if "ByteFallback" in self._decoder_types and _BYTE_TOKEN.fullmatch(token):
            return bytes([int(token[3:5], 16)])
        if token_id in self._added:
            return str(token).encode()
        if self.byte_level:
            data = byte_alphabet.as_bytes(token)
            return str(token).encode() if data is None else data
        return self._behind_another(int(token_id))

    def _behind_another(self, token_id: int) -> bytes:
        """What a token adds to a text that has begun: there, a sign for a space is one."""
        before = self._tokenizer.decode([self._ordinary], skip_special_tokens=False)
        whole = self._tokenizer.decode([self._ordinary, token_id], skip_special_tokens=False)
        added: str = whole.removeprefix(before)
        return added.encode()

    @cached_property
    def _ordinary(self) -> int:
        """Some token that is not special."""
        ids = self._tokenizer.get_vocab(with_added_tokens=False).values()
        return min((i for i in ids if i not in self._added), default=0)

    @cached_property
    def _added(self) -> frozenset[int]:
        return frozenset(self._tokenizer.get_added_tokens_decoder())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, JsonTokenizer) and self.__reduce__() == other.__reduce__()

    def __hash__(self) -> int:
        return hash(self._text)

    def __repr__(self) -> str:
        return (
            f"JsonTokenizer(vocab_size={self.vocab_size}, bos_id={self.bos_id}, "
            f"eos_id={self.eos_id})"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._text, self.bos_id, self.eos_id, self.vocab_size)

    # -- encoding

    def encode(
        self, content: bytes | bytearray | memoryview | str, *, parse_special: bool = False
    ) -> NDArray[np.int64]:
        """Ids of ``content``, (n,) int64, without control tokens around it.

        Parameters
        ----------
        content
            Text, or its UTF-8 bytes.
        parse_special
            Whether the names of special tokens in the text become those tokens, as a chat template
            needs it.

        Raises
        ------
        TokenizerError
            ``InvalidUtf8`` for bytes that are not text, ``InvalidText`` for a lone surrogate.
        """
        if isinstance(content, str):
            _check_text(content)
            text = content
        else:
            text = as_text(bytes(memoryview(content)))
        self._tokenizer.encode_special_tokens = not parse_special
        return np.array(self._tokenizer.encode(text, add_special_tokens=False).ids, np.int64)

    def encode_document(self, content: bytes | bytearray | memoryview | str) -> NDArray[np.int64]:
        """Begin token, ids, end token, as far as the tokenizer has them; see `encode`."""
        first = [] if self.bos_id is None else [self.bos_id]
        last = [] if self.eos_id is None else [self.eos_id]
        return np.array([*first, *self.encode(content).tolist(), *last], np.int64)

    # -- decoding

    def decode(self, token_ids: TokenIds) -> bytes:
        """Bytes of content ids; of a tokenizer that is not byte-level, the library's decoding.

        Raises
        ------
        TokenizerError
            ``InvalidTokenIds``; ``ControlTokenInContent`` for the first of the two controls
            anywhere; ``UnknownToken`` for the first id outside the vocabulary.
        """
        ids = id_array(token_ids)
        controls = [token_id for token_id in (self.bos_id, self.eos_id) if token_id is not None]
        found = np.flatnonzero(np.isin(ids, controls))
        if found.size:
            position = int(found[0])
            raise TokenizerError(
                "ControlTokenInContent",
                f"control token {int(ids[position])} at position {position} of content",
                position=position,
                token_id=int(ids[position]),
            )
        require_known(ids, self.vocab_size)
        if self.byte_level:
            return b"".join(self.token_bytes(token_id) or b"" for token_id in ids.tolist())
        text: str = self._tokenizer.decode(ids.tolist(), skip_special_tokens=False)
        return text.encode()

    def decode_text(self, token_ids: TokenIds) -> str:
        """`decode` as strict UTF-8; bytes that are not text are ``InvalidUtf8``."""
        return as_text(self.decode(token_ids))


def _load(text: str) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise TokenizerError(
            "MissingPackage",
            "a tokenizer.json of another kind needs the package tokenizers: "
            "pip install 'llmcy[hf]'",
            package="tokenizers",
            extra="hf",
        ) from error
    try:
        tokenizer = tokenizers.Tokenizer.from_str(text)
    except Exception as error:  # the library raises plain Exception
        raise _invalid(str(error)) from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _invalid(problem: str) -> TokenizerError:
    return TokenizerError("InvalidTokenizerFile", f"tokenizer.json: {problem}", problem=problem)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise _invalid(f"not UTF-8: {error.reason}") from error
    except OSError as error:
        raise TokenizerError(
            "Io", f"cannot read {str(file)!r}: {error.strerror}", cause=error, path=str(file)
        ) from error


def _controls(file: Path, text: str) -> tuple[int | None, int | None]:
    """Ids of the control tokens, by the configuration beside the file or by well-known names."""
    ids = _load(text).get_vocab(with_added_tokens=True)
    config = file.with_name("tokenizer_config.json")
    if config.is_file():
        try:
            described = json.loads(_read(config))
        except ValueError as error:
            raise _invalid(f"tokenizer_config.json: {error}") from error
        named = [described.get("bos_token"), described.get("eos_token")]
        contents = [name.get("content") if isinstance(name, dict) else name for name in named]
        return ids.get(contents[0]), ids.get(contents[1])
    special = {token["content"] for token in json.loads(text).get("added_tokens") or ()}
    bos, eos = (
        next((ids[name] for name in names if name in special), None)
        for names in (BOS_NAMES, EOS_NAMES)
    )
    return bos, eos


def _types(part: Any) -> set[str]:
    """Every ``type`` in a nested description."""
    found: set[str] = set()
    if isinstance(part, dict):
        found |= {part["type"]} if isinstance(part.get("type"), str) else set()
        for value in part.values():
            found |= _types(value)
    elif isinstance(part, list):
        for value in part:
            found |= _types(value)
    return found


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise TokenizerError(
            "InvalidText",
            f"text has a lone surrogate at character {error.start}",
            cause=error,
            position=error.start,
        ) from error
