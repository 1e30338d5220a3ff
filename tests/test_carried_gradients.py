"""Pieces of a batch whose gradients are carried from one to the next."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llmcy import kernels, ops
from llmcy.errors import AutodiffError
from llmcy.model import Decoder
from llmcy.tape import CarriedGradients
from tests.models import SMALL, assert_same, gradients, random_case


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["float64", "float32"]), st.data())
def test_pieces_of_a_batch_with_carried_gradients_give_the_bits_of_the_whole(seed, dtype, data):
    model, inputs, targets = random_case(seed, dtype)
    inputs = np.concatenate([inputs, inputs[::-1], (inputs + 1) % model.config.vocab_size])
    targets = np.concatenate([targets, targets[::-1], targets])
    n = targets.size
    row_losses = np.empty(n)
    whole = model.loss(inputs, targets, row_losses=row_losses)
    whole.backward()
    expected = {name: g.copy() for name, g in gradients(model).items()}
    model.zero_grad()

    carry = CarriedGradients()
    piece_losses = np.empty(n)
    start, width = 0, inputs.shape[1]
    while start < len(inputs):
        stop = data.draw(st.integers(start + 1, len(inputs)))
        part = piece_losses[start * width : stop * width]
        loss = model.loss(inputs[start:stop], targets[start:stop], n, row_losses=part)
        assert not any(g.any() for g in gradients(model).values())
        loss.backward(carry=carry)
        start = stop
    carry.commit()
    assert_same(gradients(model), expected)
    assert piece_losses.tobytes() == row_losses.tobytes()
    assert float(kernels.mean(piece_losses)) == whole.item()


def test_carried_gradients_add_to_what_is_stored():
    model = Decoder.initialize(SMALL, 33)
    inputs, targets = [[4, 0], [0, 1]], [[0, 1], [1, 2]]
    for _ in range(2):
        model.loss(inputs, targets).backward()
    expected = {name: g.copy() for name, g in gradients(model).items()}
    model.zero_grad()
    carry = CarriedGradients()
    for _ in range(2):
        for row, target in zip(inputs, targets, strict=True):
            model.loss([row], [target], 4).backward(carry=carry)
        carry.commit()
    assert_same(gradients(model), expected)


def test_a_failed_piece_spoils_the_carry_and_changes_no_gradient():
    model = Decoder.initialize(SMALL, 33)
    carry = CarriedGradients()
    model.loss([[4, 0]], [[0, 1]], 4).backward(carry=carry)
    broken = ops.scale(model.loss([[0, 1]], [[1, 2]], 4), 1e300)
    with pytest.raises(AutodiffError) as caught:
        broken.backward(seed=1e300, carry=carry)
    assert caught.value.kind == "NonFiniteGradient"
    for attempt in (
        carry.commit,
        lambda: model.loss([[4, 0]], [[0, 1]], 4).backward(carry=carry),
    ):
        with pytest.raises(AutodiffError) as caught:
            attempt()
        assert caught.value.kind == "CarryFailed"
    for gradient in gradients(model).values():
        assert gradient.tobytes() == np.zeros_like(gradient).tobytes()


def test_contributions_that_are_no_folds_cannot_be_carried():
    model = Decoder.initialize(SMALL, 33)
    with pytest.raises(AutodiffError) as caught:
        ops.sum(ops.scale(model.final_norm.gain, 2.0)).backward(carry=CarriedGradients())
    assert (caught.value.kind, caught.value.op) == ("NotCarried", "scale")
