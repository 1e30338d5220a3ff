"""``llmcy train --init``: training on from a model of any kind, again to the same bits."""

import json
import shutil
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from llmcy import available_isas
from llmcy.interop import export_hf, export_llama2c
from llmcy.run import RunDirectory, load_model
from llmcy.run.model_file import encode_model_file
from llmcy.state import DecoderModelState
from llmcy.tokenizer import BytePairTokenizer, JsonTokenizer
from tests.cli.command import llmcy
from tests.interop.models import byte_pair, config, state

FIRST = (
    "--d-model", 16, "--n-layers", 1, "--n-heads", 2, "--context-length", 16, "--max-seq-len", 20,
    "--steps", 6, "--batch-size", 4, "--eval-every", 3, "--merges", 20, "--quiet",
)  # fmt: skip
NEXT = (
    "--context-length", 16, "--steps", 5, "--batch-size", 4, "--eval-every", 2,
    "--warmup-steps", 1, "--checkpoint-every", 2, "--keep-last", 1,
)  # fmt: skip


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("text")
    rng = np.random.default_rng(5)
    words = "the cat dog sees a tree and runs over green hills while rain falls".split()  # noqa: SIM905
    for n in range(40):
        (folder / f"{n:02}.txt").write_text(" ".join(rng.choice(words, 60)) + "\n")
    return folder


BOTH = pytest.mark.parametrize("first", ["float32", "float64"], indirect=True)


@pytest.fixture(scope="module")
def first(
    request: pytest.FixtureRequest, text: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A finished run."""
    run = tmp_path_factory.mktemp("first") / "run"
    dtype = getattr(request, "param", "float32")
    done("train", text, *FIRST, "--dtype", dtype, "--run", run)
    return run


def done(*arguments: object, **environment: str) -> str:
    result = llmcy(*arguments, **environment)
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def refused(*arguments: object, status: int = 1) -> str:
    result = llmcy(*arguments)
    assert result.returncode == status, result.stdout + result.stderr
    return result.stdout + result.stderr


def measurements(run: Path) -> dict[int, str]:
    lines = (run / "evaluations.jsonl").read_text().splitlines()
    return {line["step"]: line["validation_loss_hex"] for line in map(json.loads, lines)}


@BOTH
def test_training_goes_on_and_can_be_executed_again(
    text: Path, first: Path, tmp_path: Path
) -> None:
    run = tmp_path / "next"
    printed = done("train", text, *NEXT, "--init", first, "--run", run)
    before = load_model(first)
    assert f"initial    {first}, step {before.selected_step}, {before.fingerprint}" in printed
    # it stands where the other run stood: same data, same tokenizer, same parameters
    assert measurements(run)[0] == measurements(first)[before.selected_step]
    assert load_model(run).tokenizer == before.tokenizer
    assert load_model(run).model.config == before.model.config
    written = json.loads((run / "config.json").read_text())["initial"]
    assert written["parameters"] == before.fingerprint
    assert (written["selected_step"], written["source"]) == (before.selected_step, str(first))
    assert load_model(run / "initial.safetensors").fingerprint == before.fingerprint
    # the checkpoint of step 0 is gone, so the replay begins at the stored parameters
    assert not (run / "checkpoints" / "step-00000000.safetensors").exists()
    proved = done("verify", run, text, "--replay", "all")
    assert "replay of steps 0..5: 5 updates and 4 measurements executed again" in proved
    assert "tokens.bin, initial.safetensors: they agree" in proved
    assert "in config.json, the source of initial.safetensors: they are information" in proved
    assert "the run was given the tokenizer" in proved


def test_every_instruction_set_and_thread_count(text: Path, first: Path, tmp_path: Path) -> None:
    digests = set()
    for threads, isa in enumerate(available_isas(), start=1):
        run = tmp_path / isa
        options = (*NEXT, "--init", first, "--run", run)
        printed = done(
            "train", text, *options, LLMCY_ISA=isa, LLMCY_NUM_THREADS=str(threads)
        ).splitlines()
        digests.add((printed[-2], printed[-1]))
    ((history, parameters),) = digests
    assert history.startswith("history ")
    assert parameters.startswith("parameters fnv1a64:")
    # another path of the same model changes no record
    shutil.copytree(first, tmp_path / "moved")
    done("train", text, *NEXT, "--init", tmp_path / "moved", "--run", tmp_path / "b", "--quiet")
    assert done("diff", tmp_path / available_isas()[-1], tmp_path / "b")


def test_a_broken_off_run_begins_again_at_the_same_parameters(
    text: Path, first: Path, tmp_path: Path
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    for run in (whole, broken):
        done("train", text, *NEXT, "--init", first, "--run", run, "--quiet")
    for folder in ("checkpoints", "selected"):
        for path in (broken / folder).iterdir():
            path.unlink()
    (broken / "summary.json").unlink()
    done("resume", broken, "--quiet")
    assert done("diff", whole, broken)
    assert measurements(broken) == measurements(whole)


def test_another_file_in_its_place_is_refused_by_name(
    text: Path, first: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    done("train", text, *NEXT, "--init", first, "--run", run, "--quiet")
    path, config_path = run / "initial.safetensors", run / "config.json"
    good, config_text = path.read_bytes(), config_path.read_text()

    path.write_bytes(good[:-1] + bytes([good[-1] ^ 1]))
    for command in (("resume", run), ("eval", run), ("verify", run, "--replay", "all")):
        assert "initial.safetensors: sha256 was" in refused(*command)
    path.unlink()
    assert "initial.safetensors" in refused("resume", run)
    assert "initial.safetensors" in refused("verify", run, status=2)

    # another valid model, with its digest written down: the records began with another identity
    other = state(load_model(run).model.config)
    path.write_bytes(encode_model_file(other, load_model(run).tokenizer, 0))
    record = json.loads(config_text)
    record["initial"] |= {
        "sha256": sha256(path.read_bytes()).hexdigest(),
        "parameters": other.fingerprint(),
        "selected_step": 0,
    }
    config_path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    assert "initial.sha256 was" in refused("resume", run)
    assert "initial.sha256" in refused("verify", run)
    # without a word of it the run would begin at its seed
    del record["initial"]
    config_path.write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")
    assert "initial was" in refused("resume", run)
    for wrong in ({}, {"sha256": "0"}, "text", ["sha256"], 7, None):
        config_path.write_text(json.dumps(record | {"initial": wrong}, indent=2) + "\n")
        assert "initial" in refused("resume", run)

    path.write_bytes(good)
    config_path.write_text(config_text)
    done("verify", run, "--replay", "all")


def initial_fingerprint(text: Path, run: Path, *options: object) -> str:
    """Train from something and tell the digest of the parameters it began with."""
    done("train", text, "--steps", 2, "--batch-size", 2, "--eval-every", 2, "--run", run, "--quiet",
         *options)  # fmt: skip
    done("verify", run, "--replay", "all")
    return load_model(run / "initial.safetensors").fingerprint


@BOTH
def test_a_checkpoint_and_a_selected_file(text: Path, first: Path, tmp_path: Path) -> None:
    checkpoint = first / "checkpoints" / "step-00000006.safetensors"
    selected = RunDirectory.open(first).selected_path()  # version 1 for float64
    for n, path in enumerate((checkpoint, selected)):
        found = initial_fingerprint(text, tmp_path / str(n), "--init", path)
        assert found == load_model(path).fingerprint


@pytest.mark.parametrize("shape", [{}, {"n_kv_heads": 2, "tied_head": False}, {"head_size": 6}])
def test_a_hugging_face_folder(text: Path, tmp_path: Path, shape: dict[str, object]) -> None:
    model = state(config(**shape))
    export_hf(model, byte_pair(), tmp_path / "hf")
    run = tmp_path / "run"
    assert initial_fingerprint(text, run, "--init", tmp_path / "hf") == model.fingerprint()
    loaded = load_model(run)
    assert loaded.model.config == model.config
    assert loaded.tokenizer == byte_pair()
    # every command takes the folder itself, too
    by_folder, by_file = (
        done("generate", path, "--prompt", "The ", "--seed", 3, "--max-new-tokens", 8)
        for path in (tmp_path / "hf", run / "initial.safetensors")
    )
    assert by_folder == by_file


def test_a_llama2c_file_needs_a_tokenizer(text: Path, tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    model = state(config(rope_theta=10000.0))
    export_llama2c(model, tmp_path / "model.bin")
    export_hf(model, byte_pair(), tmp_path / "hf")  # for its tokenizer.json
    begin = ("--init", tmp_path / "model.bin")
    message = refused("train", text, *begin, "--run", tmp_path / "run")
    assert "has no tokenizer that encodes text; give one with --tokenizer" in message
    assert not (tmp_path / "run").exists()
    given = ("--tokenizer", tmp_path / "hf" / "tokenizer.json")
    found = initial_fingerprint(text, tmp_path / "run", *begin, *given)
    assert found == model.fingerprint()
    assert isinstance(load_model(tmp_path / "run").tokenizer, JsonTokenizer)


def test_a_foreign_tokenizer_comes_with_its_model(text: Path, tmp_path: Path) -> None:
    """A folder whose tokenizer only the library runs, with more ids in the model than in it."""
    library = pytest.importorskip("tokenizers")
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    alphabet = library.pre_tokenizers.ByteLevel.alphabet()
    trainer = library.trainers.BpeTrainer(
        vocab_size=290, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet,
        show_progress=False,
    )  # fmt: skip
    tokenizer.train([str(path) for path in text.iterdir()], trainer)
    model = state(config())
    export_hf(model, byte_pair(), tmp_path / "hf")
    tokenizer.save(str(tmp_path / "hf" / "tokenizer.json"))
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        (tmp_path / "hf" / name).unlink(missing_ok=True)
    run = tmp_path / "run"
    assert initial_fingerprint(text, run, "--init", tmp_path / "hf") == model.fingerprint()
    held = load_model(run).tokenizer
    assert isinstance(held, JsonTokenizer)
    assert held.vocab_size == model.config.vocab_size
    assert held.encode("the cat").tolist() == tokenizer.encode("the cat").ids
    done("verify", run, text)
    done("generate", run, "--prompt", "the cat", "--max-new-tokens", 3)


@BOTH
def test_another_arithmetic_and_more_positions(text: Path, first: Path, tmp_path: Path) -> None:
    before = load_model(first)
    for dtype in ("float32", "float64"):
        run = tmp_path / dtype
        initial_fingerprint(text, run, "--init", first, "--dtype", dtype, "--max-seq-len", 40)
        loaded = load_model(run / "initial.safetensors")
        assert loaded.model.config.max_seq_len == 40
        for (name, old), (_, new) in zip(
            before.model.named_parameters(), loaded.model.named_parameters(), strict=True
        ):
            assert new.data.dtype == dtype
            assert old.data.astype(dtype).tobytes() == new.data.tobytes(), name


def test_what_does_not_fit_is_refused_before_a_folder_is_made(
    text: Path, first: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"

    def message(*options: object) -> str:
        said = refused("train", text, "--run", run, *options)
        assert not run.exists()
        return said

    assert "has d_model 16, the run would have 32" in message("--init", first, "--d-model", 32)
    assert "has tied_head True" in message("--init", first, "--untied-head")
    assert "--merges: with --init" in message("--init", first, "--merges", 20)
    assert "no-such-file" in message("--init", tmp_path / "no-such-file")
    assert "20" in message("--init", first, "--context-length", 64)
    done("train", text, *NEXT, "--init", first, "--d-model", 16, "--run", run, "--quiet")


def test_from_python(text: Path, first: Path, tmp_path: Path) -> None:
    from llmcy.data import load_dataset
    from llmcy.errors import RunError
    from llmcy.run import TrainSettings, load_initial, run_training

    initial = load_initial(first)
    assert isinstance(initial.tokenizer, BytePairTokenizer)
    dataset = load_dataset([str(text)], max_merges=0, tokenizer=initial.tokenizer)
    settings = TrainSettings.for_model(
        initial.state.config, steps=2, batch_size=4, eval_every=2, context_length=16
    )
    summary = run_training(dataset, settings, tmp_path / "run", initial=initial)
    done("verify", tmp_path / "run", "--replay", "all")
    stored = load_model(tmp_path / "run" / "initial.safetensors").model
    assert DecoderModelState.snapshot(stored).equal_bits(initial.state)
    assert summary.n_parameters == initial.state.scalar_count()
    other = load_dataset([str(text)], max_merges=7)
    with pytest.raises(RunError) as caught:
        run_training(other, settings, tmp_path / "other", initial=initial)
    assert (caught.value.kind, caught.value.field) == ("InitialModelMismatch", "vocab_size")
    assert (caught.value.expected, caught.value.actual) == (278, 265)
    assert not (tmp_path / "other").exists()
