"""Which names and shapes make a decoder: every rule, in order, without touching a value."""

import numpy as np
import pytest

from llmcy.config import ModelConfig
from llmcy.errors import ModelError
from llmcy.model import Decoder
from llmcy.nn.layout import check_decoder_layout, check_rotary_table, parameter_names
from llmcy.tape.tensor import Node, Tensor
from tests.oracle.model import correctly_rounded

CONFIG = ModelConfig(5, 4, 2, 2, 6, 3)
B0, B1 = "blocks.0.", "blocks.1."


def check(changes=(), config: ModelConfig = CONFIG) -> ModelError | None:
    """The error for the shapes of CONFIG with some replaced."""
    shapes = CONFIG.parameter_shapes()
    for name, shape in dict(changes).items():
        assert name in shapes
        shapes[name] = shape
    try:
        check_decoder_layout(config, list(shapes), list(shapes.values()))
    except ModelError as error:
        return error
    return None


def test_the_right_layout_passes():
    assert check() is None
    assert parameter_names(2) == list(CONFIG.parameter_shapes())
    no_blocks = ModelConfig(5, 4, 2, 0, 6, 3)
    check_decoder_layout(no_blocks, parameter_names(0), [(5, 4), (4,)])


@pytest.mark.feature("B40")
def test_count_and_names():
    names, shapes = zip(*CONFIG.parameter_shapes().items(), strict=True)
    for extra, actual in ((-1, 19), (1, 21)):
        given = (*names, "more")[: 20 + extra]
        with pytest.raises(ModelError) as caught:
            check_decoder_layout(CONFIG, given, [(1,)] * len(given))
        error = caught.value
        assert (error.kind, error.expected, error.actual) == ("ParameterCountMismatch", 20, actual)
    for index in range(20):
        given = list(names)
        given[index] = "x"
        with pytest.raises(ModelError) as caught:
            check_decoder_layout(CONFIG, given, shapes)
        error = caught.value
        assert (error.kind, error.index, error.expected, error.actual) == (
            "ParameterNameMismatch",
            index,
            names[index],
            "x",
        )


def test_a_count_that_no_size_can_hold():
    layers = (2**64 - 3) // 9
    fits = ModelConfig(5, 4, 2, layers, 6, 3)
    with pytest.raises(ModelError) as caught:
        check_decoder_layout(fits, [], [])
    assert (caught.value.kind, caught.value.expected) == ("ParameterCountMismatch", 9 * layers + 2)
    overflows = ModelConfig(5, 4, 2, layers + 1, 6, 3)
    with pytest.raises(ModelError) as caught:
        check_decoder_layout(overflows, [], [])
    assert (caught.value.kind, caught.value.n_layers) == ("ParameterAllocationFailed", layers + 1)


QKV = {B1 + f"attention.{part}.weight": (8, 8) for part in ("query", "key", "value")}

# every problem of a block, in the order in which they are looked for
BLOCK_PROBLEMS = [
    ("AttentionGainRank", {B1 + "attention_norm.gain": (4, 1)}),
    ("AttentionGainEmpty", {B1 + "attention_norm.gain": (0,)}),
    ("QueryRank", {B1 + "attention.query.weight": (4,)}),
    ("QueryRows", {B1 + "attention.query.weight": (0, 4)}),
    ("QueryColumns", {B1 + "attention.query.weight": (4, 0)}),
    ("KeyRank", {B1 + "attention.key.weight": (4, 4, 1)}),
    ("ValueRows", {B1 + "attention.value.weight": (0, 4)}),
    ("KeyInputWidth", {B1 + "attention.key.weight": (5, 4)}),
    ("ValueInputWidth", {B1 + "attention.value.weight": (5, 4)}),
    ("KeyOutputWidth", {B1 + "attention.key.weight": (4, 6)}),
    ("ValueOutputWidth", {B1 + "attention.value.weight": (4, 6)}),
    ("OutputRank", {B1 + "attention.output.weight": ()}),
    (
        "WidthNotDivisible",
        {B1 + f"attention.{part}.weight": (5, 5) for part in ("query", "key", "value")},
    ),
    (
        "OddHeadWidth",
        {B1 + f"attention.{part}.weight": (6, 6) for part in ("query", "key", "value")},
    ),
    (
        "QueryOutputWidth",
        {B1 + f"attention.{part}.weight": (4, 8) for part in ("query", "key", "value")},
    ),
    ("OutputInputWidth", {B1 + "attention.output.weight": (8, 4)}),
    ("OutputOutputWidth", {B1 + "attention.output.weight": (4, 8)}),
    ("FeedForwardGainRank", {B1 + "ffn_norm.gain": ()}),
    ("GateRank", {B1 + "ffn.gate.weight": (4,)}),
    ("UpColumns", {B1 + "ffn.up.weight": (4, 0)}),
    ("DownRows", {B1 + "ffn.down.weight": (0, 4)}),
    ("UpInputWidth", {B1 + "ffn.up.weight": (5, 6)}),
    ("UpHiddenWidth", {B1 + "ffn.up.weight": (4, 7)}),
    ("DownInputWidth", {B1 + "ffn.down.weight": (7, 4)}),
    ("AttentionGainWidth", {B1 + "attention_norm.gain": (5,)}),
    ("FeedForwardGainWidth", {B1 + "ffn_norm.gain": (5,)}),
    ("GateInputWidth", {B1 + "ffn.gate.weight": (5, 6), B1 + "ffn.up.weight": (5, 6)}),
    ("DownOutputWidth", {B1 + "ffn.down.weight": (6, 5)}),
]


@pytest.mark.feature("B40")
@pytest.mark.parametrize(("problem", "changes"), BLOCK_PROBLEMS)
def test_every_problem_of_a_block(problem, changes):
    error = check(changes)
    assert (error.kind, error.layer, error.problem) == ("Block", 1, problem)
    assert "block 1" in str(error)


def test_the_earlier_of_two_problems_is_reported():
    # a tensor can have one wrong shape only, so pairs that change one tensor are left out
    for first in range(len(BLOCK_PROBLEMS)):
        for second in range(first + 1, len(BLOCK_PROBLEMS)):
            one, two = BLOCK_PROBLEMS[first], BLOCK_PROBLEMS[second]
            if set(one[1]) & set(two[1]) or one[0].endswith(("Width", "Divisible")):
                continue
            error = check({**two[1], **one[1]})
            assert error.problem == one[0], (one, two)


def test_order_across_tensors():
    everything_wrong = {
        "token_embedding.weight": (5,),
        B0 + "ffn.down.weight": (0, 0),
        B1 + "attention_norm.gain": (),
        "final_norm.gain": (0,),
    }
    error = check(everything_wrong)
    assert (error.kind, error.problem) == ("Embedding", "TableRank")
    for shape, problem in (((0, 4), "TableRows"), ((5, 0), "TableColumns")):
        error = check({**everything_wrong, "token_embedding.weight": shape})
        assert (error.kind, error.problem) == ("Embedding", problem)
    everything_wrong["token_embedding.weight"] = (6, 5)  # a disagreement waits
    error = check(everything_wrong)
    assert (error.kind, error.layer, error.problem) == ("Block", 0, "DownRows")
    del everything_wrong[B0 + "ffn.down.weight"]
    error = check(everything_wrong)
    assert (error.kind, error.layer, error.problem) == ("Block", 1, "AttentionGainRank")
    del everything_wrong[B1 + "attention_norm.gain"]
    error = check(everything_wrong)
    assert (error.kind, error.problem) == ("FinalNorm", "GainEmpty")
    error = check({**everything_wrong, "final_norm.gain": (4, 4)})
    assert (error.kind, error.problem) == ("FinalNorm", "GainRank")


def block_shapes(at: str, width: int, hidden: int) -> dict[str, tuple[int, ...]]:
    names = [name for name in CONFIG.parameter_shapes() if name.startswith(at)]
    shapes = ModelConfig(5, width, 2, 1, hidden, 3).parameter_shapes()
    return {name: shapes[name.replace(at, B0)] for name in names}


def test_disagreements_with_the_configuration_come_last_and_in_order():
    changes = {
        "token_embedding.weight": (6, 8),
        **block_shapes(B0, 8, 7),
        **block_shapes(B1, 4, 9),
        "final_norm.gain": (3,),
    }
    error = check(changes)
    assert (error.kind, error.expected, error.actual) == ("EmbeddingVocabularyMismatch", 5, 6)
    changes["token_embedding.weight"] = (5, 8)
    error = check(changes)
    assert (error.kind, error.expected, error.actual) == ("EmbeddingWidthMismatch", 4, 8)
    changes["token_embedding.weight"] = (5, 4)
    error = check(changes)
    assert (error.kind, error.layer, error.expected, error.actual) == (
        "BlockModelWidthMismatch",
        0,
        4,
        8,
    )
    changes.update(block_shapes(B0, 4, 7))
    error = check(changes)
    assert (error.kind, error.layer, error.expected, error.actual) == (
        "BlockFeedForwardWidthMismatch",
        0,
        6,
        7,
    )
    changes.update(block_shapes(B0, 4, 6))
    error = check(changes)
    assert (error.kind, error.layer, error.actual) == ("BlockFeedForwardWidthMismatch", 1, 9)
    changes.update(block_shapes(B1, 4, 6))
    error = check(changes)
    assert (error.kind, error.expected, error.actual) == ("FinalNormWidthMismatch", 4, 3)


# ------------------------------------------------------------------ the rotary table
def test_a_table_too_large_to_address():
    limit = (2**63 - 1) // 8
    assert check_rotary_table(limit // 3, 6, 10000.0) is None
    assert check_rotary_table(limit // 3 + 1, 6, 10000.0)[0] == "RopeTableTooLarge"
    huge = ModelConfig(5, 4, 2, 2, 6, 2**63)
    error = check(config=huge)
    assert (error.kind, error.layer, error.problem) == ("Block", 0, "RopeTableTooLarge")
    assert check(config=ModelConfig(5, 4, 2, 2, 6, 2**60 - 1)) is None


def first_bad(max_seq_len: int, head_dim: int, theta: float) -> tuple[str, int, int] | None:
    """By going through the whole table."""
    frequencies = [
        correctly_rounded("pow", np.float64, theta, (-2.0 * j) / head_dim)
        for j in range(head_dim // 2)
    ]
    for pair, frequency in enumerate(frequencies):
        if frequency == float("inf"):
            return "RopeFrequencyNotFinite", pair, 0
    for pair, frequency in enumerate(frequencies):
        for position in range(max_seq_len):
            if position * frequency == float("inf"):
                return "RopeAngleNotFinite", pair, position
    return None


@pytest.mark.parametrize(
    ("max_seq_len", "head_dim", "theta"),
    [
        (1, 4096, 5e-324),
        (300, 4096, 5e-324),
        (300, 400, 1e-309),
        (300, 200, 3e-309),
        (1, 200, 3e-309),
        (300, 200, 1e-300),
        (300, 2, 5e-324),
        (300, 64, 0.5),
    ],
)
def test_the_rotary_check_agrees_with_the_whole_table(max_seq_len, head_dim, theta):
    expected = first_bad(max_seq_len, head_dim, theta)
    problem = check_rotary_table(max_seq_len, head_dim, theta)
    if expected is None:
        assert problem is None
    else:
        assert problem[0] == expected[0]
        assert f"pair {expected[1]} " in problem[1]
        if expected[0] == "RopeAngleNotFinite":
            assert f"position {expected[2]}," in problem[1]


def test_the_rotary_check_in_float32():
    assert check_rotary_table(53, 400, 1e-37, "float32") is None
    problem = check_rotary_table(54, 400, 1e-37, "float32")
    assert problem[0] == "RopeAngleNotFinite"
    assert "position 53, pair 199 " in problem[1]
    assert check_rotary_table(54, 400, 1e-37, "float64") is None
    assert check_rotary_table(1, 400, 1e-60, "float32")[0] == "RopeFrequencyNotFinite"


# ------------------------------------------------------------------ no copies, no nodes
@pytest.mark.feature("B41", "M27")
def test_the_check_copies_nothing_and_makes_no_nodes(monkeypatch):
    model = Decoder.initialize(CONFIG, 1)
    named = [(name, p.data) for name, p in model.named_parameters()]
    addresses = [array.ctypes.data for _, array in named]

    def refuse(*args, **kwargs):
        raise AssertionError("the layout check made a tensor or an array")

    monkeypatch.setattr(Tensor, "__init__", refuse)
    monkeypatch.setattr(Node, "__init__", refuse)
    for maker in ("array", "empty", "zeros", "ascontiguousarray"):
        monkeypatch.setattr(np, maker, refuse)
    check_decoder_layout(CONFIG, [name for name, _ in named], [a.shape for _, a in named])
    assert [array.ctypes.data for _, array in named] == addresses
