"""The kernels in PyTorch: its own functions, and its autograd for the backward half.

A backward subject records the forward pass once and then repeats the backward pass alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.torch_peer import rotate
from llmcy.bench.cases import StepCase
from llmcy.bench.kernel_cases import EPS

Inputs = dict[str, np.ndarray]
Tensors = dict[str, torch.Tensor]
Subject = Callable[[], Any]


def tensors(given: Inputs) -> Tensors:
    return {name: torch.from_numpy(np.asarray(array)) for name, array in given.items()}


def forward(formula: Callable[[StepCase, Tensors], Any]) -> Callable[[StepCase, Inputs], Subject]:
    """A subject that computes the formula without recording it."""

    def build(case: StepCase, given: Inputs) -> Subject:
        t = tensors(given)

        def call() -> Any:
            with torch.no_grad():
                return formula(case, t)

        return call

    return build


def backward(
    formula: Callable[[StepCase, Tensors], torch.Tensor], *wanted: str, seed: str | None = "d_out"
) -> Callable[[StepCase, Inputs], Subject]:
    """A subject that repeats the gradients of a recorded formula."""

    def build(case: StepCase, given: Inputs) -> Subject:
        t = tensors(given)
        leaves = [t[name].requires_grad_(True) for name in wanted]
        out = formula(case, t)
        d_out = None if seed is None else t[seed]

        def call() -> Any:
            found = torch.autograd.grad(out, leaves, d_out, retain_graph=True)
            return found if len(found) > 1 else found[0]

        return call

    return build


def attention(case: StepCase, t: Tensors) -> torch.Tensor:
    b, n, d = t["q"].shape
    q, k, v = (t[name].view(b, n, case.n_heads, -1).transpose(1, 2) for name in "qkv")
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixed.transpose(1, 2).reshape(b, n, d)


def causal_softmax(case: StepCase, t: Tensors) -> torch.Tensor:
    size = t["x"].shape[-1]
    mask = torch.ones(size, size, dtype=torch.bool).tril()
    return torch.softmax(t["x"].masked_fill(~mask, -torch.inf), dim=-1)


def cross_entropy(case: StepCase, t: Tensors) -> torch.Tensor:
    return F.cross_entropy(t["logits"].flatten(0, 1), t["targets"].flatten())


def head_loss(case: StepCase, given: Inputs) -> Subject:
    """Forward and backward in one: ours makes the gradients with the loss."""
    t = tensors(given)
    leaves = [t[name].requires_grad_(True) for name in ("x", "table")]

    def call() -> Any:
        logits = F.linear(t["x"], t["table"])
        loss = F.cross_entropy(logits.flatten(0, 1), t["targets"].flatten())
        return loss.detach(), *torch.autograd.grad(loss, leaves)

    return call


def rms_norm(case: StepCase, t: Tensors) -> torch.Tensor:
    return F.rms_norm(t["x"], t["gain"].shape, t["gain"], EPS)


def swiglu(case: StepCase, t: Tensors) -> torch.Tensor:
    return F.silu(t["gate"]) * t["up"]


def rope(case: StepCase, t: Tensors) -> torch.Tensor:
    return rotate(t["x"], t["cos"][:, None], t["sin"][:, None])


def rope_back(case: StepCase, t: Tensors) -> torch.Tensor:
    return rotate(t["x"], t["cos"][:, None], -t["sin"][:, None])


def embedding(case: StepCase, t: Tensors) -> torch.Tensor:
    return F.embedding(t["token_ids"], t["weight"])


def first_non_finite(case: StepCase, t: Tensors) -> int:
    finite = torch.isfinite(t["a"])
    return -1 if bool(finite.all()) else int(torch.argmin(finite.flatten().int()))


def adamw(case: StepCase, given: Inputs) -> Subject:
    """One fused step of torch.optim.AdamW; it updates in place, so its state moves on."""
    t = tensors({name: array.copy() for name, array in given.items()})
    param = torch.nn.Parameter(t["param"])
    param.grad = t["grad"]
    optimizer = torch.optim.AdamW([param], lr=1e-3, weight_decay=0.01, eps=1e-8, fused=True)
    optimizer.state[param] = {
        "step": torch.tensor(0.0),
        "exp_avg": t["first_moment"],
        "exp_avg_sq": t["second_moment"],
    }

    def call() -> Any:
        optimizer.step()
        return param, t["first_moment"], t["second_moment"]

    return call


TORCH_KERNELS: dict[str, Callable[[StepCase, Inputs], Subject]] = {
    "linear forward": forward(lambda case, t: t["x"] @ t["weight"]),
    "linear d_input": forward(lambda case, t: t["d_out"] @ t["weight"].T),
    "linear d_weight": forward(lambda case, t: t["x"].flatten(0, 1).T @ t["d_out"].flatten(0, 1)),
    "attention forward": forward(attention),
    "attention backward": backward(attention, "q", "k", "v"),
    "causal_softmax forward": forward(causal_softmax),
    "causal_softmax backward": backward(causal_softmax, "x", seed="d_p"),
    "cross_entropy forward": forward(cross_entropy),
    "cross_entropy backward": backward(cross_entropy, "logits", seed=None),
    "head loss and gradients": head_loss,
    "rms_norm forward": forward(rms_norm),
    "rms_norm backward": backward(rms_norm, "x", "gain"),
    "swiglu forward": forward(swiglu),
    "swiglu backward": backward(swiglu, "gate", "up"),
    "silu forward": forward(lambda case, t: F.silu(t["gate"])),
    "silu backward": backward(lambda case, t: F.silu(t["gate"]), "gate"),
    "rope forward": forward(rope),
    "rope backward": forward(rope_back),
    "embedding forward": forward(embedding),
    "embedding backward": backward(embedding, "weight"),
    "add": forward(lambda case, t: t["a"] + t["b"]),
    "multiply": forward(lambda case, t: t["a"] * t["b"]),
    "first_non_finite": forward(first_non_finite),
    "exp": forward(lambda case, t: torch.exp(t["a"])),
    "adamw": adamw,
    "grad_norm": forward(lambda case, t: torch.linalg.vector_norm(t["grad"])),
}
