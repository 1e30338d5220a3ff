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
from llmcy.data.dataset import (
    TextDataset,
    load_dataset,
    prepare_dataset,
    prepare_manifest_dataset,
    target_byte_count,
)
from llmcy.data.encoded import EncodedPartitions, encode_partitions, learn_from_train
from llmcy.data.epochs import EpochPosition, ReshuffledEpochs, epoch_seed
from llmcy.data.partition import Partition
from llmcy.data.sources import TextDocument, TextSource, builtin_corpus, read_sources
from llmcy.data.split import SplitRule
from llmcy.data.split_manifest import CorpusPartitions, SplitManifest, partition_corpus
from llmcy.data.split_record import SplitRecord, split_documents
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
    "EpochPosition",
    "IncompleteTail",
    "MiniBatchConfig",
    "MiniBatchEpoch",
    "Partition",
    "ReshuffledEpochs",
    "SplitManifest",
    "SplitRecord",
    "SplitRule",
    "TextDataset",
    "TextDocument",
    "TextSource",
    "WindowConfig",
    "WindowProvenance",
    "builtin_corpus",
    "encode_partitions",
    "epoch_seed",
    "learn_from_train",
    "load_dataset",
    "partition_corpus",
    "prepare_dataset",
    "prepare_manifest_dataset",
    "read_sources",
    "split_documents",
    "target_byte_count",
]
