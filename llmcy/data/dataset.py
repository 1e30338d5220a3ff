"""Everything a training run needs from text: tokenizer, encoded partitions, and the split record.

Two ways in: `prepare_dataset` splits documents by the hash rule, `prepare_manifest_dataset` applies
a split manifest to a JSON corpus.  In both the tokenizer sees training documents only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from llmcy.data.batches import BatchOrder, MiniBatchConfig, MiniBatchEpoch
from llmcy.data.corpus import Corpus
from llmcy.data.encoded import (
    EncodedPartitions,
    PartitionedText,
    encode_partitions,
    learn_from_train,
)
from llmcy.data.partition import Partition
from llmcy.data.sources import TextDocument, TextSource, builtin_corpus, read_sources
from llmcy.data.split import SplitRule
from llmcy.data.split_manifest import SplitManifest, partition_corpus
from llmcy.data.split_record import SplitRecord, manifest_record, split_documents
from llmcy.data.windows import WindowConfig
from llmcy.errors import DataError
from llmcy.tokenizer import BytePairTokenizer, LearnedBpe, TextTokenizer

__all__ = [
    "TextDataset",
    "load_dataset",
    "prepare_dataset",
    "prepare_manifest_dataset",
    "target_byte_count",
]

Progress = Callable[[int, int], Any]


@dataclass(frozen=True, eq=False)
class TextDataset:
    """Text ready for training.

    Attributes
    ----------
    tokenizer
        Learned on the training documents, or given.
    learned
        The rules with their counts (the learner's final sequences are not kept); None when the
        dataset was read back and nothing was learned.
    documents
        Encoded documents by partition.
    split
        The split, written down.
    """

    tokenizer: TextTokenizer
    learned: LearnedBpe | None
    documents: EncodedPartitions
    split: SplitRecord

    def byte_count(self, partition: Partition) -> int:
        """Bytes of text in one partition, dropped duplicates left out."""
        return self.split.totals()[partition.label]["bytes"]

    def token_count(self, partition: Partition) -> int:
        """Tokens in one partition, BOS and EOS included."""
        return sum(len(document.token_ids) for document in self.documents.of(partition))

    def longest(self, partition: Partition) -> int:
        """Tokens of the longest document of one partition, 0 when it has none."""
        return max((len(d.token_ids) for d in self.documents.of(partition)), default=0)

    def update_epoch(
        self, context_length: int, batch_size: int, seed: int, *, stride: int | None = None
    ) -> MiniBatchEpoch:
        """Shuffled training windows; ``stride`` None means ``context_length``.

        Raises
        ------
        DataError
            ``NoWindows`` when no training document has ``context_length + 1`` tokens, and the
            errors of `WindowConfig`, `MiniBatchConfig` and `MiniBatchEpoch.build`.
        """
        order = BatchOrder.shuffled(seed)
        return self._epoch(
            Partition.TRAIN, context_length, stride, MiniBatchConfig(batch_size, order)
        )

    def evaluation_epoch(
        self,
        partition: Partition,
        context_length: int,
        batch_size: int,
        *,
        stride: int | None = None,
    ) -> MiniBatchEpoch:
        """Windows of one partition in document order; ``stride`` None means ``context_length``, so
        that no target counts twice.  Errors as in `update_epoch`.
        """
        return self._epoch(partition, context_length, stride, MiniBatchConfig(batch_size))

    def _epoch(
        self,
        partition: Partition,
        context_length: int,
        stride: int | None,
        batch_config: MiniBatchConfig,
    ) -> MiniBatchEpoch:
        window_config = WindowConfig(context_length, context_length if stride is None else stride)
        epoch = MiniBatchEpoch.build(
            partition, self.documents.of(partition), window_config, batch_config
        )
        if epoch.window_count == 0:
            longest = self.longest(partition)
            raise DataError(
                "NoWindows",
                f"{partition}: a window of context length {context_length} needs "
                f"{window_config.required_tokens} tokens, the longest document has {longest}; "
                "give longer documents or a shorter context",
                partition=partition,
                context_length=context_length,
                longest=longest,
            )
        return epoch


def target_byte_count(epoch: MiniBatchEpoch, tokenizer: TextTokenizer) -> int:
    """Bytes of text that the targets of an epoch stand for (BOS and EOS stand for none).

    Divide a total loss by this count and by ln 2 for bits per byte.
    """
    lengths = tokenizer.token_lengths
    before: list[NDArray[np.int64]] = []  # bytes before each token of each document
    for document in epoch.documents:
        sums = np.zeros(len(document.token_ids) + 1, np.int64)
        np.cumsum(lengths[document.token_ids], out=sums[1:])
        before.append(sums)
    total = 0
    index, start = epoch.windows[:, 0], epoch.windows[:, 1]
    for document_index in np.unique(index).tolist():
        first_target = start[index == document_index] + 1
        sums = before[document_index]
        total += int((sums[first_target + epoch.context_length] - sums[first_target]).sum())
    return total


@dataclass(frozen=True)
class _Partitioned:
    by_partition: Mapping[Partition, Sequence[TextDocument]]

    def of(self, partition: Partition, /) -> Sequence[TextDocument]:
        return self.by_partition[partition]


def prepare_dataset(
    source: TextSource,
    rule: SplitRule,
    max_merges: int,
    *,
    tokenizer: TextTokenizer | None = None,
    progress: Progress | None = None,
) -> TextDataset:
    """Split documents by ``rule``, learn at most ``max_merges`` rules on train, encode all.

    Parameters
    ----------
    source
        From `read_sources` or `builtin_corpus`.
    rule
        Shares of the partitions.
    max_merges
        The vocabulary will have at most ``258 + max_merges`` ids.
    tokenizer
        One that exists already; then nothing is learned.
    progress
        Called after each rule learned with the count so far and ``max_merges``.

    Raises
    ------
    DataError
        ``EmptyPartition``.
    TokenizerError
        As `llmcy.tokenizer.learn_bpe` and `BytePairTokenizer.encode`.
    """
    split = split_documents(source.documents, rule, source.description)
    placed: dict[Partition, list[TextDocument]] = {partition: [] for partition in Partition}
    for record, document in zip(split.documents, source.documents, strict=True):
        if record.partition is not None:
            placed[record.partition].append(document)
    return _finish(_Partitioned(placed), split, max_merges, tokenizer, progress)


def prepare_manifest_dataset(
    corpus: Corpus,
    manifest: SplitManifest,
    max_merges: int,
    *,
    tokenizer: TextTokenizer | None = None,
    progress: Progress | None = None,
) -> TextDataset:
    """Apply a manifest to a JSON corpus, learn on train (or take ``tokenizer``), encode all.

    Raises
    ------
    DataError
        As `partition_corpus`.
    TokenizerError
        As `llmcy.tokenizer.learn_bpe`.
    """
    partitions = partition_corpus(corpus, manifest)
    place = {d.id: partition for partition in Partition for d in partitions.of(partition)}
    split = manifest_record(
        {"name": manifest.strategy, "corpus_checksum": manifest.corpus_checksum},
        {"kind": "json-corpus", "checksum": corpus.checksum},
        [(TextDocument(d.id, d.content), place[d.id]) for d in corpus],
    )
    return _finish(partitions, split, max_merges, tokenizer, progress)


def _finish(
    partitions: PartitionedText,
    split: SplitRecord,
    max_merges: int,
    given: TextTokenizer | None,
    progress: Progress | None,
) -> TextDataset:
    if given is not None:
        return TextDataset(given, None, encode_partitions(given, partitions), split)
    learned = learn_from_train(partitions, max_merges, progress=progress)
    tokenizer = BytePairTokenizer.from_learned(learned)
    learned = replace(learned, sequences=())
    return TextDataset(tokenizer, learned, encode_partitions(tokenizer, partitions), split)


def load_dataset(
    sources: Sequence[str | os.PathLike[str]] = (),
    *,
    max_merges: int,
    split_manifest: str | os.PathLike[str] | None = None,
    rule: SplitRule | None = None,
    text_field: str = "text",
    cut: str = "auto",
    min_document_bytes: int | None = None,
    tokenizer: TextTokenizer | None = None,
    progress: Progress | None = None,
) -> TextDataset:
    """The dataset of a command line: files to documents to partitions to tokens.

    Parameters
    ----------
    sources
        Paths and patterns as `read_sources` takes them; none means the built-in text.
    max_merges
        Most byte-pair rules to learn.
    split_manifest
        Path of a split manifest; then ``sources`` is the one JSON corpus it belongs to.
    rule
        Shares for the hash rule; None takes a tenth each for validation and test.
    text_field, cut, min_document_bytes
        As in `read_sources`.
    tokenizer
        One that exists already; then nothing is learned and ``max_merges`` means nothing.

    Raises
    ------
    DataError, ConfigError, TokenizerError
        As the functions above; ``SplitManifestMissing`` and ``UnreadableSource`` for paths.
    """
    if split_manifest is not None:
        if len(sources) != 1:
            raise DataError(
                "ManifestNeedsOneCorpus",
                f"a split manifest belongs to one JSON corpus, got {len(sources)} sources",
                sources=len(sources),
            )
        corpus = Corpus.load(sources[0])
        manifest = SplitManifest.load(split_manifest)
        return prepare_manifest_dataset(
            corpus, manifest, max_merges, tokenizer=tokenizer, progress=progress
        )
    if not sources:
        source = builtin_corpus()
    else:
        source = read_sources(
            sources, text_field=text_field, cut=cut, min_document_bytes=min_document_bytes
        )
    return prepare_dataset(
        source, rule or SplitRule(), max_merges, tokenizer=tokenizer, progress=progress
    )
