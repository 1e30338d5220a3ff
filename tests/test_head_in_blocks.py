"""A decoder's loss with its logits in blocks: the bits of ``forward`` and ``cross_entropy``."""

import dataclasses
import importlib

import numpy as np
import pytest

from llmcy import ops
from llmcy.config import ModelConfig
from llmcy.errors import AutodiffError
from llmcy.model import Decoder
from llmcy.nn import embedding
from llmcy.optim import AdamW, AdamWConfig
from llmcy.recorded import RecordedStep
from llmcy.tape import Tensor, no_grad
from tests.test_micro_batches import fixture_of, train

in_blocks = importlib.import_module("llmcy.kernels.linear_cross_entropy")
CONFIG = ModelConfig(vocab_size=9, d_model=12, n_heads=2, n_layers=1, d_ff=10, max_seq_len=7)


@pytest.fixture(params=[1, 100, 2**21], ids="blocks of {}".format, autouse=True)
def block(request, monkeypatch):
    """No batch is too small for blocks."""
    monkeypatch.setattr(in_blocks, "BLOCK", request.param)
    monkeypatch.setattr(embedding, "FEW_LOGITS", 0)


def model(dtype, tied=True):
    return Decoder.initialize(
        dataclasses.replace(CONFIG, dtype=str(dtype), tied_head=tied), seed=5
    )


def batch(seed=0):
    return np.random.default_rng(seed).integers(0, 9, (2, 4, 6))


def gradients(of):
    return [parameter.grad.tobytes() for _, parameter in of.named_parameters()]


def composed(of, inputs, targets):
    loss = ops.cross_entropy(of.forward(inputs), targets)
    loss.backward()
    return loss.item()


@pytest.mark.parametrize("tied", [True, False])
def test_loss_and_gradients(dtype, isa, tied):
    a, b = model(dtype, tied), model(dtype, tied)
    inputs, targets = batch()
    loss = b.loss(inputs, targets)
    with no_grad():
        assert b.loss(inputs, targets).item() == loss.item()
    loss.backward()
    assert composed(a, inputs, targets) == loss.item()
    assert gradients(a) == gradients(b)


@pytest.mark.parametrize("tied", [True, False])
def test_recorded_steps(dtype, tied):
    a, b = model(dtype, tied), model(dtype, tied)
    optimizers = AdamW(AdamWConfig(0.01)), AdamW(AdamWConfig(0.01))
    step = RecordedStep(b)
    for update in range(4):
        inputs, targets = batch(update)
        assert composed(a, inputs, targets) == step.run(inputs, targets)
        assert gradients(a) == gradients(b)
        for m, optimizer in zip((a, b), optimizers, strict=True):
            optimizer.step(m.named_parameters())
            m.zero_grad()
    ((_, _, recorded),) = step._steps.values()
    assert recorded is not None


def test_a_recorded_step_reports_logits_as_the_tape_does():
    m, other = model("float64"), model("float64")
    step = RecordedStep(m)
    inputs, targets = batch()
    step.run(inputs, targets)
    m.zero_grad()
    errors = []
    for of, run in ((m, step.run), (other, lambda *pair: composed(other, *pair))):
        gain = of.final_norm.gain
        gain.assign(np.full(gain.shape, 1e300))
        table = of.token_embedding.weight
        table.assign(table.data * 1e10)
        with pytest.raises(AutodiffError) as caught:
            run(inputs, targets)
        errors.append((caught.value.kind, str(caught.value)))
    assert errors[0] == errors[1]
    assert errors[0][1].startswith("tied_linear")
    assert all(parameter.grad_is_zero for _, parameter in m.named_parameters())


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_micro_batches(dtype):
    fixture = fixture_of(dtype)
    whole = train(fixture, None)
    for size in (1, 2, 3, 5):
        pieces = train(fixture, size)
        assert pieces.steps == whole.steps
        assert pieces.checkpoints == whole.checkpoints
        assert pieces.final_state.equal_bits(whole.final_state)


def test_a_forward_or_a_head_of_someones_own_is_called():
    class Shifted(Decoder):
        def forward(self, inputs):
            return ops.scale(super().forward(inputs), 2.0)

    class Head(embedding.Embedding):
        def logits(self, x):
            return ops.scale(super().logits(x), 2.0)

    inputs, targets = batch()
    plain = model("float64")
    expected = ops.cross_entropy(ops.scale(plain.forward(inputs), 2.0), targets).item()
    shifted = Shifted(plain.config, [p for _, p in plain.named_parameters()])
    assert shifted.loss(inputs, targets).item() == expected
    plain.token_embedding = Head(plain.token_embedding.weight)
    assert plain.loss(inputs, targets).item() == expected
    other = model("float64")
    other.forward = lambda ids: Tensor(np.zeros((*ids.shape, 9)))
    assert other.loss(inputs, targets).item() == pytest.approx(np.log(9.0))


def test_small_batches_show_their_logits(monkeypatch):
    monkeypatch.setattr(embedding, "FEW_LOGITS", 4 * 6 * 9)
    m = model("float64")
    inputs, targets = batch()
    assert [t.op for t in m.loss(inputs, targets)._node.inputs] == ["tied_linear"]
    more = np.concatenate([inputs, inputs[:1]])
    assert [t.op for t in m.loss(more, more)._node.inputs] == ["rms_norm", None]
