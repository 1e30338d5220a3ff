"""Files with two faults, where the earlier check decides, and edits that no check can see."""

import pytest

from llmcy.checkpoint import Checkpoint
from tests.checkpoint.altering import (
    EMBEDDING,
    GAIN,
    INF,
    KEY,
    NAN,
    QUERY,
    adamw,
    both,
    constants,
    decoder,
    load_altered,
    on_record,
    remove_record,
    renamed,
    settings,
    value_at,
    without_groups,
)
from tests.oracle.checkpoint_file import build, fnv1a, parse


def test_the_unaltered_files_load(bases):
    for data in bases.values():
        assert build(parse(data)) == data
        assert Checkpoint.from_bytes(data).encode().bytes == data


def first_of(*alterations):
    """Apply several alterations of the parts, then overwrite bytes if the last one does so."""

    def alter(parts):
        for alteration in alterations:
            result = alteration(parts)
        return result

    return alter


def flip_last_byte(parts):
    data = build(parts)
    return data[:-1] + bytes([data[-1] ^ 1])


PRIORITY = {
    "magic-version": (both(settings(magic=bytes(8)), settings(version=9)), "InvalidMagic"),
    "version-marker": (both(settings(version=9), settings(marker=9)), "UnsupportedVersion"),
    "marker-extent": (
        both(settings(marker=9), settings(header_length=1)),
        "UnsupportedEndianness",
    ),
    "extent-checksum": (lambda p: flip_last_byte(p) + b"x", "FileExtent"),
    "checksum-layout-version": (
        first_of(settings(layout_version=9), flip_last_byte),
        "ChecksumMismatch",
    ),
    "layout-rng": (
        both(settings(layout_version=9), settings(rng_version=9)),
        "UnsupportedTokenizerLayout",
    ),
    "rng-kind": (both(settings(rng_version=9), settings(kind=9)), "UnsupportedRngAlgorithm"),
    "kind-adamw": (both(settings(kind=9), adamw(beta1=2.0)), "UnknownTokenizerKind"),
    "adamw-flag": (both(adamw(beta1=2.0), settings(flag=9)), "AdamW"),
    "flag-role": (both(settings(flag=9), on_record(1, "0", role=9)), "NonCanonical"),
    "groups-role": (
        both(settings(groups=[[], []]), on_record(1, "0", role=9)),
        "AdamW",
    ),
    "utf8-groups": (
        both(
            lambda p: p.groups[0].append(KEY.encode()),
            lambda p: p.groups[1].append(b"\xff"),
        ),
        "InvalidUtf8",
    ),
    "role-name": (
        lambda p: (setattr(p.records[0], "name", b"\xff"), setattr(p.records[0], "role", 9))[0],
        "UnknownTensorRole",
    ),
    "empty-name-dtype": (
        lambda p: (setattr(p.records[0], "name", b""), setattr(p.records[0], "dtype", 9))[0],
        "Layout",
    ),
    "tail-table": (
        both(settings(header_tail=b"x"), on_record(3, GAIN, length=1)),
        "NonCanonical",
    ),
    "twice-overflow": (
        both(
            on_record(3, EMBEDDING, shape=[2**63, 2**63]),
            lambda p: p.records.insert(0, p.records[0]),
        ),
        "Layout",
    ),
    "overflow-length": (
        on_record(3, EMBEDDING, shape=[2**63, 2**63], length=1, offset=1),
        "SizeOverflow",
    ),
    "table-counts": (
        both(on_record(3, GAIN, length=1), settings(tokenizer_vocab=2**64 - 1)),
        "Layout",
    ),
    "counts-tokenizer": (
        both(settings(tokenizer_vocab=2**64 - 1), on_record(1, "4", payload=b"0")),
        "SizeOverflow",
    ),
    "token-name-repeat": (
        both(on_record(1, "4", payload=b"0"), renamed(1, "0", "zero")),
        "Layout",
    ),
    "tokens-model": (
        both(on_record(1, "4", payload=b"0"), renamed(3, GAIN, "Bad")),
        "Tokenizer",
    ),
    "leaf-order": (
        both(value_at(3, EMBEDDING, 0, NAN), renamed(3, GAIN, "Bad")),
        "Initialization",
    ),
    "leaf-configuration": (
        both(decoder(d_model=0), value_at(3, "final_norm.gain", 0, NAN)),
        "Initialization",
    ),
    "dual-model-optimizer": (
        both(renamed(3, GAIN, "Bad"), value_at(4, KEY, 0, NAN)),
        "Initialization",
    ),
    "model-optimizer": (both(decoder(d_ff=8), value_at(4, KEY, 0, NAN)), "Model"),
    "moment-step": (
        both(value_at(4, KEY, 0, NAN), settings(selected_step=9)),
        "AdamWState",
    ),
    "groups-names": (
        both(renamed(4, KEY, "x"), renamed(5, KEY, "x")),
        "AdamWState",
    ),
    "vocabulary-step": (
        lambda p: (
            settings(tokenizer_vocab=4, selected_step=9)(p),
            remove_record(1, "4")(p),
        )[0],
        "VocabularyMismatch",
    ),
    "step-names": (
        both(without_groups, settings(selected_step=9), renamed(4, KEY, "x"), renamed(5, KEY, "x")),
        "StepMismatch",
    ),
    "names-shape": (
        both(
            without_groups,
            renamed(4, KEY, "x"),
            renamed(5, KEY, "x"),
            on_record(4, QUERY, shape=[16]),
            on_record(5, QUERY, shape=[16]),
        ),
        "OptimizerNames",
    ),
    "relation-canonical": (
        both(settings(selected_step=9), lambda p: p.groups[0].reverse()),
        "StepMismatch",
    ),
}


@pytest.mark.feature("M25", "M26")
@pytest.mark.parametrize(("alter", "kind"), PRIORITY.values(), ids=PRIORITY.keys())
def test_the_first_check_decides(alter, kind, bases):
    assert load_altered(alter, bases["published"]).kind == kind


def test_the_first_of_two_bad_leaves_decides(bases):
    alter = both(value_at(3, EMBEDDING, 7, INF), renamed(3, GAIN, "Bad"))
    error = load_altered(alter, bases["published"])
    assert error.cause.cause.kind == "NonFiniteLeaf"
    alter = both(value_at(3, QUERY, 7, INF), renamed(3, GAIN, "Bad"))
    error = load_altered(alter, bases["published"])
    assert error.cause.kind == "InvalidNameCharacter"


def test_own_width_faults_come_before_disagreements_with_the_configuration(bases):
    alter = both(decoder(vocab_size=6), on_record(3, "final_norm.gain", shape=[2, 2]))
    assert load_altered(alter, bases["published"]).cause.kind == "FinalNorm"


# --------------------------------------------------------------------------- edits that must load
def assert_loads(parts):
    data = build(parts)
    checkpoint = Checkpoint.from_bytes(data)
    assert checkpoint.encode().bytes == data
    return checkpoint


LOADABLE = {
    "heads-1": decoder(n_heads=1),
    "positions-3": decoder(max_seq_len=3),
    "positions-2^40": decoder(max_seq_len=2**40),
    "positions-2^60-1": decoder(max_seq_len=2**60 - 1),
    "base-100": constants(rope_theta=100.0),
    "rms-zero": constants(rms_norm_eps=0.0),
    "rms-negative-zero": constants(rms_norm_eps=-0.0),
    "both-steps-9": settings(selected_step=9, optimizer_step=9),
    "both-steps-max": settings(selected_step=2**64 - 1, optimizer_step=2**64 - 1),
    "groups-removed": without_groups,
    "group-moved": lambda p: p.groups[1].insert(0, p.groups[0].pop(0)),
    "rng-other": settings(rng_state=2**64 - 1),
    "param-other": value_at(3, EMBEDDING, 3, 0.125),
    "param-negative-zero": value_at(3, EMBEDDING, 3, -0.0),
    "param-subnormal": value_at(3, EMBEDDING, 3, 5e-324),
    "second-moment-negative-zero": value_at(5, KEY, 3, -0.0),
    "powers-zero": settings(powers=[0.0, -0.0]),
    "token-longer": on_record(1, "3", payload=b"\xff\x00ab", shape=[4]),
    "wd-zero": adamw(weight_decay=0.0),
    "lr-other": adamw(learning_rate=0.008),
}


@pytest.mark.feature("J04X", "J17X", "K05", "P08X")
@pytest.mark.parametrize("alter", LOADABLE.values(), ids=LOADABLE.keys())
def test_a_valid_edit_with_a_fresh_checksum_is_not_detected(alter, parts):
    before = build(parts)
    alter(parts)
    assert build(parts) != before
    assert_loads(parts)


def test_groups_of_strangers_are_accepted_at_step_0_only(bases):
    parts = parse(bases["step0"])
    parts.groups = [[b"nobody"], ["\u00e9 x".encode()]]
    assert assert_loads(parts).optimizer.groups.names == ("nobody", "\u00e9 x")


def test_zero_layers(bases):
    checkpoint = assert_loads(parse(bases["bpe"]))
    assert checkpoint.model_state.parameter_names() == (EMBEDDING, "final_norm.gain")
    assert fnv1a(b"hello") == 0xA430D84680AABD0B
