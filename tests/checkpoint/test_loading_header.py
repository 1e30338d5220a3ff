"""Sections A to D of loading: one altered file for every check of the header.

Every file is resealed, so that only the check it is made for can refuse it.
"""

import struct
import sys

import pytest

from tests.checkpoint.altering import (
    EMBEDDING,
    GAIN,
    INF,
    KEY,
    NAN,
    QUERY,
    Case,
    adamw,
    cases,
    check,
    cut_header,
    decoder,
    load_altered,
    on_record,
    put,
    renamed,
    settings,
)
from tests.oracle.checkpoint_file import build

# the checksums of two altered files, which were computed with tests/oracle/checkpoint_file.py
ALTERED_PAYLOAD = 0x2B8B4A97EAED452F
ALTERED_NAME = 0x39EB34401A2AF33E

# --------------------------------------------------------------------------- A: fixed header
A = {
    "short": Case(lambda p: build(p)[:37], "Truncated", context="fixed header"),
    "empty": Case(lambda p: b"", "Truncated", context="fixed header"),
    "magic": Case(settings(magic=b"LLMCP36\0"), "InvalidMagic"),
    "version-2": Case(settings(version=2), "UnsupportedVersion", found=2),
    "endian-swapped": Case(settings(marker=0x04030201), "UnsupportedEndianness", found=0x04030201),
    "header-37": Case(
        settings(header_length=37, payload_length=6293),
        "FileExtent",
        header=37,
        payload=6293,
        actual=6330,
    ),
    "extent-overflow": Case(
        settings(header_length=2**64 - 1, payload_length=6331),
        "FileExtent",
        header=2**64 - 1,
        payload=6331,
        actual=6330,
    ),
    "truncated-tail": Case(
        lambda p: build(p)[:-1], "FileExtent", header=2869, payload=3461, actual=6329
    ),
    "trailing-byte": Case(
        lambda p: build(p) + b"\0", "FileExtent", header=2869, payload=3461, actual=6331
    ),
    "payload-byte": Case(
        put(6329, b"\x01", reseal=False),
        "ChecksumMismatch",
        expected=0x2B8B6097EAED6A91,
        actual=ALTERED_PAYLOAD,
    ),
    "name-bitflip": Case(
        put(545, b"\x31", reseal=False),
        "ChecksumMismatch",
        expected=0x2B8B6097EAED6A91,
        actual=ALTERED_NAME,
    ),
}

# --------------------------------------------------------------------------- B: variable header
CUTS = [  # (last byte kept, the field that is missing)
    (38, "tokenizer layout version"),
    (41, "sampling RNG algorithm version"),
    (49, "selected step"),
    (50, "sampling RNG state"),
    (58, "tokenizer kind"),
    (66, "tokenizer vocabulary"),
    (74, "decoder vocabulary"),
    (75, "decoder width"),
    (90, "decoder heads"),
    (98, "decoder feed-forward width"),
    (106, "decoder layers"),
    (107, "decoder positions"),
    (122, "RoPE base"),
    (130, "RMSNorm epsilon"),
    (138, "AdamW learning rate"),
    (146, "AdamW beta1"),
    (154, "AdamW beta2"),
    (162, "AdamW epsilon"),
    (170, "AdamW weight decay"),
    (171, "groups flag"),
    (175, "decay group count"),
    (425, "no-decay group count"),
    (511, "optimizer step"),
    (512, "beta1 power"),
    (527, "beta2 power"),
    (531, "model parameter count"),
    (535, "optimizer state count"),
    (539, "descriptor count"),
]
B = {
    f"cut-{length}": Case(cut_header(length), "Truncated", context=field) for length, field in CUTS
}
B |= {
    "layout-version-2": Case(settings(layout_version=2), "UnsupportedTokenizerLayout", found=2),
    "rng-version-2": Case(settings(rng_version=2), "UnsupportedRngAlgorithm", found=2),
    "kind-0": Case(settings(kind=0), "UnknownTokenizerKind", tag=0),
    "kind-3": Case(settings(kind=3), "UnknownTokenizerKind", tag=3),
    "flag-2": Case(settings(flag=2), "NonCanonical", text="groups flag"),
    "group-name-cut": Case(
        put(176, struct.pack("<I", 2**32 - 1)), "Truncated", context="decay group name"
    ),
    "group-utf8": Case(
        lambda p: p.groups[0].__setitem__(0, b"\xff"), "InvalidUtf8", context="decay group name"
    ),
    "group-surrogate": Case(
        lambda p: p.groups[1].__setitem__(0, b"\xed\xa0\x80"),
        "InvalidUtf8",
        context="no-decay group name",
    ),
    "group-overlong": Case(
        lambda p: p.groups[1].__setitem__(0, b"\xc0\xaf"),
        "InvalidUtf8",
        context="no-decay group name",
    ),
    "group-count-max": Case(put(172, b"\xff" * 4), "Allocation", context="decay group count"),
    "no-decay-count-max": Case(put(423, b"\xff" * 4), "Allocation", context="no-decay group count"),
    "descriptor-count-max": Case(
        settings(n_records=2**32 - 1), "Allocation", context="descriptor count"
    ),
    "descriptor-count-87": Case(  # 2,329 bytes are left, which is 86 times 27
        settings(n_records=87), "Allocation", context="descriptor count"
    ),
    "descriptor-count-more": Case(settings(n_records=39), "Truncated", context="tensor role"),
    "descriptor-count-less": Case(
        settings(n_records=37), "NonCanonical", text="64 header bytes follow"
    ),
    "rank-max": Case(put(547, b"\xff" * 4), "Allocation", context="tensor rank"),
    "role-0": Case(put(540, b"\0"), "UnknownTensorRole", tag=0),
    "role-6": Case(on_record(1, "0", role=6), "UnknownTensorRole", tag=6),
    "tensor-name-utf8": Case(renamed(3, GAIN, b"a\xff"), "InvalidUtf8", context="tensor name"),
    "tensor-name-empty": Case(renamed(3, GAIN, b""), "Layout", text="empty name"),
    "dtype-0": Case(on_record(1, "0", dtype=0), "UnknownDType", tag=0),
    "dtype-4": Case(on_record(3, GAIN, dtype=4), "UnknownDType", tag=4),
    "header-tail": Case(settings(header_tail=b"\0"), "NonCanonical", text="1 header bytes follow"),
    "descriptor-cut": Case(cut_header(2868), "Truncated", context="payload length"),
    "descriptor-offset-cut": Case(cut_header(2853), "Truncated", context="payload offset"),
    "descriptor-dimension-cut": Case(cut_header(2852), "Allocation", context="tensor rank"),
    "descriptor-name-cut": Case(cut_header(2811), "Truncated", context="tensor name"),
    "descriptor-length-cut": Case(cut_header(2809), "Truncated", context="tensor name length"),
}
for name, kind, values in [
    ("lr-zero", "InvalidLearningRate", {"learning_rate": 0.0}),
    ("lr-negative", "InvalidLearningRate", {"learning_rate": -1.0}),
    ("lr-nan", "InvalidLearningRate", {"learning_rate": NAN}),
    ("lr-inf", "InvalidLearningRate", {"learning_rate": INF}),
    ("beta1-one", "InvalidBeta1", {"beta1": 1.0}),
    ("beta1-negative", "InvalidBeta1", {"beta1": -0.1}),
    ("beta2-nan", "InvalidBeta2", {"beta2": NAN}),
    ("eps-zero", "InvalidEpsilon", {"eps": 0.0}),
    ("wd-negative", "InvalidWeightDecay", {"weight_decay": -0.5}),
    ("wd-inf", "InvalidWeightDecay", {"weight_decay": INF}),
]:
    B[name] = Case(adamw(**values), "AdamW", (kind, {"value": next(iter(values.values()))}))
B |= {
    "decay-product-one": Case(
        adamw(learning_rate=0.5, weight_decay=2.0), "AdamW", ("InvalidDecayProduct", {"value": 1.0})
    ),
    "decay-product-underflow": Case(
        adamw(learning_rate=1e-300, weight_decay=1e-300),
        "AdamW",
        ("InvalidDecayProduct", {"value": 0.0}),
    ),
    "decay-product-overflow": Case(
        adamw(learning_rate=1e300, weight_decay=1e300),
        "AdamW",
        ("InvalidDecayProduct", {"value": INF}),
    ),
    "group-empty-name": Case(
        lambda p: p.groups[1].append(b""), "AdamW", ("EmptyGroupedParameterName", {})
    ),
    "group-repeat": Case(
        lambda p: p.groups[0].append(KEY.encode()),
        "AdamW",
        ("DuplicateGroupedParameter", {"name": KEY}),
    ),
    "groups-empty": Case(settings(groups=[[], []]), "AdamW", ("EmptyParameterGroups", {})),
    "groups-common": Case(
        lambda p: p.groups[1].extend([EMBEDDING.encode(), QUERY.encode()]),
        "AdamW",
        ("ParameterInMultipleGroups", {"name": QUERY}),
    ),
}

# --------------------------------------------------------------------------- C: record table
C = {
    "record-twice": Case(
        lambda p: p.records.insert(6, p.record(3, EMBEDDING)), "Layout", text="appears twice"
    ),
    "dim-max": Case(
        on_record(3, EMBEDDING, shape=[2**64 - 1, 4]),
        "SizeOverflow",
        context=f"size of ModelParameter '{EMBEDDING}'",
    ),
    "width-overflow": Case(
        on_record(3, GAIN, shape=[2**61]),
        "SizeOverflow",
        context=f"size of ModelParameter '{GAIN}'",
    ),
    "overflow-then-zero-dim": Case(
        on_record(3, EMBEDDING, shape=[2**63, 4, 0], payload=b""),
        "SizeOverflow",
        context=f"size of ModelParameter '{EMBEDDING}'",
    ),
    "length-more": Case(on_record(3, GAIN, length=40), "Layout", text="says 40 bytes"),
    "length-less": Case(on_record(3, GAIN, length=24), "Layout", text="says 24 bytes"),
    "dtype-u32-width": Case(on_record(3, GAIN, dtype=2), "Layout", text="of u32 takes 16"),
    "offset-gap": Case(on_record(3, GAIN, offset=3035), "Layout", text="starts at 3035"),
    "offset-overlap": Case(on_record(3, GAIN, offset=3033), "Layout", text="starts at 3033"),
    "last-offset-max": Case(
        on_record(5, EMBEDDING, offset=2**64 - 1), "Layout", text="instead of 6170"
    ),
    "end-overflow": Case(
        on_record(3, GAIN, shape=[2**61 - 1], length=2**64 - 8), "Layout", text="beyond 64 bits"
    ),
    "trailing-byte-extent": Case(
        settings(payload_tail=b"\0"), "Layout", text="records end at 6330, the file at 6331"
    ),
    "payload-missing": Case(
        on_record(5, EMBEDDING, payload=bytes(159), length=160), "Layout", text="records end at"
    ),
}

# --------------------------------------------------------------------------- D: counts
D = {
    "parameters-10": Case(settings(n_parameters=10), "Layout", text="make 37"),
    "moments-10": Case(settings(n_moments=10), "Layout", text="make 36"),
    "counts-max": Case(
        settings(n_parameters=2**32 - 1, n_moments=2**32 - 1), "Layout", text="make"
    ),
    "tok-vocab-4": Case(settings(tokenizer_vocab=4), "Layout", text="make 37"),
    "tok-vocab-max": Case(
        settings(tokenizer_vocab=2**64 - 1), "SizeOverflow", context="record count"
    ),
    "tok-vocab-huge": Case(settings(tokenizer_vocab=2**64 - 34), "Layout", text="make"),
}


# --------------------------------------------------------------------------- the tests
@pytest.mark.feature("K06", "K07", "M25", "M30", "M48")
@cases(A)
def test_fixed_header(case, bases):
    check(case, bases)


@pytest.mark.feature("M25", "M31", "M32")
@cases(B)
def test_variable_header(case, bases):
    check(case, bases)


@pytest.mark.feature("K06", "K07", "K08", "K10", "M25")
@cases(C)
def test_record_table(case, bases):
    check(case, bases)


@pytest.mark.feature("K06", "M25")
@cases(D)
def test_record_counts(case, bases):
    check(case, bases)


def test_a_size_beyond_the_process_overflows_at_its_field(bases, monkeypatch):
    """What a 32-bit process reports for sizes that only a 64-bit one can hold."""
    from llmcy.checkpoint import decode_header, layout, reader

    monkeypatch.setattr(reader, "SIZE_MAX", 2**32 - 1)
    error = load_altered(decoder(max_seq_len=2**32), bases["published"])
    assert (error.kind, error.context) == ("SizeOverflow", "decoder positions")
    monkeypatch.setattr(layout, "SIZE_MAX", 100)
    error = load_altered(settings(), bases["published"])
    assert (error.kind, error.context) == ("SizeOverflow", f"size of ModelParameter {EMBEDDING!r}")
    monkeypatch.setattr(decode_header, "SIZE_MAX", 2868)
    error = load_altered(settings(), bases["published"])
    assert (error.kind, error.context) == ("SizeOverflow", "header length")
    assert sys.maxsize == layout.U64_MAX // 2
