"""``llmcy export``: write a model for another program."""

from __future__ import annotations

import click

from llmcy.interop import export_gguf, export_hf, export_llama2c
from llmcy.interop.files import write
from llmcy.interop.llama2c import PROGRAM_EPS
from llmcy.run import load_model
from llmcy.run.model_file import encode_model_file
from llmcy.state import DecoderModelState

__all__ = ["export"]

FORMATS = ("hf", "gguf", "llama2c", "safetensors")


@click.command()
@click.argument("run", type=click.Path())
@click.argument("out", type=click.Path())
@click.option(
    "--format",
    "format_",
    required=True,
    type=click.Choice(FORMATS),
    help="hf: a Hugging Face folder; gguf: for llama.cpp; llama2c: a .bin file; "
    "safetensors: one file, read by llmcy, with all bits.",
)
def export(run: str, out: str, format_: str) -> None:
    """Write the model of RUN to OUT.

    RUN is a run folder, a version-1 checkpoint or a model file.  The first three formats hold
    float32: float64 parameters are rounded once, to nearest.
    """
    loaded = load_model(run)
    state = DecoderModelState.snapshot(loaded.model)
    if format_ == "hf":
        export_hf(state, loaded.tokenizer, out)
    elif format_ == "gguf":
        export_gguf(state, loaded.tokenizer, out)
    elif format_ == "llama2c":
        export_llama2c(state, out)
        if state.config.rms_norm_eps != PROGRAM_EPS:
            click.echo(
                f"note: llama2.c computes norms with epsilon {PROGRAM_EPS!r}, this model was "
                f"trained with {state.config.rms_norm_eps!r}",
                err=True,
            )
    else:
        write(out, encode_model_file(state, loaded.tokenizer, loaded.selected_step))
    click.echo(f"model      {out}")
    click.echo(f"parameters {loaded.fingerprint}")
