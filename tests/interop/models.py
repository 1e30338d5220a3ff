"""Small models and tokenizers to export."""

import dataclasses
import functools

from llmcy.config import ModelConfig
from llmcy.model import Decoder
from llmcy.state import DecoderModelState
from llmcy.tokenizer import BytePairTokenizer, learn_bpe

TEXT = (
    "The quick brown fox jumps over the lazy dog; then the dog sleeps, and the fox doesn't.\r\n"
    "Größe, naïve, Ωμέγα, 東京, 日本語, 🙂🙃🙂, e\u0301, 12345 12345\n\n\n"
    "\ttabs\tand  spaces  \x00\x00\n"
) * 4

SHAPES = {
    "tied": {},
    "untied": {"tied_head": False},
    "grouped": {"n_heads": 8, "n_kv_heads": 2},
    "grouped, untied": {"n_heads": 6, "n_kv_heads": 3, "tied_head": False},
    "wide heads": {"n_heads": 4, "n_kv_heads": 2, "head_size": 10},
    "narrow heads": {"n_heads": 3, "head_size": 2},
}


@functools.cache
def byte_pair() -> BytePairTokenizer:
    """Rules that reach over words and lines and into characters."""
    return BytePairTokenizer.from_learned(learn_bpe([TEXT.encode()], 120))


def config(dtype: str = "float32", **changes: object) -> ModelConfig:
    base = ModelConfig(
        vocab_size=byte_pair().vocab_size,
        d_model=48,
        n_heads=4,
        n_layers=2,
        d_ff=56,
        max_seq_len=64,
        rope_theta=500.0,
        rms_norm_eps=1e-5,
        dtype=dtype,
    )
    return dataclasses.replace(base, **changes)


def state(config: ModelConfig, seed: int = 3) -> DecoderModelState:
    """Drawn weights, and gains that differ from one another."""
    model = Decoder.initialize(config, seed)
    for name, parameter in model.named_parameters():
        if name.endswith(".gain"):
            parameter.assign(parameter.data * (1 + model.token_embedding.weight.data[1] / 4))
    return DecoderModelState.snapshot(model)
