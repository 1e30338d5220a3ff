"""From text to mini-batches: corpora, partitions, causal windows, epochs."""

from llmcy.data.batches import (
    Batch,
    BatchDocument,
    BatchOrder,
    MiniBatchConfig,
    MiniBatchEpoch,
    WindowProvenance,
)
from llmcy.data.partition import Partition
from llmcy.data.windows import CausalWindow, CausalWindows, IncompleteTail, WindowConfig

__all__ = [
    "Batch",
    "BatchDocument",
    "BatchOrder",
    "CausalWindow",
    "CausalWindows",
    "IncompleteTail",
    "MiniBatchConfig",
    "MiniBatchEpoch",
    "Partition",
    "WindowConfig",
    "WindowProvenance",
]
