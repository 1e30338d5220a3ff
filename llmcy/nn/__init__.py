"""Layers of the decoder, one a file; attribute paths are the names of parameters on disk."""

from llmcy.nn.attention import Attention
from llmcy.nn.block import Block
from llmcy.nn.embedding import Embedding, OutputHead
from llmcy.nn.layout import check_decoder_layout
from llmcy.nn.linear import Linear
from llmcy.nn.module import Module, Parameter
from llmcy.nn.naming import check_parameter_name
from llmcy.nn.rms_norm import RMSNorm
from llmcy.nn.rope import RotaryTable
from llmcy.nn.swiglu import SwiGLU

__all__ = [
    "Attention",
    "Block",
    "Embedding",
    "Linear",
    "Module",
    "OutputHead",
    "Parameter",
    "RMSNorm",
    "RotaryTable",
    "SwiGLU",
    "check_decoder_layout",
    "check_parameter_name",
]
