"""Layers: what they compute with, what they call their parameters, what a name may be."""

import numpy as np
import pytest

from llmcy import ops
from llmcy.errors import AutodiffError, InitializationError
from llmcy.nn import Embedding, Linear, Module, Parameter, RMSNorm, RotaryTable, SwiGLU
from llmcy.nn.init import drawn_matrix, unit_gain
from llmcy.nn.naming import check_parameter_name
from llmcy.nn.rope import rotary_table
from llmcy.rng import SplitMix64
from llmcy.tape import Tensor


def parameter(name: str, *shape: int) -> Parameter:
    values = SplitMix64(7).fill_unit(int(np.prod(shape))).reshape(shape)
    return Parameter(name, values)


# ------------------------------------------------------------------ names
@pytest.mark.parametrize("name", ["a", "blocks.0.ffn_norm.gain", "_", "9.z_9"])
def test_names_that_are_fine(name):
    check_parameter_name(name)


@pytest.mark.parametrize(
    ("name", "kind", "fields"),
    [
        ("", "EmptyName", {}),
        (".", "EmptyNameSegment", {"index": 0}),
        ("a..b", "EmptyNameSegment", {"index": 1}),
        ("a.b.", "EmptyNameSegment", {"index": 2}),
        ("Token", "InvalidNameCharacter", {"index": 0, "byte": 0x54}),
        ("ab.c-d", "InvalidNameCharacter", {"index": 4, "byte": 0x2D}),
        ("a b", "InvalidNameCharacter", {"index": 1, "byte": 0x20}),
        ("x.é", "InvalidNameCharacter", {"index": 2, "byte": 0xC3}),
        ("a\n", "InvalidNameCharacter", {"index": 1, "byte": 0x0A}),
        ("A..b", "InvalidNameCharacter", {"index": 0, "byte": 0x41}),
    ],
)
def test_names_that_are_not(name, kind, fields):
    with pytest.raises(InitializationError) as caught:
        Parameter(name, np.zeros(1))
    assert caught.value.kind == kind
    assert caught.value.fields == fields


# ------------------------------------------------------------------ parameters
def test_a_parameter_starts_with_a_zero_gradient():
    p = parameter("w", 2, 3)
    assert p.requires_grad
    assert p.grad.tobytes() == np.zeros((2, 3)).tobytes()
    assert repr(p) == "Parameter('w', shape=(2, 3), dtype=float64)"


def test_a_parameter_refuses_values_that_are_not_finite():
    with pytest.raises(InitializationError) as caught:
        Parameter("w", np.array([1.0, np.inf]))
    error = caught.value
    assert error.kind == "Autodiff"
    assert isinstance(error.__cause__, AutodiffError)
    assert (error.cause.index, error.cause.value) == (1, np.inf)


# ------------------------------------------------------------------ modules
def test_named_parameters_follow_attributes_in_order():
    class Pair(Module):
        def __init__(self):
            self.second = Linear(parameter("second.weight", 2, 2))
            self.first = parameter("first", 1)
            self.number = 3
            self.stack = [RMSNorm(parameter("g", 2), 1e-6), RMSNorm(parameter("h", 2), 1e-6)]

    pair = Pair()
    assert [name for name, _ in pair.named_parameters()] == [
        "second.weight",
        "first",
        "stack.0.gain",
        "stack.1.gain",
    ]
    assert pair.named_parameters()[1][1] is pair.first
    ops.sum(pair.second(Tensor(np.ones((1, 2))))).backward()
    assert pair.second.weight.grad.any()
    pair.zero_grad()
    assert not pair.second.weight.grad.any()


def test_layers_compute_what_their_operations_compute():
    x = Tensor(SplitMix64(1).fill_unit(12).reshape(2, 3, 2))
    w = parameter("w", 2, 4)
    assert Linear(w)(x).data.tobytes() == ops.linear(x, w).data.tobytes()
    gain = parameter("g", 2)
    assert RMSNorm(gain, 0.5)(x).data.tobytes() == ops.rms_norm(x, gain, 0.5).data.tobytes()
    table = parameter("e", 5, 2)
    embedding = Embedding(table)
    assert embedding([[4, 0]]).data.tolist() == table.data[[[4, 0]]].tolist()
    assert embedding.logits(x).data.tobytes() == ops.tied_linear(x, table).data.tobytes()
    up, down = parameter("u", 2, 4), parameter("d", 4, 2)
    layer = SwiGLU(Linear(w), Linear(up), Linear(down))
    by_hand = ops.linear(
        ops.multiply(ops.silu(ops.linear(x, w)), ops.linear(x, up)), down
    )
    assert layer(x).data.tobytes() == by_hand.data.tobytes()


# ------------------------------------------------------------------ the rotary table
def test_the_rotary_table_is_read_only_and_shared():
    table = rotary_table(4, 6, 500.0, "float64")
    assert rotary_table(4, 6, 500.0, "float64") is table
    with pytest.raises(ValueError, match="read-only"):
        table.cos[0, 0] = 0.0
    assert table.cos.shape == table.sin.shape == (4, 3)


def test_positions_shift_the_rotation():
    table = RotaryTable(6, 2, 10000.0, "float64")
    x = Tensor(SplitMix64(1).fill_unit(16).reshape(1, 4, 4))
    whole = table.rotate(x, 2).data
    for t in range(4):
        one = Tensor(x.data[:, t : t + 1])
        assert table.rotate(one, 2, position=t).data[0, 0].tobytes() == whole[0, t].tobytes()


# ------------------------------------------------------------------ initial values
def test_drawn_matrices():
    rng, again = SplitMix64(5), SplitMix64(5)
    values = drawn_matrix(3, 2, rng)
    limit = (6.0 / 5.0) ** 0.5
    expected = [limit * ((2.0 * again.unit()) - 1.0) for _ in range(6)]
    assert values.reshape(-1).tolist() == expected
    assert rng.state == again.state
    assert drawn_matrix(3, 2, SplitMix64(5), np.float32).dtype == np.float32
    assert unit_gain(3, np.float32).tolist() == [1.0, 1.0, 1.0]


def test_the_list_of_parameters_follows_every_change() -> None:
    class Pair(Module):
        def __init__(self, first: Parameter, second: Parameter) -> None:
            self.first = first
            self.second = second

    class Stack(Module):
        def __init__(self, items: list[Module] | tuple[Module, ...]) -> None:
            self.items = items

    a, b, c = (Parameter(name, np.zeros(2)) for name in "abc")

    def names(module: Module) -> list[tuple[str, str]]:
        return [(path, node.name) for path, node in module.named_parameters()]

    pair = Pair(a, b)
    stack = Stack((pair, Pair(c, a)))
    wiring = stack.wiring()
    assert stack.wiring() is wiring
    assert wiring.holds()
    pair.first = c
    assert not wiring.holds()
    assert names(stack)[:2] == [("items.0.first", "c"), ("items.0.second", "b")]
    assert stack.wiring() is not wiring
    del pair.first
    pair.third = c
    assert names(pair) == [("second", "b"), ("third", "c")]
    wiring = stack.wiring()
    vars(pair)["second"] = a  # past every notice, but not past a look
    assert stack.wiring() is wiring
    assert not wiring.holds()
    growing = Stack([pair])
    assert len(names(growing)) == 2
    growing.items.append(Pair(a, b))
    assert len(names(growing)) == 4
    assert not growing.wiring().holds()
