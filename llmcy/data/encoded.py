"""From partitions of text to partitions of token ids; only training text teaches the tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from llmcy.data.batches import BatchDocument
from llmcy.data.partition import Partition
from llmcy.tokenizer import LearnedBpe, TextTokenizer, learn_bpe

__all__ = ["EncodedPartitions", "PartitionedText", "encode_partitions", "learn_from_train"]


class NamedContent(Protocol):
    """Anything with a name and bytes."""

    @property
    def id(self) -> str: ...
    @property
    def content(self) -> bytes: ...


class PartitionedText(Protocol):
    """Documents by partition."""

    def of(self, partition: Partition, /) -> Sequence[NamedContent]: ...


@dataclass(frozen=True)
class EncodedPartitions:
    """Documents as BOS, content, EOS, in the order of their partitions; never joined."""

    train: tuple[BatchDocument, ...]
    validation: tuple[BatchDocument, ...]
    test: tuple[BatchDocument, ...]

    def of(self, partition: Partition) -> tuple[BatchDocument, ...]:
        """Documents of one partition."""
        documents: tuple[BatchDocument, ...] = getattr(self, partition.label)
        return documents


def learn_from_train(
    partitions: PartitionedText,
    max_merges: int,
    *,
    progress: Callable[[int, int], Any] | None = None,
) -> LearnedBpe:
    """`llmcy.tokenizer.learn_bpe` on the training documents, which the result names."""
    train = partitions.of(Partition.TRAIN)
    return learn_bpe(
        (document.content for document in train),
        max_merges,
        document_ids=[document.id for document in train],
        progress=progress,
    )


def encode_partitions(
    tokenizer: TextTokenizer, partitions: PartitionedText
) -> EncodedPartitions:
    """Encode every document on its own."""
    return EncodedPartitions(
        *(
            tuple(
                BatchDocument(d.id, partition, tokenizer.encode_document(d.content))
                for d in partitions.of(partition)
            )
            for partition in Partition
        )
    )
