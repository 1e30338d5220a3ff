"""``llmcy train``: train a model on text and leave a run folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from llmcy.cli.jobs import (
    SCHEDULE,
    conclude,
    eval_at_option,
    given_options,
    job_options,
    read_rates,
    under_way,
    use_threads,
)
from llmcy.cli.progress import TrainingProgress
from llmcy.data import Partition, SplitRule, TextDataset, load_dataset
from llmcy.data.sources import CUT_CHOICES
from llmcy.errors import ConfigError
from llmcy.run import InitialModel, JobOptions, TrainSettings, load_initial, run_training
from llmcy.tokenizer import JsonTokenizer, LiteralTokenizer, TextTokenizer

__all__ = ["train"]

DEFAULT_MERGES = 254  # with 256 bytes and two control tokens: a vocabulary of 512


def setting(name: str, help: str, kind: Any = None) -> Callable[[Any], Any]:
    """An option that fills the field of the same name of `TrainSettings`, with its default."""
    field = name.replace("-", "_")
    default = getattr(TrainSettings, field)
    return click.option(
        f"--{name}", field, default=default, type=kind, show_default=True, help=help
    )


@click.command()
@click.argument("sources", nargs=-1)
@click.option(
    "--run",
    "run_path",
    default=None,
    type=click.Path(),
    help="Folder to write; a new one under runs/ if not given.",
)
@click.option("--text-field", default="text", show_default=True, help="Field of JSON lines.")
@click.option(
    "--cut",
    default="auto",
    show_default=True,
    type=click.Choice(CUT_CHOICES),
    help="Cut texts into documents at paragraphs; auto: only a single text file.",
)
@click.option("--min-document-bytes", default=None, type=int, help="Least size of a cut document.")
@click.option("--split-salt", default="", help="Another text gives another split.")
@click.option(
    "--duplicates",
    default="drop",
    show_default=True,
    type=click.Choice(["drop", "keep"]),
    help="What happens to documents with equal bytes.",
)
@click.option("--split-manifest", default=None, help="Split manifest of a JSON corpus.")
@click.option("--validation-fraction", default=0.1, show_default=True)
@click.option("--test-fraction", default=0.1, show_default=True)
@click.option(
    "--merges", default=DEFAULT_MERGES, show_default=True, help="Byte-pair rules to learn."
)
@click.option(
    "--tokenizer",
    "tokenizer_file",
    default=None,
    type=click.Path(),
    help="A tokenizer.json to use instead of learning one; needs the extra hf.",
)
@click.option(
    "--init",
    "initial_path",
    default=None,
    type=click.Path(),
    help="A model to train on from: run, checkpoint, model file, Hugging Face folder, .gguf, .bin. "
    "Its sizes and its tokenizer are used.",
)
@setting("dtype", "Arithmetic of the model.", click.Choice(["float32", "float64"]))
@setting("d-model", "Width of the model.")
@setting("n-layers", "Blocks.")
@setting("n-heads", "Attention heads.")
@setting("n-kv-heads", "Heads of keys and values, shared by query heads; 0: --n-heads.")
@setting("head-size", "Width of one head; 0: --d-model / --n-heads.")
@click.option(
    "--tied-head/--untied-head",
    default=True,
    show_default=True,
    help="Whether the embedding is the output head as well.",
)
@setting("d-ff", "Feed-forward width; 0: 8/3 of --d-model.")
@setting("context-length", "Tokens of a training window.")
@setting("max-seq-len", "Positions the model can hold; 0: --context-length.")
@setting("rope-theta", "Base of the rotary frequencies.")
@setting("rms-norm-eps", "Epsilon of the norms.")
@setting("steps", "Updates.")
@setting("epochs", "Passes over the training windows, instead of --steps.")
@setting("batch-size", "Windows an update.")
@setting("stride", "Tokens between window starts; 0: --context-length.")
@setting("learning-rate", "Peak rate.")
@setting("min-learning-rate", "Last rate of cosine, linear and wsd.")
@setting("warmup-steps", "Updates of linear warm-up.")
@setting("decay-steps", "Updates of the last decay of wsd; 0: a fifth of all.")
@setting("schedule", "How the rate falls; wsd: warm-up, stable, decay.", SCHEDULE)
@click.option(
    "--learning-rates",
    "rates_file",
    default=None,
    type=click.Path(),
    help="File with one rate a line: all rates of the run, instead of a schedule and --steps.",
)
@click.option("--beta1", default=TrainSettings.betas[0], show_default=True)
@click.option("--beta2", default=TrainSettings.betas[1], show_default=True)
@setting("eps", "Epsilon of AdamW.")
@setting("weight-decay", "Decoupled weight decay; gains never decay.")
@setting("max-grad-norm", "Ceiling of the global gradient norm.")
@setting("eval-every", "Updates between measurements.")
@eval_at_option("Steps to measure at instead, ascending: 3,7,20. Step 0 and the last always are.")
@setting("eval-batch-size", "Windows a measured batch.")
@setting("seed", "Of the initial values.")
@setting("shuffle-seed", "Of the order of windows.")
@job_options
@click.option("--threads", default=None, type=int, help="No result depends on it.")
@click.option("--quiet", is_flag=True, help="Print the last lines only.")
def train(
    sources: tuple[str, ...],
    run_path: str | None,
    text_field: str,
    cut: str,
    min_document_bytes: int | None,
    split_salt: str,
    duplicates: str,
    split_manifest: str | None,
    validation_fraction: float,
    test_fraction: float,
    merges: int,
    tokenizer_file: str | None,
    initial_path: str | None,
    rates_file: str | None,
    beta1: float,
    beta2: float,
    threads: int | None,
    quiet: bool,
    **fields: Any,
) -> None:
    """Train a model on SOURCES: text files, patterns, folders, JSON lines, or a JSON corpus with
    --split-manifest. Without SOURCES it uses the documentation text that Python carries.

    Writes a run folder, and ends with the selected step and a digest of its parameters.
    """
    use_threads(threads)
    options = JobOptions(**given_options(fields))
    if rates_file is not None:
        fields |= {"schedule": "list", "learning_rates": read_rates(rates_file)}
    fields |= {"betas": (beta1, beta2)}
    initial = None if initial_path is None else _initial(initial_path, fields)
    settings = TrainSettings(**fields) if initial is None else _settings_for(initial, fields)
    settings.trainer_config()  # a wrong setting is said before any text is read
    rule = SplitRule(validation_fraction, test_fraction, split_salt, duplicates)
    dataset = load_dataset(
        sources,
        max_merges=merges,
        split_manifest=split_manifest,
        rule=rule,
        text_field=text_field,
        cut=cut,
        min_document_bytes=min_document_bytes,
        tokenizer=_tokenizer(tokenizer_file, initial),
    )
    with under_way(quiet) as (progress, watcher, stop):
        _describe(dataset, progress)
        if initial is not None:
            progress.say(
                f"initial    {initial.source}, step {initial.selected_step}, "
                f"{initial.state.fingerprint()}"
            )
        summary = run_training(
            dataset,
            settings,
            run_path or _next_run_folder(),
            options,
            initial=initial,
            watcher=watcher,
            stop=stop,
        )
    conclude(summary)


# what a model is made of, so that training on from it cannot ask for anything else
SHAPE = (
    "d_model", "n_layers", "n_heads", "n_kv_heads", "head_size", "tied_head", "d_ff", "max_seq_len",
    "rope_theta", "rms_norm_eps", "dtype",
)  # fmt: skip


def _given(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name)
    return source is ParameterSource.COMMANDLINE


def _initial(path: str, fields: dict[str, Any]) -> InitialModel:
    if _given("merges"):
        raise ConfigError(
            "InvalidSetting",
            "--merges: with --init the tokenizer is that of the model, none is learned",
            name="merges",
            value=path,
        )
    return load_initial(
        path,
        dtype=fields["dtype"] if _given("dtype") else None,
        max_seq_len=fields["max_seq_len"] if _given("max_seq_len") else 0,
    )


def _settings_for(initial: InitialModel, fields: dict[str, Any]) -> TrainSettings:
    """The model's sizes; one that is given as well must be the same."""
    config = initial.state.config
    others = {name: value for name, value in fields.items() if name not in SHAPE or _given(name)}
    others["max_seq_len"] = config.max_seq_len
    if not _given("context_length"):
        others["context_length"] = min(fields["context_length"], config.max_seq_len)
    settings = TrainSettings.for_model(config, **others)
    initial.check(settings.model_config(config.vocab_size))
    return settings


def _tokenizer(file: str | None, initial: InitialModel | None) -> TextTokenizer | None:
    """The one that is given, else the model's; None: one is learned."""
    vocab_size = None if initial is None else initial.state.config.vocab_size
    if file is not None:
        return JsonTokenizer.from_file(file, vocab_size=vocab_size)
    if initial is None:
        return None
    if isinstance(initial.tokenizer, LiteralTokenizer):
        raise ConfigError(
            "InvalidSetting",
            f"--init {initial.source!r}: the model has no tokenizer that encodes text; give one "
            "with --tokenizer",
            name="init",
            value=initial.source,
        )
    return initial.tokenizer


def _describe(dataset: TextDataset, progress: TrainingProgress) -> None:
    for partition in Partition:
        documents = len(dataset.documents.of(partition))
        progress.say(
            f"{partition.label:<10} {documents} documents, "
            f"{dataset.byte_count(partition):,} bytes, {dataset.token_count(partition):,} tokens"
        )


def _next_run_folder() -> Path:
    number = 1
    while Path("runs", f"run-{number:03}").exists():
        number += 1
    return Path("runs", f"run-{number:03}")
