"""A recorded step leaves out searches whose finds its other searches make as well.

Proved by trying: at the place of every search that was left out, an element of its array becomes
NaN, infinity or minus infinity; one of the calls that are left must then give another answer.
"""

import dataclasses

import numpy as np
import pytest

from llmcy import kernels, ops
from llmcy.config import ModelConfig
from llmcy.kernels import recording
from llmcy.model import Decoder
from llmcy.nn import embedding
from llmcy.nn.module import Module
from llmcy.recorded import RecordedStep
from llmcy.tape import Tensor

CONFIG = ModelConfig(vocab_size=7, d_model=8, n_heads=2, n_layers=2, d_ff=6, max_seq_len=4)


@pytest.fixture
def selections(monkeypatch):
    """(all calls, calls that were kept) of every recording; no array but the loss is small."""
    seen = []
    original = recording._needed_searches

    def listening(calls, results):
        kept = original(calls, results)
        seen.append((list(calls), kept))
        return kept

    monkeypatch.setattr(recording, "SMALL", 1)
    monkeypatch.setattr(recording, "_needed_searches", listening)
    return seen


def record(model, seed=0, rows=2, tokens=3, pieces=None):
    inputs, targets = np.random.default_rng(seed).integers(0, 7, (2, rows, tokens))
    RecordedStep(model).run(inputs, targets, rows=pieces)


def noticed(calls, needed, at, index, value):
    """Would repeating the needed calls notice this value in the array of call ``at``?"""
    for place, (function, arguments, result) in enumerate(calls):
        if place == at:
            arguments[0].reshape(-1)[index] = value
        elif id(calls[place]) in needed and function(*arguments) != result:
            return True
    return False


def left_out(calls, kept):
    needed = {id(call) for call in kept}
    return needed, [place for place, call in enumerate(calls) if id(call) not in needed]


@pytest.mark.parametrize("few", [0, 2**14], ids=["blocks", "composed"])
@pytest.mark.parametrize("changes", [{}, {"n_kv_heads": 1, "tied_head": False}], ids=str)
@pytest.mark.parametrize("pieces", [None, 1])
def test_every_find_shows_elsewhere(selections, monkeypatch, dtype, few, changes, pieces):
    monkeypatch.setattr(embedding, "FEW_LOGITS", few)
    config = dataclasses.replace(CONFIG, dtype=dtype.name, **changes)
    record(Decoder.initialize(config, 3), pieces=pieces)
    ((calls, kept),) = selections
    needed, dropped = left_out(calls, kept)
    assert all(calls[place][0].__name__ == "first_non_finite" for place in dropped)
    assert len(dropped) > 60
    assert not noticed(calls, needed, -1, 0, 0.0)
    rng = np.random.default_rng(1)
    for place in dropped:
        size = calls[place][1][0].size
        for index in rng.permutation(size)[: 12 if size > 12 else size]:
            for value in (np.nan, np.inf, -np.inf):
                assert noticed(calls, needed, place, index, value), (place, index, value)
    assert not noticed(calls, needed, -1, 0, 0.0)  # and nothing of that has stayed


def test_every_element_of_keys_and_scores_of_attention(selections):
    """The hardest case: infinite keys, whose probabilities become 0."""
    record(Decoder.initialize(dataclasses.replace(CONFIG, n_layers=1), 4), tokens=4)
    ((calls, kept),) = selections
    needed, dropped = left_out(calls, kept)
    reads = next(c[1] for c in calls if c[0].__name__ == "attention")
    keys = reads[1].ctypes.data
    places = [place for place in dropped if calls[place][1][0].ctypes.data == keys]
    assert places
    for index in range(reads[1].size):
        for value in (np.inf, -np.inf):
            for place in places:
                assert noticed(calls, needed, place, index, value), (index, value)


class Gate(Module):
    """A layer of someone's own: softmax turns minus infinity into 0."""

    def __call__(self, x: Tensor) -> Tensor:
        return ops.add(x, ops.softmax(ops.scale(x, 0.5)))


def test_searches_before_a_kernel_that_hides_values_stay(selections):
    model = Decoder.initialize(CONFIG, 3)
    model.blocks = (*model.blocks, Gate())
    record(model)
    ((calls, kept),) = selections
    place = next(i for i, call in enumerate(calls) if call[0].__name__ == "softmax")
    hidden = calls[place][1][0].ctypes.data
    searches = [
        call for call in calls[:place]
        if call[0].__name__ == "first_non_finite" and call[1][0].ctypes.data == hidden
    ]  # fmt: skip
    assert searches
    assert {id(call) for call in searches} <= {id(call) for call in kept}


def test_a_recording_keeps_its_searches_unless_told(selections):
    x = np.ones((5, 5))
    with kernels.Recording(10_000) as steps:
        y = kernels.add(x, x)
        assert kernels.first_non_finite(y) == -1
        z = kernels.add(y, y)
    calls = steps.finish([z])
    assert selections == []
    assert calls is not None
    x[2, 2] = np.inf
    assert not calls.run()


def test_a_result_that_was_not_searched_keeps_every_search(selections):
    x = np.ones((5, 5))
    with kernels.Recording(10_000) as steps:
        y = kernels.add(x, x)
        assert kernels.first_non_finite(y) == -1
        z = kernels.add(y, y)
    steps.finish([z], searched=True)
    ((calls, kept),) = selections
    assert kept == calls
