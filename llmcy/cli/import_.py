"""``llmcy import``: make a model file of another program's model."""

from __future__ import annotations

from pathlib import Path

import click

from llmcy.interop import import_gguf, import_hf, import_llama2c
from llmcy.interop.files import write
from llmcy.interop.llama2c import PROGRAM_EPS, PROGRAM_THETA
from llmcy.run.model_file import encode_model_file

__all__ = ["import_"]


@click.command("import")
@click.argument("source", type=click.Path())
@click.argument("out", type=click.Path())
@click.option(
    "--dtype",
    default="float32",
    show_default=True,
    type=click.Choice(["float32", "float64"]),
    help="Arithmetic of the model.",
)
@click.option(
    "--rope-theta", default=PROGRAM_THETA, show_default=True, help="Of a .bin file, which has none."
)
@click.option(
    "--rms-norm-eps", default=PROGRAM_EPS, show_default=True, help="Of a .bin file, which has none."
)
def import_(source: str, out: str, dtype: str, rope_theta: float, rms_norm_eps: float) -> None:
    """Read SOURCE, a Hugging Face folder of a Llama model, a .gguf file that is not quantised or a
    .bin file of llama2.c, and write OUT, a model file (.safetensors) for every command that takes
    one."""
    if Path(source).is_dir():
        imported = import_hf(source, dtype=dtype)
    elif Path(source).suffix == ".gguf":
        imported = import_gguf(source, dtype=dtype)
    else:
        imported = import_llama2c(
            source, dtype=dtype, rope_theta=rope_theta, rms_norm_eps=rms_norm_eps
        )
    write(out, encode_model_file(imported.state, imported.tokenizer, 0))
    click.echo(f"model      {out}: {imported.state.scalar_count():,} parameters")
    click.echo(f"parameters {imported.state.fingerprint()}")
