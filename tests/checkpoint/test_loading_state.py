"""Sections E to I of loading: one altered file for every check of tokenizer, model and optimizer.

Every file is resealed, so that only the check it is made for can refuse it.
"""

import struct

import pytest

from tests.checkpoint.altering import (
    EMBEDDING,
    GAIN,
    INF,
    KEEP_COUNTS,
    KEY,
    NAN,
    QUERY,
    Case,
    both,
    cases,
    check,
    constants,
    decoder,
    on_record,
    remove_record,
    renamed,
    settings,
    value_at,
    without_groups,
)
from tests.oracle.checkpoint_file import Rec

# --------------------------------------------------------------------------- E: tokenizer
E = {
    "token-name": Case(renamed(1, "1", "01"), "Layout", text="record 1 must be LiteralToken '1'"),
    "token-role": Case(
        both(KEEP_COUNTS, on_record(1, "2", role=3)), "Layout", text="record 2 must be"
    ),
    "token-dtype": Case(
        on_record(1, "2", dtype=2, payload=b"2\0\0\0"), "Layout", text="record 2 must be"
    ),
    "token-rank-0": Case(on_record(1, "3", shape=[]), "Layout", text="one axis"),
    "token-rank-2": Case(on_record(1, "3", shape=[1, 1]), "Layout", text="one axis"),
    "token-empty": Case(on_record(1, "3", shape=[0], payload=b""), "Layout", text="one axis"),
    "token-repeat": Case(on_record(1, "4", payload=b"0"), "Tokenizer"),
    "no-tokens": Case(
        lambda p: (setattr(p, "tokenizer_vocab", 0), p.records.__delitem__(slice(0, 5)))[0],
        "Tokenizer",
    ),
    "bpe-name": Case(
        renamed(2, "training-pairs", "pairs"), "Layout", text="'training-pairs'", base="bpe"
    ),
    "bpe-role": Case(
        on_record(2, "training-pairs", role=1), "Layout", text="must be BpePairs", base="bpe"
    ),
    "bpe-dtype": Case(
        on_record(2, "training-pairs", dtype=1, shape=[8, 2]),
        "Layout",
        text="must be BpePairs",
        base="bpe",
    ),
    "bpe-rank": Case(
        on_record(2, "training-pairs", shape=[4]), "Layout", text="(merges, 2)", base="bpe"
    ),
    "bpe-columns": Case(
        on_record(2, "training-pairs", shape=[1, 4]), "Layout", text="(merges, 2)", base="bpe"
    ),
    "bpe-columns-empty": Case(
        on_record(2, "training-pairs", shape=[0, 3]), "Layout", text="(merges, 2)", base="bpe-empty"
    ),
    "bpe-unknown-operand": Case(
        on_record(2, "training-pairs", payload=struct.pack("<4I", 97, 98, 257, 300)),
        "Bpe",
        ("UnknownMergeOperand", {"rank": 1, "token_id": 257}),
        base="bpe",
    ),
    "bpe-unknown-right": Case(
        on_record(2, "training-pairs", payload=struct.pack("<4I", 97, 256, 256, 99)),
        "Bpe",
        ("UnknownMergeOperand", {"rank": 0, "token_id": 256}),
        base="bpe",
    ),
    "bpe-duplicate-pair": Case(
        on_record(2, "training-pairs", payload=struct.pack("<4I", 97, 98, 97, 98)),
        "Bpe",
        ("DuplicateMergePair", {"rank": 1, "left": 97, "right": 98}),
        base="bpe",
    ),
    "bpe-vocabulary": Case(
        settings(tokenizer_vocab=261), "VocabularyMismatch", tokenizer=260, decoder=261, base="bpe"
    ),
}


# --------------------------------------------------------------------------- F: model
def no_parameters(parts):
    parts.records = [record for record in parts.records if record.role != 3]


def bad_leaf(kind, **fields):
    return ("Autodiff", {}), (kind, fields)


F = {
    "no-parameters": Case(no_parameters, "Layout", text="no model parameters"),
    "parameter-role": Case(
        both(KEEP_COUNTS, on_record(3, GAIN, role=2)), "Layout", text="must be a ModelParameter"
    ),
    "parameter-dtype": Case(
        on_record(3, GAIN, dtype=1, shape=[32]), "Layout", text="must be a ModelParameter"
    ),
    "strides": Case(
        on_record(3, GAIN, shape=[0, 2**63, 4], payload=b""),
        "Tensor",
        ("ShapeOverflow", {"shape": (0, 2**63, 4)}),
    ),
    "name-segment": Case(
        renamed(3, GAIN, "blocks..gain"), "Initialization", ("EmptyNameSegment", {"index": 1})
    ),
    "name-trailing-dot": Case(
        renamed(3, GAIN, "blocks."), "Initialization", ("EmptyNameSegment", {"index": 1})
    ),
    "name-upper": Case(
        renamed(3, GAIN, "blocks.O"),
        "Initialization",
        ("InvalidNameCharacter", {"index": 7, "byte": 79}),
    ),
    "name-not-ascii": Case(
        renamed(3, GAIN, "\u00e9"),
        "Initialization",
        ("InvalidNameCharacter", {"index": 0, "byte": 0xC3}),
    ),
    "parameter-nan": Case(
        value_at(3, GAIN, 2, NAN),
        "Initialization",
        *bad_leaf("NonFiniteLeaf", index=2, value=NAN),
    ),
    "parameter-inf": Case(
        value_at(3, EMBEDDING, 19, -INF),
        "Initialization",
        *bad_leaf("NonFiniteLeaf", index=19, value=-INF),
    ),
}
for name, alter, kind, fields in [
    ("vocab-0", decoder(vocab_size=0), "EmptyVocabulary", {}),
    ("width-0", decoder(d_model=0), "ZeroModelWidth", {}),
    ("heads-0", decoder(n_heads=0), "ZeroHeadCount", {}),
    ("heads-3", decoder(n_heads=3), "ModelWidthNotDivisible", {"d_model": 4, "n_heads": 3}),
    ("heads-4", decoder(n_heads=4), "OddHeadWidth", {"head_dim": 1}),
    ("ff-0", decoder(d_ff=0), "ZeroFeedForwardWidth", {}),
    ("positions-0", decoder(max_seq_len=0), "ZeroPositionCapacity", {}),
    ("base-0", constants(rope_theta=0.0), "InvalidRopeBase", {"value": 0.0}),
    ("base-negative", constants(rope_theta=-1.0), "InvalidRopeBase", {"value": -1.0}),
    ("base-nan", constants(rope_theta=NAN), "InvalidRopeBase", {"value": NAN}),
    ("rms-negative", constants(rms_norm_eps=-1e-9), "InvalidRmsEpsilon", {"value": -1e-9}),
    ("rms-inf", constants(rms_norm_eps=INF), "InvalidRmsEpsilon", {"value": INF}),
    ("layers-max", decoder(n_layers=2**64 - 1), "ParameterAllocationFailed", None),
    ("layers-fit", decoder(n_layers=(2**64 - 3) // 9), "ParameterCountMismatch", None),
    ("layers-2", decoder(n_layers=2), "ParameterCountMismatch", {"expected": 20, "actual": 11}),
    ("layers-0", decoder(n_layers=0), "ParameterCountMismatch", {"expected": 2, "actual": 11}),
    (
        "uoken",
        renamed(3, EMBEDDING, "uoken_embedding.weight"),
        "ParameterNameMismatch",
        {"index": 0, "expected": EMBEDDING, "actual": "uoken_embedding.weight"},
    ),
    (
        "swapped-names",
        lambda p: (renamed(3, KEY, "x")(p), renamed(3, QUERY, KEY)(p), renamed(3, "x", QUERY)(p))[
            0
        ],
        "ParameterNameMismatch",
        {"index": 2, "expected": QUERY, "actual": KEY},
    ),
    ("embedding-rank", on_record(3, EMBEDDING, shape=[20]), "Embedding", None),
    ("embedding-rows", on_record(3, EMBEDDING, shape=[0, 4], payload=b""), "Embedding", None),
    ("embedding-columns", on_record(3, EMBEDDING, shape=[5, 0], payload=b""), "Embedding", None),
    ("gain-rank", on_record(3, GAIN, shape=[2, 2]), "Block", None),
    ("gain-rank-0", on_record(3, GAIN, shape=[], payload=bytes(8)), "Block", None),
    ("gain-rank-70", on_record(3, GAIN, shape=[4] + [1] * 69), "Block", None),
    ("gain-empty", on_record(3, GAIN, shape=[0], payload=b""), "Block", None),
    ("gain-unholdable", on_record(3, GAIN, shape=[2**62, 0], payload=b""), "Block", None),
    ("query-rank", on_record(3, QUERY, shape=[16]), "Block", None),
    ("key-input", on_record(3, KEY, shape=[2, 8]), "Block", None),
    ("ff-gate", on_record(3, "blocks.0.ffn.gate.weight", shape=[2, 8]), "Block", None),
    ("ff-down", on_record(3, "blocks.0.ffn.down.weight", shape=[8, 2]), "Block", None),
    ("positions-too-many", decoder(max_seq_len=2**60), "Block", None),
    ("final-rank", on_record(3, "final_norm.gain", shape=[2, 2]), "FinalNorm", None),
    ("vocab-6", decoder(vocab_size=6), "EmbeddingVocabularyMismatch", {"expected": 6, "actual": 5}),
    (
        "shape-transposed",
        on_record(3, EMBEDDING, shape=[4, 5]),
        "EmbeddingVocabularyMismatch",
        {"expected": 5, "actual": 4},
    ),
    (
        "width-8",
        decoder(d_model=8),
        "EmbeddingWidthMismatch",
        {"expected": 8, "actual": 4},
    ),
    (
        "ff-8",
        decoder(d_ff=8),
        "BlockFeedForwardWidthMismatch",
        {"layer": 0, "expected": 8, "actual": 4},
    ),
    (
        "final-width",
        on_record(3, "final_norm.gain", shape=[2], payload=bytes(16)),
        "FinalNormWidthMismatch",
        {"expected": 4, "actual": 2},
    ),
]:
    F[name] = Case(alter, "Model", (kind, fields))
F |= {
    "rotary-frequency": Case(
        constants(rope_theta=5e-324),
        "Model",
        ("Block", {"layer": 0, "problem": "RopeFrequencyNotFinite"}),
        base="wide",
    ),
    "rotary-angle": Case(
        both(constants(rope_theta=1e-303), decoder(max_seq_len=2**54)),
        "Model",
        ("Block", {"layer": 0, "problem": "RopeAngleNotFinite"}),
        base="wide",
    ),
}


# --------------------------------------------------------------------------- G: optimizer
G = {
    "first-role": Case(
        both(KEEP_COUNTS, on_record(4, KEY, role=5, name=b"x")),
        "Layout",
        text="must be an OptimizerFirstMoment",
    ),
    "first-dtype": Case(
        on_record(4, KEY, dtype=1, shape=[128]), "Layout", text="must be an OptimizerFirstMoment"
    ),
    "second-role": Case(
        both(KEEP_COUNTS, on_record(5, KEY, role=4, name=b"x")),
        "Layout",
        text="must be an OptimizerSecondMoment",
    ),
    "second-dtype": Case(
        on_record(5, KEY, dtype=2, shape=[32]), "Layout", text="must be an OptimizerSecondMoment"
    ),
    "second-name": Case(renamed(5, KEY, "x"), "Layout", text="second moment of"),
    "second-shape": Case(on_record(5, KEY, shape=[16]), "Layout", text="have shapes"),
    "first-moment-nan": Case(
        value_at(4, KEY, 3, NAN),
        "AdamWState",
        ("NonFiniteMoment", {"name": KEY, "moment": "first", "index": 3, "value": NAN}),
    ),
    "second-moment-inf": Case(
        value_at(5, EMBEDDING, 19, INF),
        "AdamWState",
        ("NonFiniteMoment", {"name": EMBEDDING, "moment": "second", "index": 19, "value": INF}),
    ),
    "second-moment-negative": Case(
        value_at(5, KEY, 1, -5e-324),
        "AdamWState",
        ("NegativeSecondMoment", {"name": KEY, "index": 1, "value": -5e-324}),
    ),
    "beta1-power-one": Case(
        settings(powers=[1.0, 0.5]),
        "AdamWState",
        ("InvalidBetaPower", {"name": "beta1", "value": 1.0, "step": 8}),
    ),
    "beta2-power-negative": Case(
        settings(powers=[0.5, -0.5]),
        "AdamWState",
        ("InvalidBetaPower", {"name": "beta2", "value": -0.5, "step": 8}),
    ),
    "beta2-power-nan": Case(
        settings(powers=[0.5, NAN]),
        "AdamWState",
        ("InvalidBetaPower", {"name": "beta2", "value": NAN, "step": 8}),
    ),
    "step0-power": Case(
        settings(powers=[1.0 - 2**-53, 1.0]),
        "AdamWState",
        ("InvalidBetaPower", {"name": "beta1", "value": 1.0 - 2**-53, "step": 0}),
        base="step0",
    ),
    "step0-with-moments": Case(
        settings(selected_step=0, optimizer_step=0, powers=[1.0, 1.0]),
        "AdamWState",
        ("StatePresence", {"step": 0, "entries": 11}),
    ),
    "moments-none-step8": Case(
        settings(selected_step=8, optimizer_step=8, powers=[0.5, 0.5]),
        "AdamWState",
        ("StatePresence", {"step": 8, "entries": 0}),
        base="step0",
    ),
}


G["groups-missing"] = Case(
    lambda p: p.groups[0].remove(KEY.encode()),
    "AdamWState",
    ("ParameterGroupsMismatch", None),
)
G["groups-other"] = Case(
    both(renamed(4, KEY, "x"), renamed(5, KEY, "x")),
    "AdamWState",
    ("ParameterGroupsMismatch", None),
)


# --------------------------------------------------------------------------- H: relations
SORTED_NAMES = (
    KEY,
    "blocks.0.attention.output.weight",
    QUERY,
    "blocks.0.attention.value.weight",
    GAIN,
    "blocks.0.ffn.down.weight",
    "blocks.0.ffn.gate.weight",
    "blocks.0.ffn.up.weight",
    "blocks.0.ffn_norm.gain",
    "final_norm.gain",
    EMBEDDING,
)
H = {
    "four-tokens": Case(
        lambda p: (settings(tokenizer_vocab=4)(p), remove_record(1, "4")(p))[0],
        "VocabularyMismatch",
        tokenizer=4,
        decoder=5,
    ),
    "moment-name": Case(
        both(without_groups, renamed(4, KEY, "Z z"), renamed(5, KEY, "Z z")),
        "OptimizerNames",
        expected=SORTED_NAMES,
        actual=("Z z", *SORTED_NAMES[1:]),
    ),
    "moments-ten": Case(
        both(without_groups, remove_record(4, KEY), remove_record(5, KEY)),
        "OptimizerNames",
        expected=SORTED_NAMES,
        actual=SORTED_NAMES[1:],
    ),
    "moment-extra": Case(
        both(
            without_groups,
            lambda p: p.records.extend(
                [Rec(4, b"z", 3, [], bytes(8)), Rec(5, b"z", 3, [], bytes(8))]
            ),
        ),
        "OptimizerNames",
        expected=SORTED_NAMES,
        actual=(*SORTED_NAMES, "z"),
    ),
    "step-mismatch": Case(settings(selected_step=6), "StepMismatch", selected=6, optimizer=8),
    "optimizer-step": Case(settings(optimizer_step=9), "StepMismatch", selected=8, optimizer=9),
    "moment-shape": Case(
        both(on_record(4, KEY, shape=[16]), on_record(5, KEY, shape=[16])),
        "OptimizerShape",
        name=KEY,
        model=(4, 4),
        optimizer=(16,),
    ),
    "moment-shape-unholdable": Case(
        both(
            on_record(4, KEY, shape=[0, 2**63, 4], payload=b""),
            on_record(5, KEY, shape=[0, 2**63, 4], payload=b""),
        ),
        "OptimizerShape",
        name=KEY,
        model=(4, 4),
        optimizer=(0, 2**63, 4),
    ),
    "moment-rank-70": Case(
        both(on_record(4, KEY, shape=[16] + [1] * 69), on_record(5, KEY, shape=[16] + [1] * 69)),
        "OptimizerShape",
        name=KEY,
        model=(4, 4),
        optimizer=(16, *[1] * 69),
    ),
}


# --------------------------------------------------------------------------- I: canonical form
def swap_moment_pairs(parts):
    first = next(i for i, record in enumerate(parts.records) if record.role == 4)
    pair = parts.records[first : first + 2]
    parts.records[first : first + 2] = parts.records[first + 2 : first + 4]
    parts.records[first + 2 : first + 4] = pair


I = {  # noqa: E741 - the sections of the loader are lettered
    "groups-unsorted": Case(
        lambda p: p.groups[0].reverse(), "NonCanonical", text="not in the one form"
    ),
    "no-decay-unsorted": Case(
        lambda p: p.groups[1].reverse(), "NonCanonical", text="not in the one form"
    ),
    "moments-unsorted": Case(swap_moment_pairs, "NonCanonical", text="not in the one form"),
}


# --------------------------------------------------------------------------- the tests
@pytest.mark.feature("M10", "M25")
@cases(E)
def test_tokenizer(case, bases):
    check(case, bases)


@pytest.mark.feature("K10", "K11", "M25", "P04")
@cases(F)
def test_model(case, bases):
    check(case, bases)


@pytest.mark.feature("M02", "M03", "M07", "M08", "M25", "M48")
@cases(G)
def test_optimizer(case, bases):
    check(case, bases)


@pytest.mark.feature("J03", "M25", "M48", "P06")
@cases(H)
def test_relations(case, bases):
    check(case, bases)


@pytest.mark.feature("M25", "M29")
@cases(I)
def test_canonical_form(case, bases):
    check(case, bases)
