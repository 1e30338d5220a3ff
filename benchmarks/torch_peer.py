"""The same decoder in PyTorch, with AdamW and clipping: what the training step is compared with."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import torch
import torch.nn.functional as F
from torch import nn

from llmcy.bench.cases import StepCase
from llmcy.bench.step import TrainingStep
from llmcy.tape import Tensor

OUR_LAYERS = {  # names here -> names in our decoder
    "table": "token_embedding",
    "query": "attention.query",
    "key": "attention.key",
    "value": "attention.value",
    "output": "attention.output",
    "gate": "ffn.gate",
    "up": "ffn.up",
    "down": "ffn.down",
}


class Norm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.rms_norm(x, (x.shape[-1],), self.gain, self.eps)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x[..., 0::2], x[..., 1::2]
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=-1).flatten(-2)


class Block(nn.Module):
    def __init__(self, case: StepCase) -> None:
        super().__init__()
        d, f = case.d_model, case.d_ff
        self.n_heads = case.n_heads
        self.attention_norm, self.ffn_norm = Norm(d), Norm(d)
        self.query, self.key = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.value, self.output = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.gate, self.up = nn.Linear(d, f, bias=False), nn.Linear(d, f, bias=False)
        self.down = nn.Linear(f, d, bias=False)

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        rows, tokens, d = x.shape
        h = self.attention_norm(x)
        q, k, v = (
            part(h).view(rows, tokens, self.n_heads, -1).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(
            rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True
        )
        x = x + self.output(mixed.transpose(1, 2).reshape(rows, tokens, d))
        h = self.ffn_norm(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Decoder(nn.Module):
    def __init__(self, case: StepCase) -> None:
        super().__init__()
        width = case.d_model // case.n_heads
        self.table = nn.Embedding(case.vocab_size, case.d_model)
        nn.init.normal_(self.table.weight, std=0.05)
        self.blocks = nn.ModuleList(Block(case) for _ in range(case.n_layers))
        self.final_norm = Norm(case.d_model)
        frequency = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
        angle = torch.arange(case.context_length, dtype=torch.float64)[:, None] * frequency
        self.register_buffer("cos", angle.cos().to(torch.get_default_dtype()))
        self.register_buffer("sin", angle.sin().to(torch.get_default_dtype()))

    def load(self, parameters: Mapping[str, Tensor]) -> None:
        """Take over the values of one of our models; a linear layer here lies transposed."""
        for name, parameter in self.named_parameters():
            layer = name.split(".")[-2]
            values = parameters[name.replace(layer, OUR_LAYERS.get(layer, layer))].data
            values = values.T if layer in OUR_LAYERS and layer != "table" else values
            with torch.no_grad():
                parameter.copy_(torch.from_numpy(values.copy()))

    def forward(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.table(inputs)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        logits = self.final_norm(x) @ self.table.weight.T
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def clip_exactly(parameters: Iterable[nn.Parameter], max_norm: float) -> None:
    """Clipping as ours: PyTorch's own adds 1e-6 to the norm, which a later loss shows (2e-9)."""
    gradients = [p.grad for p in parameters]
    norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in gradients]))
    if norm > max_norm:
        for gradient in gradients:
            gradient.mul_(max_norm / norm)


class TorchStep:
    """Forward, backward, clipping and AdamW on one fixed batch."""

    def __init__(self, case: StepCase, dtype: str, *, compiled: bool = False) -> None:
        torch.set_default_dtype(getattr(torch, dtype))
        ours = TrainingStep(case, dtype)
        self.model = Decoder(case)
        self.model.load(dict(ours.model.named_parameters()))
        self.inputs, self.targets = map(torch.from_numpy, (ours.inputs, ours.targets))
        if compiled:  # PyTorch gives up on a function that it has compiled eight times
            torch.compiler.reset()
        self.loss = torch.compile(self.model) if compiled else self.model
        decay = [p for p in self.model.parameters() if p.ndim == 2]
        gains = [p for p in self.model.parameters() if p.ndim == 1]
        groups = [{"params": decay, "weight_decay": 0.01}, {"params": gains, "weight_decay": 0.0}]
        self.clip: Callable[..., object] = torch.nn.utils.clip_grad_norm_
        self.optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.999), eps=1e-8)

    def __call__(self) -> float:
        loss = self.loss(self.inputs, self.targets)
        loss.backward()
        self.clip(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()
