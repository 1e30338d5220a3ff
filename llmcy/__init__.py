"""llmcy: small language models on CPUs, with results that depend on the inputs alone."""

from llmcy._kernels import available_isas, isa
from llmcy._threads import num_threads, set_num_threads
from llmcy._version import __version__
from llmcy.kernels.memory import release_memory

__all__ = [
    "__version__",
    "available_isas",
    "isa",
    "num_threads",
    "release_memory",
    "set_num_threads",
]
