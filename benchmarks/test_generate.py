"""Decoding at batch 1, and a plain read of as many bytes as it reads.

    pytest benchmarks/test_generate.py

Bursts of 64 tokens behind a prompt of 32 (``decoding.py``).  For figures beside transformers and
llama.cpp, by turns, use ``python -m benchmarks.decode``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.decoding import BURSTS, SEED, config_of, prompt_of
from llmcy import num_threads, set_num_threads
from llmcy.bench.cases import LARGE, MEDIUM, SMALL
from llmcy.model import Decoder
from llmcy.tape import no_grad


def uncached(name: str, dtype: str, tokens: list[int]) -> list[int]:
    """The largest logits' tokens of one full pass over the prompt and these tokens."""
    model = Decoder.initialize(config_of(name, dtype), SEED)
    prompt = prompt_of(model.config.vocab_size)
    with no_grad():
        logits = model.forward(np.array([prompt + tokens[:-1]])).data[0]
    return [int(row.argmax()) for row in logits[len(prompt) - 1 :]]


@pytest.mark.parametrize("subject", ["llmcy", "read"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [case.name for case in (SMALL, MEDIUM, LARGE)])
def test_decode(
    benchmark: Any, tmp_path: Path, name: str, dtype: str, threads: int, subject: str
) -> None:
    before = num_threads()
    try:
        burst = BURSTS[subject](name, dtype, threads, tmp_path)
        benchmark.group = f"decode {name} {dtype} {threads} threads"
        seconds, tokens = benchmark(burst)
        benchmark.extra_info.update(threads=threads, dtype=dtype, seconds_a_token=seconds)
        if subject == "llmcy":
            assert tokens == uncached(name, dtype, tokens)
    finally:
        set_num_threads(before)
