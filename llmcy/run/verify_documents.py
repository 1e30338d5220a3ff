"""From the texts to the stored tokens: read, split, learn and encode once more, and compare."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from llmcy.data import (
    Corpus,
    SplitManifest,
    SplitRule,
    TextDataset,
    builtin_corpus,
    prepare_dataset,
    prepare_manifest_dataset,
    read_sources,
)
from llmcy.data.sources import TextSource
from llmcy.errors import DataError, LlmcyError
from llmcy.run.canonical import first_difference
from llmcy.run.findings import Disproof, Findings
from llmcy.run.tokens import encode_tokens
from llmcy.tokenizer import BytePairTokenizer, JsonTokenizer

__all__ = ["check_documents"]

PathName = str | os.PathLike[str]


def check_documents(
    stored: TextDataset,
    sources: Sequence[PathName],
    split_manifest: PathName | None,
    found: Findings,
    *,
    given: bool = False,
) -> None:
    """Make the data of a run again from its texts and compare documents, rules and tokens.

    Parameters
    ----------
    stored
        What the run folder holds.
    sources
        The texts, given as for the training; none: the built-in text, if the run used it.
    split_manifest
        The manifest of a JSON corpus.
    found
        Where the result goes.
    given
        Whether the run was given its tokenizer, so that there is nothing to learn; one that only
        the ``tokenizers`` library runs always was.
    """
    given = given or isinstance(stored.tokenizer, JsonTokenizer)
    kind = stored.split.source.get("kind")
    if not sources and kind != "builtin":
        found.not_proved.append(
            "documents: the folder has their digests, not their text; give the texts to have them "
            "read, split and encoded again"
        )
        return
    try:
        again = _prepare(stored, sources, split_manifest, given)
    except _OtherBuiltin as error:
        found.not_proved.append(str(error))
        return
    except DataError as error:
        if error.kind in ("SplitRecordMismatch", "CorpusChecksumMismatch", "EmptyPartition"):
            found.disproved.append(Disproof(f"documents: {error}", field=error.fields.get("field")))
        else:
            found.problems.append(f"documents: {error}")
        return
    except (LlmcyError, OSError) as error:
        found.problems.append(f"documents: {error}")
        return
    wrong = _difference(stored, again)
    if wrong is not None:
        found.disproved.append(wrong)
        return
    how = "the run was given" if given else "learning on the training documents gives"
    found.proved.append(
        f"documents: {len(stored.split.documents)} read again, their digests and partitions hold; "
        f"{how} the tokenizer, encoding gives the tokens"
    )


class _OtherBuiltin(Exception):
    """The built-in text is that of another Python."""


def _prepare(
    stored: TextDataset,
    sources: Sequence[PathName],
    split_manifest: PathName | None,
    given: bool,
) -> TextDataset:
    described, rule = stored.split.source, stored.split.rule
    tokenizer = stored.tokenizer if given else None
    learned = stored.tokenizer
    merges = learned.merge_count if isinstance(learned, BytePairTokenizer) else 0
    if described["kind"] == "json-corpus":
        if split_manifest is None or len(sources) != 1:
            raise DataError(
                "ManifestNeedsOneCorpus",
                "the run used a JSON corpus: give its one file and --split-manifest",
                sources=len(sources),
            )
        corpus, manifest = Corpus.load(sources[0]), SplitManifest.load(split_manifest)
        return prepare_manifest_dataset(corpus, manifest, merges, tokenizer=tokenizer)
    source = _read(described, sources)
    try:
        stored.split.check(source.documents)
    except DataError as error:
        if described["kind"] == "builtin" and not sources:
            raise _OtherBuiltin(
                "documents: the built-in text of this Python is not the one that was used"
            ) from error
        raise
    return prepare_dataset(source, SplitRule.from_dict(rule), merges, tokenizer=tokenizer)


def _read(described: Any, sources: Sequence[PathName]) -> TextSource:
    if not sources:
        return builtin_corpus()
    source = read_sources(
        [os.fspath(path) for path in sources],
        text_field=described.get("text_field", "text"),
        cut="always" if described.get("cut_at_paragraphs") else "never",
        min_document_bytes=described.get("min_document_bytes"),
    )
    return TextSource(source.documents, dict(described))


def _difference(stored: TextDataset, again: TextDataset) -> Disproof | None:
    split = first_difference(again.split.to_dict(), stored.split.to_dict())
    if split is not None:
        field, expected, actual = split
        text = f"split.json: {field} is {actual!r}, the texts give {expected!r}"
        return Disproof(text, "split.json", field=field)
    if again.tokenizer != stored.tokenizer:  # only where both were learned
        learned, kept = (
            x.tokenizer.pairs if isinstance(x.tokenizer, BytePairTokenizer) else ()
            for x in (again, stored)
        )
        pairs = zip(learned, kept, strict=False)
        rank = next((k for k, (a, b) in enumerate(pairs) if a != b), len(learned))
        text = f"tokenizer.json: learning on the training documents gives another rule {rank}"
        return Disproof(text, "tokenizer.json", field=f"pairs[{rank}]")
    replayed, written = encode_tokens(again.documents), encode_tokens(stored.documents)
    for a, b in zip(replayed[1]["documents"], written[1]["documents"], strict=False):
        if a != b:
            text = f"tokens.bin: document {b['id']!r} does not encode to the stored tokens"
            return Disproof(text, "tokens.bin", field=str(b["id"]))
    if replayed[0] != written[0]:
        return Disproof("tokens.bin: it holds other documents than the split", "tokens.bin")
    return None
