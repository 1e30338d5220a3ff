"""``llmcy generate``: continue a prompt with a trained model."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from llmcy._threads import set_num_threads
from llmcy.errors import ConfigError
from llmcy.generate.text import (
    GeneratedText,
    TopK,
    generate_texts,
    prompt_ids,
    sample_seeds,
    sampling_mode,
)
from llmcy.run import LoadedModel, load_model

__all__ = ["generate", "sample"]


def _top_k(_: click.Context, parameter: click.Parameter, value: str | None) -> TopK:
    if value is None or value == "all":
        return "all" if value else None
    try:
        return int(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} is neither a whole number nor 'all'", param=parameter
        ) from None


@click.command()
@click.argument("model", type=click.Path())
@click.option("--prompt", default="", help="Text to continue; - reads it from standard input.")
@click.option(
    "--prompt-ids", "id_text", default=None, help="Token ids to continue, instead of text: '0 1 2'."
)
@click.option(
    "--temperature", default=0.8, show_default=True, help="0 takes the likeliest token every time."
)
@click.option(
    "--top-k",
    default=None,
    metavar="K",
    callback=_top_k,
    help="Keep the k likeliest tokens, or all.  [default: 40]",
)
@click.option(
    "--top-p", default=1.0, show_default=True, help="Keep the likeliest tokens up to this sum."
)
@click.option(
    "--min-p", default=0.0, show_default=True, help="Keep tokens this likely next to the likeliest."
)
@click.option(
    "--repetition-penalty", default=1.0, show_default=True, help="Above 1: new tokens preferred."
)
@click.option("--seed", default=0, show_default=True, help="State of the sampling stream.")
@click.option("--max-new-tokens", default=200, show_default=True)
@click.option(
    "--samples", default=1, show_default=True, help="Texts to write; number i uses --seed + i."
)
@click.option("--no-prompt", is_flag=True, help="Print the continuation only.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="One JSON line a text: tokens, log-probabilities, random state.",
)
@click.option("--threads", default=None, type=int, help="No result depends on it.")
def generate(
    model: str,
    prompt: str,
    id_text: str | None,
    temperature: float,
    top_k: TopK,
    top_p: float,
    min_p: float,
    repetition_penalty: float,
    seed: int,
    max_new_tokens: int,
    samples: int,
    no_prompt: bool,
    as_json: bool,
    threads: int | None,
) -> None:
    """Print the prompt and its continuation, as it is written.

    MODEL is a run folder, a checkpoint, a model file, a Hugging Face folder, or a file that ends in
    .gguf or .bin.  A text ends at the end token, at --max-new-tokens, or when the model's positions
    are full.
    """
    if threads is not None:
        set_num_threads(threads)
    if samples < 1:
        raise ConfigError(
            "InvalidSetting",
            f"--samples must be at least 1, got {samples}",
            name="samples",
            value=samples,
        )
    seeds = sample_seeds(seed, samples)
    loaded = load_model(model)
    ids, text = _prompt(loaded, prompt, id_text)
    vocab_size = loaded.model.config.vocab_size
    mode = sampling_mode(vocab_size, temperature, top_k, top_p, min_p, repetition_penalty)
    arguments: Any = (loaded.model, loaded.tokenizer, [ids] * samples, mode, max_new_tokens, seeds)
    shown = "" if no_prompt else text
    if as_json:
        for index, result in enumerate(generate_texts(*arguments)):
            _write(json.dumps(_record(index, text, result, loaded), ensure_ascii=False) + "\n")
    elif samples == 1:
        _stream(shown, arguments)
    else:
        for index, result in enumerate(generate_texts(*arguments)):
            _write(f"=== sample {index}, seed {result.seed}\n{shown}{result.text}\n")


sample = generate  # the name it had at first


def _stream(shown: str, arguments: Any) -> None:
    """Print one text piece by piece; the line is ended whatever happens."""
    begun = False

    def show(_: int, text: str) -> None:
        nonlocal begun
        _write(text if begun else shown + text)
        begun = True

    try:
        generate_texts(*arguments, on_text=show)
        if not begun:
            _write(shown)
            begun = True
    finally:
        if begun:
            _write("\n")


def _write(text: str) -> None:
    # bytes: the text is UTF-8 whatever the locale says
    sys.stdout.buffer.write(text.encode("utf-8", "replace"))
    sys.stdout.buffer.flush()


def _record(index: int, prompt: str, result: GeneratedText, loaded: LoadedModel) -> dict[str, Any]:
    return {
        "sample": index,
        "model": loaded.fingerprint,
        "prompt": prompt,
        "prompt_ids": list(result.prompt_ids),
        "text": result.text,
        "token_ids": list(result.token_ids),
        "log_probabilities": list(result.log_probabilities),
        "stop": result.stop.value,
        "seed": result.seed,
        "rng_state": f"0x{result.rng_state:016x}",
    }


def _prompt(loaded: LoadedModel, prompt: str, ids: str | None) -> tuple[list[int], str]:
    """Token ids of the prompt, and the text they stand for."""
    if ids is None:
        given: str | bytes = sys.stdin.buffer.read() if prompt == "-" else prompt
        found = prompt_ids(loaded.tokenizer, given)
        return found, given.decode("utf-8", "replace") if isinstance(given, bytes) else given
    try:
        found = [int(word) for word in ids.replace(",", " ").split()]
    except ValueError:
        raise ConfigError(
            "InvalidSetting",
            f"--prompt-ids must be whole numbers, got {ids!r}",
            name="prompt-ids",
            value=ids,
        ) from None
    data = b"".join(loaded.tokenizer.token_bytes(token_id) or b"" for token_id in found)
    return found, data.decode("utf-8", "replace")
