"""What decodes one token at a time, greedily: llmcy, transformers, llama.cpp; and a plain read.

A burst takes the prompt in, decodes a few tokens that are not timed, then TOKENS that are.  Whoever
decodes chooses the largest logit and feeds it back, with the means of its own library.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from llmcy.bench.cases import step_case
from llmcy.config import ModelConfig
from llmcy.model import Decoder
from llmcy.state import DecoderModelState

PROMPT = 32
WARM = 8
TOKENS = 64
POSITIONS = 512
# Logits of llama.cpp are about a thousandth of the largest away from ours, which agree with those
# of transformers within 1e-5; the texts of this seed have no two best tokens that close together.
SEED = 2


def config_of(name: str, dtype: str) -> ModelConfig:
    """The benchmark's model of that name, with room for a burst."""
    return replace(step_case(name).config(dtype), max_seq_len=POSITIONS)


def prompt_of(vocab_size: int) -> list[int]:
    return [7 * i % vocab_size for i in range(PROMPT)]


def export(name: str, folder: Path) -> None:
    """The float32 model as a Hugging Face folder ``hf`` and, if that can be, ``model.gguf``."""
    from llmcy.interop import export_hf
    from llmcy.interop.imported import numbered_tokens

    state = DecoderModelState.snapshot(Decoder.initialize(config_of(name, "float32"), SEED))
    export_hf(state, numbered_tokens(state.config.vocab_size), folder / "hf")
    try:
        from benchmarks.llama_cpp import write_gguf

        write_gguf(state, folder / "model.gguf")
    except ImportError:
        pass


class Burst:
    """Seconds a token, and the tokens."""

    def __init__(self, start: Callable[[], int], step: Callable[[int], int]) -> None:
        """``start`` takes the prompt in; both give the largest logit's token."""
        self._start, self._step = start, step

    def __call__(self) -> tuple[float, list[int]]:
        step, token = self._step, self._start()
        chosen = [token]
        for _ in range(WARM):
            token = step(token)
            chosen.append(token)
        begun = time.perf_counter()
        for _ in range(TOKENS):
            token = step(token)
            chosen.append(token)
        return (time.perf_counter() - begun) / TOKENS, chosen


def llmcy_burst(name: str, dtype: str, threads: int, folder: Path) -> Burst:
    from llmcy import set_num_threads
    from llmcy.generate import KVCache

    set_num_threads(threads)
    model = Decoder.initialize(config_of(name, dtype), SEED)
    prompt = prompt_of(model.config.vocab_size)
    session = KVCache(model).bind(model)

    def start() -> int:
        session.reset()
        return int(session.prefill(prompt).logits.argmax())

    return Burst(start, lambda token: int(session.decode(token).logits.argmax()))


def read_burst(name: str, dtype: str, threads: int, folder: Path) -> Burst:
    """Every byte of one array of as many bytes as the weights is loaded, and nothing else."""
    from llmcy import _kernels, kernels

    config = config_of(name, dtype)
    size = sum(int(np.prod(shape)) for shape in config.parameter_shapes().values())
    values = kernels.empty((size,), dtype)
    values.fill(1e-3)
    kernel = _kernels.for_dtype(values.dtype).peak
    out = np.empty((threads, kernel.tile_width()), dtype)

    def step(token: int) -> int:
        kernel.read_all(values, out, threads)
        return token

    return Burst(lambda: 0, step)


def transformers_burst(name: str, dtype: str, threads: int, folder: Path) -> Burst:
    import warnings

    import torch
    from transformers import LlamaForCausalLM
    from transformers.utils import logging

    warnings.simplefilter("ignore", FutureWarning)  # a keyword has a new name, the old one works
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(threads)
    torch.set_grad_enabled(False)
    model = LlamaForCausalLM.from_pretrained(folder / "hf", dtype=torch.float32).eval()
    prompt = torch.tensor([prompt_of(model.config.vocab_size)])
    state: dict[str, Any] = {}

    def start() -> int:
        out = model(prompt, use_cache=True, logits_to_keep=1)
        state["past"] = out.past_key_values
        return int(out.logits[0, -1].argmax())

    def step(token: int) -> int:
        out = model(torch.tensor([[token]]), past_key_values=state["past"], use_cache=True)
        return int(out.logits[0, -1].argmax())

    return Burst(start, step)


def llama_cpp_burst(name: str, dtype: str, threads: int, folder: Path) -> Burst:
    from benchmarks.llama_cpp import LlamaCpp

    model = LlamaCpp(folder / "model.gguf", threads)
    prompt = prompt_of(model.vocab_size)

    def start() -> int:
        model.clear()
        return int(model.decode(prompt).argmax())

    return Burst(start, lambda token: int(model.decode([token]).argmax()))


BURSTS = {
    "read": read_burst,
    "llmcy": llmcy_burst,
    "transformers": transformers_burst,
    "llama.cpp": llama_cpp_burst,
}
