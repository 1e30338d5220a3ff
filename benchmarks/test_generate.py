"""Decoding at batch 1: against a plain read of the same bytes, and against ``transformers``.

    pytest benchmarks/test_generate.py
    python -m benchmarks.test_generate

The second way takes turns and prints the ratio to reading.  A token must read every weight once,
so the rate at which memory can be read is the bound; the read is the search for non-finite values,
which does nothing else.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import pytest

from llmcy import kernels, num_threads, set_num_threads
from llmcy.bench.cases import LARGE, MEDIUM, SMALL, StepCase, step_case
from llmcy.config import ModelConfig
from llmcy.generate import KVCache
from llmcy.model import Decoder
from llmcy.tape import no_grad

CASES = (SMALL, MEDIUM, LARGE)
PROMPT = 32
POSITIONS = 4096  # room for as many tokens as a benchmark wants


def _config(case: StepCase, dtype: str) -> ModelConfig:
    return replace(case.config(dtype), max_seq_len=POSITIONS)


class Decoding:
    """A prompt in the cache; every call decodes one token more, and starts again when full."""

    def __init__(self, case: StepCase, dtype: str) -> None:
        self.model = Decoder.initialize(_config(case, dtype), 1)
        self.prompt = [(7 * i) % case.vocab_size for i in range(PROMPT)]
        self.session = KVCache(self.model, 1, 2 * PROMPT).bind(self.model)
        self.session.prefill(self.prompt)

    @property
    def n_bytes(self) -> int:
        """Bytes of all parameters."""
        return sum(parameter.data.nbytes for _, parameter in self.model.named_parameters())

    def __call__(self) -> np.ndarray:
        if len(self.session.cache) == 2 * PROMPT:
            self.session.reset()
            self.session.prefill(self.prompt)
        return self.session.decode(1).logits[0, 0]

    def read(self) -> None:
        """Look at every parameter once."""
        for _, parameter in self.model.named_parameters():
            kernels.first_non_finite(parameter.data)


def _transformers(case: StepCase) -> Callable[[], Any]:
    """The same sizes in ``transformers``, float32, with its own cache."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.set_num_threads(num_threads())
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=case.vocab_size,
            hidden_size=case.d_model,
            intermediate_size=case.d_ff,
            num_hidden_layers=case.n_layers,
            num_attention_heads=case.n_heads,
            max_position_embeddings=POSITIONS,
            tie_word_embeddings=True,
        )
    ).eval()
    prompt = torch.tensor([[(7 * i) % case.vocab_size for i in range(PROMPT)]])
    token = torch.tensor([[1]])
    state: dict[str, Any] = {}

    def decode() -> Any:
        with torch.no_grad():
            past = state.get("past")
            if past is None or past.get_seq_length() >= 2 * PROMPT:
                state["past"] = model(prompt, use_cache=True).past_key_values
            return model(token, past_key_values=state["past"], use_cache=True).logits

    return decode


@pytest.mark.parametrize("subject", ["llmcy", "read", "transformers"])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", [case.name for case in CASES])
def test_decode(benchmark: Any, name: str, dtype: str, threads: int, subject: str) -> None:
    if subject == "transformers" and dtype != "float32":
        pytest.skip("compared in float32")
    before = num_threads()
    set_num_threads(threads)
    try:
        case = step_case(name)
        decoding = Decoding(case, dtype)
        benchmark.group = f"decode {name} {dtype} {threads} threads"
        benchmark.extra_info.update(bytes=decoding.n_bytes, threads=threads, dtype=dtype)
        if subject == "transformers":
            benchmark(_transformers(case))
        elif subject == "read":
            benchmark(decoding.read)
        else:
            with no_grad():
                whole = decoding.model.forward(np.array([[*decoding.prompt, 1]])).data[0, -1]
            assert decoding().tobytes() == whole.tobytes()
            benchmark(decoding)
    finally:
        set_num_threads(before)


def main() -> None:
    """Decoding and reading in turns; processor time, which other programs do not stretch."""
    set_num_threads(1)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    print(f"{'model':8} {'dtype':8} {'read GB/s':>10} {'decode GB/s':>12} {'ratio':>6} {'ms':>8}")
    for case in CASES:
        for dtype in ("float32", "float64"):
            decoding = Decoding(case, dtype)
            taken: dict[str, list[float]] = {"read": [], "decode": []}
            for _ in range(rounds):
                for what, subject in (("read", decoding.read), ("decode", decoding)):
                    begun = time.thread_time()
                    subject()
                    taken[what].append(time.thread_time() - begun)
            read, decode = median(taken["read"]), median(taken["decode"])
            rate = decoding.n_bytes / 1e9
            print(
                f"{case.name:8} {dtype:8} {rate / read:10.1f} {rate / decode:12.1f} "
                f"{read / decode:6.2f} {decode * 1e3:8.3f}"
            )


if __name__ == "__main__":
    main()
