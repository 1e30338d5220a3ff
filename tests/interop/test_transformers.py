"""Exported and imported models beside ``transformers``: the same logits, the same text."""

import dataclasses
import json

import numpy as np
import pytest

from llmcy.interop import export_hf, import_hf
from tests.interop.models import SHAPES, byte_pair, config, state

pytestmark = pytest.mark.filterwarnings("ignore")
each_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))


@pytest.fixture(scope="module")
def torch():
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    torch.manual_seed(5)
    return torch


def theirs_of(folder, torch):
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert type(model).__name__ == "LlamaForCausalLM"
    return model.eval()


def logits_of(model, ids, torch):
    with torch.no_grad():
        return model(torch.tensor(ids)).logits.numpy()


def assert_close(ours, theirs):
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= 1e-5 * np.abs(ours).max()


@each_shape
def test_logits_at_256_positions_and_greedy_text(torch, shape, tmp_path):
    original = state(config(**({"max_seq_len": 300} | shape)))
    folder = export_hf(original, byte_pair(), tmp_path / "hf")
    ours, theirs = original.restore_independent_model(), theirs_of(folder, torch)
    ids = np.random.default_rng(3).integers(0, original.config.vocab_size, (2, 256))
    assert_close(ours.forward(ids).data, logits_of(theirs, ids, torch))

    prompt = [0, *byte_pair().encode("The lazy dog").tolist()]
    written = list(prompt)
    for _ in range(40):
        written.append(int(np.argmax(ours.forward([written]).data[0, -1])))
    theirs.generation_config.eos_token_id = None
    with torch.no_grad():
        generated = theirs.generate(torch.tensor([prompt]), do_sample=False, max_new_tokens=40)
    assert generated[0].tolist() == written


def test_their_tokenizer_opens_the_folder(torch, tmp_path):
    import transformers

    folder = export_hf(state(config()), byte_pair(), tmp_path / "hf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    text = "The quick 🙂 fox\r\n  naïve\0"
    assert tokenizer(text).input_ids == [0, *byte_pair().encode(text).tolist()]
    assert tokenizer(text, add_special_tokens=False).input_ids == byte_pair().encode(text).tolist()
    ids = [0, *byte_pair().encode(text).tolist(), 1]
    assert tokenizer.decode(ids, skip_special_tokens=True) == text
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (0, 1)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("head_dim", [None, 6])
def test_a_model_of_theirs_is_imported(torch, tied, head_dim, tmp_path):
    import transformers

    described = transformers.LlamaConfig(
        vocab_size=90,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=300,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        initializer_range=0.3,
        **({} if head_dim is None else {"head_dim": head_dim}),
    )
    theirs = transformers.LlamaForCausalLM(described).eval()
    theirs.save_pretrained(tmp_path / "theirs")
    imported = import_hf(tmp_path / "theirs")
    assert imported.state.config.tied_head is tied
    assert imported.state.config.head_dim == (head_dim or 4)
    assert imported.state.config.kv_heads == 2
    ids = np.random.default_rng(4).integers(0, 90, (1, 256))
    ours = imported.state.restore_independent_model()
    assert_close(ours.forward(ids).data, logits_of(theirs, ids, torch))
    # and back again: every one of their bits
    export_hf(imported.state, imported.tokenizer, tmp_path / "back")
    again = theirs_of(tmp_path / "back", torch).state_dict()
    for name, tensor in theirs.state_dict().items():
        assert tensor.numpy().tobytes() == again[name].numpy().tobytes(), name


def test_the_base_of_the_rotary_frequencies_reaches_both(torch, tmp_path):
    """Old versions read one key and new ones the other; a wrong base would be silent."""
    folder = export_hf(state(config(rope_theta=77.0)), byte_pair(), tmp_path / "hf")
    other = dataclasses.replace(config(), rope_theta=10000.0)
    ids = [list(range(60))]
    theirs = logits_of(theirs_of(folder, torch), ids, torch)
    arrays = state(config(rope_theta=77.0)).named_arrays()
    wrong = type(state(other)).from_named_arrays(other, arrays).restore_independent_model()
    assert np.abs(wrong.forward(ids).data - theirs).max() > 1e-3
    for keep in ("rope_theta", "rope_parameters"):
        described = json.loads((folder / "config.json").read_text())
        for key in {"rope_theta", "rope_parameters"} - {keep}:
            del described[key]
        (folder / keep).mkdir()
        (folder / keep / "config.json").write_text(json.dumps(described))
        (folder / keep / "model.safetensors").hardlink_to(folder / "model.safetensors")
        ours = import_hf(folder / keep).state.restore_independent_model()
        assert_close(ours.forward(ids).data, theirs)
        assert_close(ours.forward(ids).data, logits_of(theirs_of(folder / keep, torch), ids, torch))
