"""``llmcy sample``: continue a prompt with a trained model."""

from __future__ import annotations

import sys

import click
import numpy as np
from numpy.typing import NDArray

from llmcy.errors import ConfigError
from llmcy.generate import (
    GenerationConfig,
    Greedy,
    SamplingMode,
    TemperatureTopK,
    generate_uncached,
)
from llmcy.rng import SplitMix64
from llmcy.run import LoadedModel, load_model
from llmcy.tokenizer import BytePairTokenizer
from llmcy.tokenizer.byte_pair import BOS_ID, EOS_ID

__all__ = ["sample"]

DEFAULT_TOP_K = 40


@click.command()
@click.argument("checkpoint", type=click.Path())
@click.option("--prompt", default="", help="Text to continue.")
@click.option("--prompt-ids", default=None, help="Token ids to continue, instead of text: '0 1 2'.")
@click.option(
    "--temperature", default=0.8, show_default=True, help="0 takes the likeliest token every time."
)
@click.option("--top-k", default=None, type=int, help="Keep the k likeliest tokens.  [default: 40]")
@click.option("--seed", default=0, show_default=True, help="State of the sampling stream.")
@click.option("--max-new-tokens", default=200, show_default=True)
def sample(
    checkpoint: str,
    prompt: str,
    prompt_ids: str | None,
    temperature: float,
    top_k: int | None,
    seed: int,
    max_new_tokens: int,
) -> None:
    """Print the prompt and its continuation.

    CHECKPOINT is a run folder, a version-1 checkpoint or a model file.  Generation ends at the end
    token, at --max-new-tokens, or when the model's positions are full.
    """
    loaded = load_model(checkpoint)
    vocab_size = loaded.model.config.vocab_size
    mode: SamplingMode = Greedy()
    if temperature != 0.0:
        kept = min(DEFAULT_TOP_K, vocab_size) if top_k is None else top_k
        mode = TemperatureTopK(temperature, kept)
    is_text = isinstance(loaded.tokenizer, BytePairTokenizer)
    config = GenerationConfig(mode, EOS_ID if is_text else None, max_new_tokens)
    ids = _prompt(loaded, prompt, prompt_ids)
    result = generate_uncached(loaded.model, ids, config, SplitMix64(seed))
    shown = [
        i for i in (*ids.tolist(), *result.generated) if not (is_text and i in (BOS_ID, EOS_ID))
    ]
    # what the model wrote need not be whole characters
    text = loaded.tokenizer.decode(shown).decode("utf-8", errors="replace")
    sys.stdout.write(text + "\n")


def _prompt(loaded: LoadedModel, prompt: str, prompt_ids: str | None) -> NDArray[np.int64]:
    if prompt_ids is not None:
        try:
            return np.array([int(word) for word in prompt_ids.replace(",", " ").split()], np.int64)
        except ValueError:
            raise ConfigError(
                "InvalidSetting",
                f"--prompt-ids must be whole numbers, got {prompt_ids!r}",
                name="prompt-ids",
                value=prompt_ids,
            ) from None
    if not isinstance(loaded.tokenizer, BytePairTokenizer):
        raise ConfigError(
            "InvalidSetting",
            "this model's tokenizer is a list of pieces and has no encoder; give --prompt-ids",
            name="prompt",
            value=prompt,
        )
    return np.concatenate([np.array([BOS_ID], np.int64), loaded.tokenizer.encode(prompt)])
