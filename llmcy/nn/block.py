"""One block: attention and feed-forward layer, each behind a norm and beside a residual."""

from __future__ import annotations

from llmcy import ops
from llmcy.nn.attention import Attention
from llmcy.nn.module import Module
from llmcy.nn.rms_norm import RMSNorm
from llmcy.nn.swiglu import SwiGLU
from llmcy.tape import Tensor

__all__ = ["Block"]


class Block(Module):
    """``y = x + attention(norm(x))``, then ``y + ffn(norm(y))``."""

    def __init__(
        self, attention_norm: RMSNorm, attention: Attention, ffn_norm: RMSNorm, ffn: SwiGLU
    ) -> None:
        self.attention_norm = attention_norm
        self.attention = attention
        self.ffn_norm = ffn_norm
        self.ffn = ffn

    def __call__(self, x: Tensor) -> Tensor:
        """Map the residual stream x (B, T, D) to that of the next block."""
        y = ops.add(x, self.attention(self.attention_norm(x)))
        return ops.add(y, self.ffn(self.ffn_norm(y)))
