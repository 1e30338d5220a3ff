"""From text to mini-batches: corpora, splits, partitions, causal windows, epochs."""

from llmcy.data.batches import (
    Batch,
    BatchDocument,
    BatchOrder,
    MiniBatchConfig,
    MiniBatchEpoch,
    WindowProvenance,
)
from llmcy.data.corpus import Corpus, Document
from llmcy.data.encoded import EncodedPartitions, encode_partitions, learn_from_train
from llmcy.data.partition import Partition
from llmcy.data.split_manifest import CorpusPartitions, SplitManifest, partition_corpus
from llmcy.data.windows import CausalWindow, CausalWindows, IncompleteTail, WindowConfig

__all__ = [
    "Batch",
    "BatchDocument",
    "BatchOrder",
    "CausalWindow",
    "CausalWindows",
    "Corpus",
    "CorpusPartitions",
    "Document",
    "EncodedPartitions",
    "IncompleteTail",
    "MiniBatchConfig",
    "MiniBatchEpoch",
    "Partition",
    "SplitManifest",
    "WindowConfig",
    "WindowProvenance",
    "encode_partitions",
    "learn_from_train",
    "partition_corpus",
]
