"""The decoder against PyTorch's autograd, where PyTorch is installed.

Values agree within rounding only: PyTorch adds in another order.  That is the point of a second
opinion on formulas; bits are compared with the oracle.
"""

import warnings

import numpy as np
import pytest

from llmcy.config import ModelConfig
from llmcy.model import Decoder

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch = pytest.importorskip("torch")

CONFIG = {
    "vocab_size": 13, "d_model": 24, "n_heads": 3, "n_layers": 2, "d_ff": 20, "max_seq_len": 9,
    "rope_theta": 100.0, "rms_norm_eps": 1e-5,
}  # fmt: skip


def norm(x, gain, eps):
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * gain


def rotate(x, theta):
    """Adjacent pairs as complex numbers; x is (B, H, T, w)."""
    w = x.shape[-1]
    frequencies = theta ** (-torch.arange(0, w, 2, dtype=torch.float64) / w)
    angles = torch.outer(torch.arange(x.shape[-2], dtype=torch.float64), frequencies)
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).to(torch.float64)) * torch.polar(
        torch.ones_like(angles), angles
    )
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


def torch_loss(config: ModelConfig, p, inputs, targets):
    """The same model in PyTorch's words."""
    functional = torch.nn.functional
    x = p["token_embedding.weight"][inputs]
    rows, tokens, width = x.shape

    def heads(y):
        return y.view(rows, tokens, config.n_heads, -1).transpose(1, 2)

    for n in range(config.n_layers):
        at = f"blocks.{n}."
        h = norm(x, p[at + "attention_norm.gain"], config.rms_norm_eps)
        q, k, v = (
            heads(h @ p[f"{at}attention.{part}.weight"]) for part in ("query", "key", "value")
        )
        mixed = functional.scaled_dot_product_attention(
            rotate(q, config.rope_theta), rotate(k, config.rope_theta), v, is_causal=True
        )
        merged = mixed.transpose(1, 2).reshape(rows, tokens, width)
        x = x + merged @ p[at + "attention.output.weight"]
        h = norm(x, p[at + "ffn_norm.gain"], config.rms_norm_eps)
        gated = functional.silu(h @ p[at + "ffn.gate.weight"]) * (h @ p[at + "ffn.up.weight"])
        x = x + gated @ p[at + "ffn.down.weight"]
    logits = norm(x, p["final_norm.gain"], config.rms_norm_eps) @ p["token_embedding.weight"].T
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 3e-6)])
def test_loss_and_gradients_agree_with_pytorch(dtype, tolerance):
    config = ModelConfig(**CONFIG, dtype=dtype)
    model = Decoder.initialize(config, 17)
    rng = np.random.default_rng(1)
    for _, p in model.named_parameters():
        p.assign(p.data * rng.uniform(0.5, 1.5, p.shape).astype(dtype))
    inputs, targets = rng.integers(0, 13, (2, 4, 9))

    loss = model.loss(inputs, targets)
    loss.backward()
    theirs = {
        name: torch.tensor(p.data.copy(), requires_grad=True)
        for name, p in model.named_parameters()
    }
    expected = torch_loss(config, theirs, torch.tensor(inputs), torch.tensor(targets))
    expected.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=tolerance)
    for name, p in model.named_parameters():
        other = theirs[name].grad.numpy()
        assert np.abs(p.grad - other).max() <= tolerance * max(1.0, np.abs(other).max()), name
