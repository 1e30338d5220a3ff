"""Recorded steps against the ordinary tape: bits, and everything that must bring the tape back."""

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcy import _kernels, available_isas, kernels, ops
from llmcy import recorded as recorded_module
from llmcy._kernels import memory
from llmcy._threads import num_threads, set_num_threads
from llmcy.config import ModelConfig
from llmcy.errors import AutodiffError, ModelError
from llmcy.kernels import recording as recording_module
from llmcy.model import Decoder
from llmcy.optim import AdamW, AdamWConfig, clip_grad_norm
from llmcy.recorded import RecordedStep
from llmcy.tape import Tensor, no_grad

CONFIG = ModelConfig(vocab_size=9, d_model=12, n_heads=2, n_layers=2, d_ff=10, max_seq_len=7)


OTHERS = [
    {"n_kv_heads": 1},
    {"head_size": 8},
    {"tied_head": False},
    {"n_kv_heads": 1, "head_size": 10, "tied_head": False, "d_model": 20, "vocab_size": 700},
]


def model(dtype: str = "float64", **changes: object) -> Decoder:
    return Decoder.initialize(
        ModelConfig.from_dict(CONFIG.to_dict() | {"dtype": dtype} | changes), seed=5
    )


def batch(rng: np.random.Generator, rows: int = 3, tokens: int = 5) -> tuple[np.ndarray, ...]:
    return tuple(rng.integers(0, CONFIG.vocab_size, (2, rows, tokens)))


def gradients(of: Decoder) -> list[bytes]:
    return [parameter.grad.tobytes() for _, parameter in of.named_parameters()]


def ordinary(of: Decoder, inputs: np.ndarray, targets: np.ndarray) -> float:
    loss = of.loss(inputs, targets)
    loss.backward()
    return loss.item()


@pytest.fixture
def tape_calls(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Has one entry for every pass through the ordinary tape from now on."""
    calls: list[int] = []
    original = Tensor.backward

    def counted(self: Tensor, *arguments: object, **named: object) -> None:
        calls.append(1)
        original(self, *arguments, **named)

    monkeypatch.setattr(Tensor, "backward", counted)
    return calls


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("isa", available_isas())
def test_many_updates_have_the_bits_of_the_tape(isa: str, dtype: str, tape_calls) -> None:
    with _kernels.use_isa(isa):
        a, b = model(dtype), model(dtype)
        optimizers = AdamW(AdamWConfig(0.01)), AdamW(AdamWConfig(0.01))
        step = RecordedStep(b)
        rng = np.random.default_rng(0)
        for update in range(12):
            inputs, targets = batch(rng, rows=3 if update % 3 else 2)
            assert ordinary(a, inputs, targets) == step.run(inputs, targets)
            assert gradients(a) == gradients(b)
            for m, optimizer in zip((a, b), optimizers, strict=True):
                named = m.named_parameters()
                optimizer.step(named, transform=clip_grad_norm(named, 0.5).transform)
                m.zero_grad()
        assert len(tape_calls) == 12 + 2  # one for each shape of b


@pytest.mark.parametrize("rows", [None, 4])
@pytest.mark.parametrize("changes", [{}, {"vocab_size": 700, "tied_head": False}], ids=str)
def test_what_a_repeated_step_knows_of_the_norm(changes, rows: int | None) -> None:
    a, b = model("float32", **changes), model("float32", **changes)
    optimizers = AdamW(AdamWConfig(0.01)), AdamW(AdamWConfig(0.01))
    step = RecordedStep(b)
    rng = np.random.default_rng(0)
    assert step.sums is None
    for turn in range(4):
        pair = batch(rng, rows=9, tokens=7)
        ordinary(a, *pair)
        step.run(*pair, rows=rows)
        assert (step.sums is None) == (turn == 0)  # the first one went through the tape
        found = [
            optimizer.step_clipped(m.named_parameters(), 0.1, sums=sums)
            for m, optimizer, sums in zip((a, b), optimizers, (None, step.sums), strict=True)
        ]
        assert found[0] == found[1]
        for m in (a, b):
            m.zero_grad()
    _, first = b.named_parameters()[0]
    first.grad = np.ones_like(first.data)
    step.run(*pair, rows=rows)  # adds to what is there
    assert step.sums is None


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_products_may_ask_for_what_the_next_one_reads(dtype: str, monkeypatch) -> None:
    monkeypatch.setattr(recording_module, "FAR", 0)
    for isa in available_isas():
        with _kernels.use_isa(isa):
            a, b = model(dtype, vocab_size=300), model(dtype, vocab_size=300)
            step = RecordedStep(b)
            rng = np.random.default_rng(0)
            for _ in range(3):
                pair = batch(rng, rows=17, tokens=7)
                assert ordinary(a, *pair) == step.run(*pair)
                assert gradients(a) == gradients(b)
                for m in (a, b):
                    m.zero_grad()


def test_nothing_is_known_of_the_norm_in_float64() -> None:
    m = model("float64")
    step = RecordedStep(m)
    for _ in range(3):
        step.run(*batch(np.random.default_rng(0)))
        assert step.sums is None
        m.zero_grad()


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("changes", OTHERS, ids=str)
def test_every_kind_of_decoder_can_be_recorded(changes, dtype: str, tape_calls) -> None:
    a, b = model(dtype, **changes), model(dtype, **changes)
    optimizers = AdamW(AdamWConfig(0.01)), AdamW(AdamWConfig(0.01))
    step = RecordedStep(b)
    rng = np.random.default_rng(0)
    for _ in range(5):
        pair = batch(rng, rows=17, tokens=7)
        assert ordinary(a, *pair) == step.run(*pair)
        assert gradients(a) == gradients(b)
        for m, optimizer in zip((a, b), optimizers, strict=True):
            optimizer.step(m.named_parameters())
            m.zero_grad()
    assert len(tape_calls) == 5 + 1


@settings(max_examples=10)
@given(
    seed=st.integers(0, 2**32 - 1),
    n_threads=st.sampled_from([1, 2, 3]),
    isa=st.sampled_from(available_isas()),
    dtype=st.sampled_from(["float64", "float32"]),
    pieces=st.sampled_from([None, 4]),
)
def test_large_arrays_that_take_each_others_places(
    tape_calls, seed, n_threads, isa, dtype, pieces
) -> None:
    before = num_threads()
    tape_calls.clear()
    rng = np.random.default_rng(seed)
    try:
        with _kernels.use_isa(isa), _kernels.smallest_chunks():
            set_num_threads(n_threads)
            a, b = model(dtype, d_ff=150), model(dtype, d_ff=150)
            assert memory.SMALLEST < 4 * 7 * 150 * 4  # a piece's gate in float32
            optimizers = AdamW(AdamWConfig(0.01)), AdamW(AdamWConfig(0.01))
            step = RecordedStep(b)
            for update in range(4):
                pair = batch(rng, rows=8, tokens=7)
                assert ordinary(a, *pair) == step.run(*pair, rows=pieces)
                assert gradients(a) == gradients(b), update
                for m, optimizer in zip((a, b), optimizers, strict=True):
                    optimizer.step(m.named_parameters())
                    m.zero_grad()
            assert len(tape_calls) == 4 + (1 if pieces is None else 2)
    finally:
        set_num_threads(before)


def test_gradients_are_added_to_those_that_were_not_cleared(tape_calls) -> None:
    a, b = model(), model()
    step = RecordedStep(b)
    rng = np.random.default_rng(1)
    for _ in range(3):
        pair = batch(rng)
        assert ordinary(a, *pair) == step.run(*pair)
        assert gradients(a) == gradients(b)
    assert len(tape_calls) == 6


def recorded(of: Decoder) -> RecordedStep:
    step = RecordedStep(of)
    step.run(*batch(np.random.default_rng(2)))
    of.zero_grad()
    return step


def test_a_token_out_of_range_is_an_error_and_changes_nothing() -> None:
    m = model()
    step = recorded(m)
    inputs, targets = batch(np.random.default_rng(3))
    for wrong in (inputs, targets):
        keep = wrong[1, 2]
        for token in (CONFIG.vocab_size, -1, 2**62):
            wrong[1, 2] = token
            with pytest.raises(ModelError) as caught:
                step.run(inputs, targets)
            assert (caught.value.kind, caught.value.index) == ("TokenOutOfBounds", 7)
        wrong[1, 2] = keep
    assert all(parameter.grad_is_zero for _, parameter in m.named_parameters())
    assert step.run(inputs, targets) == ordinary(model(), inputs, targets)


@pytest.mark.parametrize("name", ["token_embedding.weight", "final_norm.gain"])
def test_a_value_that_is_not_finite_is_reported_by_the_tape(name: str) -> None:
    m, other = model(), model()
    step = recorded(m)
    pair = batch(np.random.default_rng(4))
    errors = []
    for of, run in ((m, step.run), (other, lambda *pair: ordinary(other, *pair))):
        parameter = dict(of.named_parameters())[name]
        parameter.assign(np.full(parameter.shape, 1.7e308))
        with pytest.raises(AutodiffError) as caught:
            run(*pair)
        errors.append((caught.value.kind, str(caught.value)))
    assert errors[0] == errors[1]
    assert all(parameter.grad_is_zero for _, parameter in m.named_parameters())


def test_a_replaced_layer_or_parameter_is_noticed(tape_calls) -> None:
    m = model()
    step = recorded(m)
    pair = batch(np.random.default_rng(5))
    other = Decoder.initialize(CONFIG, seed=6)
    m.blocks[1].ffn.up = other.blocks[0].ffn.up
    m.final_norm.gain = other.final_norm.gain
    m.blocks[0].ffn_norm.eps = 0.5
    for _ in range(2):
        loss = step.run(*pair)
        found = gradients(m)
        m.zero_grad()
        assert loss == ordinary(m, *pair)
        assert found == gradients(m)
        m.zero_grad()
    assert len(tape_calls) == 1 + 1 + 2


def test_another_loss_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    m = model()
    step = recorded(m)
    pair = batch(np.random.default_rng(6))
    expected = ordinary(model(), *pair)
    original = Decoder.loss
    monkeypatch.setattr(Decoder, "loss", lambda *batch: ops.scale(original(*batch), 2.0))
    assert step.run(*pair) == expected * 2.0


def test_other_threads_and_instruction_sets_are_recorded_anew(tape_calls) -> None:
    m = model()
    step = recorded(m)
    pair = batch(np.random.default_rng(7))
    before = num_threads()
    losses = set()
    try:
        for n_threads in (before + 1, before + 1, before):
            set_num_threads(n_threads)
            losses.add(step.run(*pair))
            m.zero_grad()
    finally:
        set_num_threads(before)
    assert len(tape_calls) == 3
    with _kernels.use_isa(available_isas()[0]):
        losses.add(step.run(*pair))
        m.zero_grad()
    assert len(losses) == 1


def test_no_grad_and_lists_go_through_the_tape() -> None:
    m = model()
    step = recorded(m)
    inputs, targets = batch(np.random.default_rng(8))
    with no_grad(), pytest.raises(AutodiffError):
        step.run(inputs, targets)
    assert step.run(inputs.tolist(), targets.tolist()) == ordinary(model(), inputs, targets)
    with pytest.raises(ModelError):
        step.run(inputs, targets[:2])


def test_large_steps_are_not_kept(tape_calls) -> None:
    m = model()
    step = RecordedStep(m, limit=10_000)
    rng = np.random.default_rng(9)
    for _ in range(3):
        step.run(*batch(rng))
        m.zero_grad()
    assert len(tape_calls) == 3


def test_calls_of_another_thread_are_not_recorded() -> None:
    x = np.ones(3)
    with kernels.Recording(1000) as recording:
        kernels.add(x, x)
        other = threading.Thread(target=lambda: [kernels.multiply(x, x) for _ in range(5)])
        other.start()
        other.join()
        with kernels.Recording(1000) as second:
            kernels.add(x, x)
        assert second.finish() is None
    calls = recording.finish()
    assert calls is not None
    assert len(calls) == 2
    kernels.add(x, x)  # no longer listened to
    assert len(calls) == 2


def test_a_recording_repeats_work_on_new_numbers() -> None:
    x, total = np.array([1.0, 2.0]), np.empty(2)
    with kernels.Recording(1000) as recording:
        kernels.multiply(x, x, out=total)
        kernels.accumulate(total, x)
        assert kernels.first_non_finite(total) == -1
    calls = recording.finish()
    assert calls is not None
    x[:] = 3.0, 4.0
    assert calls.run()
    assert total.tolist() == [12.0, 20.0]
    x[1] = np.inf
    assert not calls.run()


def fail_after(_: np.ndarray) -> None:
    raise RuntimeError


def test_a_failed_recording_gives_nothing() -> None:
    recording = kernels.Recording(1000)
    with pytest.raises(RuntimeError), recording:
        fail_after(kernels.add(np.ones(2), np.ones(2)))
    assert recording.finish() is None
    with kernels.Recording(1000) as again:
        kernels.add(np.ones(2), np.ones(2))
    assert again.finish() is not None


# --------------------------------------------------------------------------- in pieces of rows
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("changes", [{}, *OTHERS], ids=str)
@pytest.mark.parametrize("rows", [1, 2, 3, 5, 8])
def test_pieces_are_recorded_too(changes, dtype: str, rows: int, tape_calls) -> None:
    """All pieces of a batch are one list of calls, with the bits of the whole batch."""
    a, b = model(dtype, **changes), model(dtype, **changes)
    optimizers = AdamW(AdamWConfig(0.01)), AdamW(AdamWConfig(0.01))
    step = RecordedStep(b)
    rng = np.random.default_rng(0)
    widths = [5, 5, 2, 5, 2, 5]
    for width in widths:
        pair = batch(rng, rows=width, tokens=7)
        assert ordinary(a, *pair) == step.run(*pair, rows=rows)
        assert gradients(a) == gradients(b)
        for m, optimizer in zip((a, b), optimizers, strict=True):
            named = m.named_parameters()
            optimizer.step(named, transform=clip_grad_norm(named, 0.5).transform)
            m.zero_grad()
    pieces = sum(-(-width // rows) for width in (5, 2))
    assert len(tape_calls) == len(widths) + pieces


def test_sizes_of_pieces_are_kept_apart(tape_calls) -> None:
    a, b = model(), model()
    step = RecordedStep(b)
    rng = np.random.default_rng(1)
    for rows in (None, 2, 3, 2, None, 3):
        pair = batch(rng, rows=6)
        assert ordinary(a, *pair) == step.run(*pair, rows=rows)
        assert gradients(a) == gradients(b)
        a.zero_grad()
        b.zero_grad()
    assert len(tape_calls) == 6 + 1 + 3 + 2


def test_pieces_are_added_to_gradients_that_were_not_cleared(tape_calls) -> None:
    a, b = model(), model()
    step = RecordedStep(b)
    rng = np.random.default_rng(1)
    for _ in range(3):
        pair = batch(rng, rows=4)
        assert ordinary(a, *pair) == step.run(*pair, rows=2)
        assert gradients(a) == gradients(b)
    assert len(tape_calls) == 3 + 3 * 2


def test_a_bad_value_in_a_later_piece_is_reported_by_the_tape() -> None:
    m = model()
    step = RecordedStep(m)
    inputs, targets = batch(np.random.default_rng(4), rows=4)
    step.run(inputs, targets, rows=1)
    m.zero_grad()
    wrong = inputs.copy()
    wrong[3, 2] = CONFIG.vocab_size
    with pytest.raises(ModelError) as caught:
        step.run(wrong, targets, rows=1)
    assert caught.value.kind == "TokenOutOfBounds"
    parameter = dict(m.named_parameters())["final_norm.gain"]
    gain = parameter.data.copy()
    parameter.assign(np.full(parameter.shape, 1.7e308))
    with pytest.raises(AutodiffError):
        step.run(inputs, targets, rows=1)
    assert all(parameter.grad_is_zero for _, parameter in m.named_parameters())
    parameter.assign(gain)
    assert step.run(inputs, targets, rows=1) == ordinary(model(), inputs, targets)


def test_pieces_that_would_keep_much_memory_use_the_tape(monkeypatch, tape_calls) -> None:
    """Small arrays of all pieces stay, so their memory does not follow the size of a piece."""
    monkeypatch.setattr(recorded_module, "PIECES_BYTES", 200_000)
    for rows, is_recorded in ((None, True), (4, True), (2, False), (1, False)):
        m = model()
        step = RecordedStep(m)
        tape_calls.clear()
        rng = np.random.default_rng(2)
        for _ in range(2):
            step.run(*batch(rng, rows=4), rows=rows)
            m.zero_grad()
        once = 1 if rows is None else 4 // rows
        assert len(tape_calls) == (once if is_recorded else 2 * once), rows


def test_a_mean_of_pieces_is_looked_at_before_a_gradient_changes() -> None:
    m = model()
    step = RecordedStep(m)
    pair = batch(np.random.default_rng(4), rows=4)
    seen: list[float] = []

    def refuse(value: float) -> None:
        seen.append(value)
        raise RuntimeError

    with pytest.raises(RuntimeError):
        step.run(*pair, rows=3, check_mean=refuse)
    assert all(parameter.grad_is_zero for _, parameter in m.named_parameters())
    assert seen == [ordinary(model(), *pair)]
    for _ in range(2):
        assert step.run(*pair, rows=3, check_mean=seen.append) == seen[0]
        m.zero_grad()
    assert seen == [seen[0]] * 2  # by the tape only


def test_calls_that_only_look_are_not_repeated() -> None:
    x = np.ones(3)
    with kernels.Recording(1000) as recording:
        y = kernels.add(x, x)
        with recording.unheard():
            assert kernels.sum(y) == 6.0
        kernels.accumulate(y, x)
    calls = recording.finish()
    assert calls is not None
    assert len(calls) == 2
    x[:] = 2.0
    assert calls.run()
    assert y.tolist() == [6.0, 6.0, 6.0]
