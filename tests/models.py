"""Small decoders for tests, and comparing what they hold by bits."""

import random

import numpy as np

from llmcy.config import ModelConfig
from llmcy.model import Decoder

SMALL = ModelConfig(5, 4, 2, 1, 4, 2)


def bits(array) -> list[str]:
    words = np.ascontiguousarray(array).reshape(-1).view(np.uint64)
    return [f"{int(word):016x}" for word in words]


def values(model: Decoder) -> dict[str, np.ndarray]:
    return {name: p.data for name, p in model.named_parameters()}


def gradients(model: Decoder) -> dict[str, np.ndarray]:
    return {name: p.grad for name, p in model.named_parameters()}


def assert_same(actual: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert list(actual) == list(expected) or set(actual) == set(expected)
    wrong = [name for name in actual if actual[name].tobytes() != expected[name].tobytes()]
    assert not wrong


def random_case(seed: int, dtype: str) -> tuple[Decoder, np.ndarray, np.ndarray]:
    draw = random.Random(seed)
    n_heads, head_dim = draw.choice([1, 2, 3]), draw.choice([2, 4, 6])
    config = ModelConfig(
        vocab_size=draw.randint(1, 9),
        d_model=n_heads * head_dim,
        n_heads=n_heads,
        n_layers=draw.randint(0, 2),
        d_ff=draw.randint(1, 9),
        max_seq_len=draw.randint(1, 5),
        rope_theta=draw.choice([10000.0, 3.0, 500.0]),
        rms_norm_eps=draw.choice([1e-6, 1e-5, 0.0]),
        dtype=dtype,
        n_kv_heads=draw.choice([k for k in (None, 1, 2, 3) if k is None or n_heads % k == 0]),
        head_size=draw.choice([None, None, 2, 8]),
        tied_head=draw.choice([True, False]),
    )
    model = Decoder.initialize(config, seed)
    for _, p in model.named_parameters():  # gains that differ from one, larger weights
        factors = np.array([draw.uniform(-2.0, 2.0) for _ in range(p.size)], p.dtype)
        p.assign(p.data * factors.reshape(p.shape))
    shape = (draw.randint(1, 4), draw.randint(1, config.max_seq_len))
    inputs, targets = (
        np.array([draw.randrange(config.vocab_size) for _ in range(shape[0] * shape[1])])
        for _ in range(2)
    )
    return model, inputs.reshape(shape), targets.reshape(shape)
