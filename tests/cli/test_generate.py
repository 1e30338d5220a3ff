"""``llmcy generate``: streams, samples, JSON lines, pipes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmcy.config import ModelConfig
from llmcy.generate import GenerationConfig, TemperatureTopK, generate_uncached
from llmcy.model import Decoder
from llmcy.rng import SplitMix64
from llmcy.run import encode_model_file, load_model
from llmcy.state import DecoderModelState
from llmcy.tokenizer import BytePairTokenizer
from tests.cli.command import llmcy


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with drawn parameters: it writes any bytes, also such that are no characters."""
    tokenizer = BytePairTokenizer.from_pairs([(116, 104), (256, 101)])
    config = ModelConfig(260, 16, 2, 2, 16, 40, dtype="float32")
    state = DecoderModelState.snapshot(Decoder.initialize(config, 3))
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    path.write_bytes(encode_model_file(state, tokenizer, 7))
    return path


ASK = ("--prompt", "the \u00e9", "--max-new-tokens", 12)


def test_it_streams_what_the_json_says(model_file: Path) -> None:
    result = llmcy("generate", model_file, *ASK, "--seed", 3)
    record = json.loads(llmcy("generate", model_file, *ASK, "--seed", 3, "--json").stdout)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert result.stdout == record["prompt"] + record["text"] + "\n"
    only = llmcy("generate", model_file, *ASK, "--seed", 3, "--no-prompt")
    assert only.stdout == record["text"] + "\n"
    assert llmcy("sample", model_file, *ASK, "--seed", 3).stdout == result.stdout
    assert llmcy("generate", model_file, *ASK, "--seed", 4).stdout != result.stdout


def test_a_json_line_holds_everything(model_file: Path) -> None:
    result = llmcy("generate", model_file, *ASK, "--samples", 3, "--seed", 5, "--json")
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    loaded = load_model(model_file)
    prompt = [0, 260 - 1, 34, *(byte + 2 for byte in "\u00e9".encode())]
    for index, line in enumerate(lines):
        rng = SplitMix64(5 + index)
        config = GenerationConfig(TemperatureTopK(0.8, 40), 1, 12, log_probabilities=True)
        expected = generate_uncached(loaded.model, prompt, config, rng)
        assert line == {
            "sample": index,
            "model": loaded.fingerprint,
            "prompt": "the \u00e9",
            "prompt_ids": prompt,
            "text": line["text"],
            "token_ids": list(expected.generated),
            "log_probabilities": [step.log_probability for step in expected.steps],
            "stop": expected.stop.value,
            "seed": 5 + index,
            "rng_state": f"0x{rng.state:016x}",
        }
        data = loaded.tokenizer.decode([i for i in expected.generated if i > 1])
        assert line["text"] == data.decode("utf-8", "replace")
    assert len(lines) == 3


def test_samples_are_those_of_their_seeds(model_file: Path) -> None:
    several = llmcy("generate", model_file, *ASK, "--samples", 2, "--seed", 8).stdout
    alone = [llmcy("generate", model_file, *ASK, "--seed", seed).stdout for seed in (8, 9)]
    assert several == f"=== sample 0, seed 8\n{alone[0]}=== sample 1, seed 9\n{alone[1]}"


def test_the_prompt_can_come_through_a_pipe(model_file: Path) -> None:
    command = [sys.executable, "-m", "llmcy", "generate", str(model_file), "--prompt", "-",
               "--max-new-tokens", "12", "--seed", "3"]  # fmt: skip
    piped = subprocess.run(command, input="the \u00e9".encode(), capture_output=True, check=True)
    assert piped.stderr == b""
    assert piped.stdout.decode() == llmcy("generate", model_file, *ASK, "--seed", 3).stdout


def test_the_output_is_utf8_whatever_the_locale(model_file: Path) -> None:
    plain = llmcy("generate", model_file, *ASK, LC_ALL="C", PYTHONIOENCODING="ascii")
    assert plain.returncode == 0, plain.stderr
    assert plain.stdout.startswith("the \u00e9")


@pytest.mark.parametrize("limit", [0, 1])
def test_a_text_always_ends(model_file: Path, limit: int) -> None:
    result = llmcy("generate", model_file, "--prompt", "x", "--max-new-tokens", limit)
    assert result.stdout.endswith("\n")
    assert result.stdout.startswith("x")
    full = llmcy("generate", model_file, "--prompt", "x", "--max-new-tokens", 10**6, "--json")
    record = json.loads(full.stdout)
    assert record["stop"] in ("context_limit", "eos")


def test_filters_and_greedy(model_file: Path) -> None:
    greedy = llmcy("generate", model_file, *ASK, "--temperature", 0, "--json")
    nearly = llmcy("generate", model_file, *ASK, "--top-k", "all", "--top-p", 1e-9, "--json")
    least = llmcy("generate", model_file, *ASK, "--top-k", "all", "--min-p", 1, "--json")
    records = [json.loads(r.stdout) for r in (greedy, nearly, least)]
    assert records[0]["token_ids"] == records[1]["token_ids"] == records[2]["token_ids"]
    assert records[0]["rng_state"] == f"0x{0:016x}"
    repelled = llmcy(
        "generate", model_file, *ASK, "--temperature", 0, "--repetition-penalty", 1e9, "--json"
    )
    ids = json.loads(repelled.stdout)["token_ids"]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--top-p", 0), "top_p"),
        (("--min-p", 2), "min_p"),
        (("--repetition-penalty", -1), "repetition_penalty"),
        (("--samples", 0), "--samples"),
        (("--seed", -1), "seed"),
        (("--threads", 0), "n_threads"),
    ],
)
def test_a_bad_request_is_one_line(
    model_file: Path, arguments: tuple[object, ...], message: str
) -> None:
    result = llmcy("generate", model_file, *arguments)
    assert result.returncode == 1
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1
    assert message in result.stderr


def test_a_wrong_top_k_is_explained(model_file: Path) -> None:
    result = llmcy("generate", model_file, "--top-k", "some")
    assert result.returncode == 2
    assert "neither a whole number nor 'all'" in result.stderr


def test_a_reader_that_goes_away_is_no_crash(model_file: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "wb") as gone:
        result = subprocess.run(
            [sys.executable, "-m", "llmcy", "generate", str(model_file)],
            stdout=gone,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert result.returncode == 1
    assert b"Traceback" not in result.stderr
