"""Ways to alter a valid checkpoint file, and what the loader must say about the result."""

import math
import struct

import pytest

from llmcy.checkpoint import Checkpoint
from llmcy.errors import CheckpointError
from tests.oracle.checkpoint_file import Parts, Rec, build, parse, seal

EMBEDDING = "token_embedding.weight"
GAIN = "blocks.0.attention_norm.gain"
KEY = "blocks.0.attention.key.weight"
QUERY = "blocks.0.attention.query.weight"
NAN, INF = math.nan, math.inf


class Case:
    """Alter the parts, or return the bytes to load; expect a kind, its fields and its causes.

    ``text`` is a part of the message's text; a cause is a pair of kind and fields (None: any).
    """

    def __init__(self, alter, kind, *causes, base="published", text="", **fields):
        self.alter, self.kind, self.causes, self.fields = alter, kind, causes, fields
        self.base, self.text = base, text


def load_altered(alter, base):
    parts = parse(base)
    result = alter(parts)
    data = result if isinstance(result, bytes) else build(parts)
    with pytest.raises(CheckpointError) as caught:
        Checkpoint.from_bytes(data)
    return caught.value


def shown(fields):
    """Fields as text, so that NaN equals NaN and 0.0 differs from -0.0."""
    return {name: repr(value) for name, value in fields.items() if name != "text"}


def check(case, bases):
    error = load_altered(case.alter, bases[case.base])
    assert error.kind == case.kind, str(error)
    assert shown(error.fields) == shown(case.fields), str(error)
    assert case.text in str(error)
    for kind, fields in case.causes:
        error = error.cause
        assert error.kind == kind, str(error)
        if fields is not None:
            assert shown(error.fields) == shown(fields), str(error)


# --------------------------------------------------------------------------- valid files
def bpe_file(pairs):
    parts = Parts(kind=2, tokenizer_vocab=258 + len(pairs), rng_state=7)
    parts.decoder = {
        "vocab_size": 258 + len(pairs),
        "d_model": 2,
        "n_heads": 1,
        "d_ff": 2,
        "n_layers": 0,
        "max_seq_len": 2,
    }
    parts.constants = {"rope_theta": 10000.0, "rms_norm_eps": 1e-6}
    parts.adamw = {
        "learning_rate": 0.01,
        "beta1": 0.9,
        "beta2": 0.999,
        "eps": 1e-8,
        "weight_decay": 0.0,
    }
    payload = b"".join(struct.pack("<II", *pair) for pair in pairs)
    vocab = parts.tokenizer_vocab
    parts.records = [
        Rec(2, b"training-pairs", 2, [len(pairs), 2], payload),
        Rec(3, EMBEDDING.encode(), 3, [vocab, 2], struct.pack("<d", 0.5) * (2 * vocab)),
        Rec(3, b"final_norm.gain", 3, [2], struct.pack("<dd", 1.0, 1.0)),
    ]
    return build(parts)


def wide_file(parts):
    """One block with a single head of width 64, so that rotary frequencies span a wide range."""
    step0_file(parts)
    parts.decoder |= {"d_model": 64, "n_heads": 1, "d_ff": 1}
    widths = {4: 64, 5: 5}
    for record in parts.of_role(3):
        record.shape = [widths[size] for size in record.shape]
        if b"gate" in record.name or b"up" in record.name:
            record.shape = [64, 1]
        if b"down" in record.name:
            record.shape = [1, 64]
        record.payload = struct.pack("<d", 0.25) * math.prod(record.shape)
    return build(parts)


def step0_file(parts):
    parts.selected_step = parts.optimizer_step = 0
    parts.powers = [1.0, 1.0]
    parts.records = [record for record in parts.records if record.role < 4]
    return build(parts)


# --------------------------------------------------------------------------- alterations
def put(offset, raw, reseal=True):
    """Overwrite bytes of the built file."""

    def alter(parts):
        data = build(parts)
        data = data[:offset] + raw + data[offset + len(raw) :]
        return seal(data) if reseal else data

    return alter


def settings(**values):
    def alter(parts):
        for name, value in values.items():
            setattr(parts, name, value)

    return alter


KEEP_COUNTS = settings(n_parameters=11, n_moments=11)  # whatever roles the records have


def decoder(**values):
    return lambda parts: parts.decoder.update(values)


def constants(**values):
    return lambda parts: parts.constants.update(values)


def adamw(**values):
    return lambda parts: parts.adamw.update(values)


def on_record(role, name, /, **values):
    def alter(parts):
        record = parts.record(role, name)
        for key, value in values.items():
            setattr(record, key, value)

    return alter


def value_at(role, name, index, value):
    def alter(parts):
        record = parts.record(role, name)
        numbers = record.floats()
        numbers[index] = value
        record.set_floats(numbers)

    return alter


def both(*alterations):
    def alter(parts):
        results = [alteration(parts) for alteration in alterations]
        assert not any(isinstance(result, bytes) for result in results)

    return alter


def renamed(role, old, new):
    def alter(parts):
        parts.record(role, old).name = new if isinstance(new, bytes) else new.encode()

    return alter


def cut_header(length):
    """Keep only the first ``length`` bytes of the header, and the payload."""

    def alter(parts):
        data = build(parts)
        size = struct.unpack_from("<Q", data, 14)[0]
        data = data[:length] + data[size:]
        return seal(data[:14] + struct.pack("<Q", length) + data[22:])

    return alter


def remove_record(role, name):
    return lambda parts: parts.records.remove(parts.record(role, name))


def without_groups(parts):
    parts.flag, parts.groups = 0, None


def cases(table):
    return pytest.mark.parametrize("case", table.values(), ids=table.keys())
