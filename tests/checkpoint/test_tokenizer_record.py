"""The sealed tokenizer."""

import copy
import pickle

import pytest

from llmcy.checkpoint import TokenizerRecord
from llmcy.errors import CheckpointError
from llmcy.tokenizer import BytePairTokenizer


@pytest.mark.feature("M09")
@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        ([], "at least one piece"),
        ([b"a", b"", b"a"], "piece 1 is empty"),
        ([b"a", b"b", b"a", b""], "piece 2 repeats piece 0"),
    ],
)
def test_literal_refusals(pieces, text):
    with pytest.raises(CheckpointError) as caught:
        TokenizerRecord.literal(pieces)
    assert caught.value.kind == "Tokenizer"
    assert text in caught.value.text


@pytest.mark.feature("M11")
def test_literal_record():
    pieces = [b"a", b"\xff\x00", b"aa"]
    record = TokenizerRecord.literal(pieces)
    pieces.append(b"later")
    assert record.literal_pieces() == (b"a", b"\xff\x00", b"aa")
    assert (record.kind, record.vocab_size) == ("literal-u32", 3)
    assert record.restore_bpe() is None
    assert record.training_pairs() is None


@pytest.mark.feature("M10", "M11")
def test_byte_bpe_record():
    tokenizer = BytePairTokenizer.from_pairs([(97, 98), (256, 99)])
    record = TokenizerRecord.byte_bpe(tokenizer)
    assert (record.kind, record.vocab_size) == ("byte-bpe", 260)
    assert record.literal_pieces() is None
    assert record.restore_bpe() == tokenizer
    assert record.restore_bpe() is not tokenizer
    assert TokenizerRecord.byte_bpe(BytePairTokenizer.from_pairs([])).vocab_size == 258


@pytest.mark.feature("M10")
@pytest.mark.parametrize(
    ("pairs", "kind", "fields"),
    [
        ([(97, 256)], "UnknownMergeOperand", {"rank": 0, "token_id": 256}),
        ([(97, 98), (300, 400)], "UnknownMergeOperand", {"rank": 1, "token_id": 300}),
        ([(97, 98), (97, 98)], "DuplicateMergePair", {"rank": 1, "left": 97, "right": 98}),
    ],
)
def test_raw_pairs_are_validated(pairs, kind, fields):
    with pytest.raises(CheckpointError) as caught:
        TokenizerRecord.from_training_pairs(pairs)
    assert caught.value.kind == "Bpe"
    assert caught.value.cause.kind == kind
    assert caught.value.cause.fields == fields


@pytest.mark.feature("M11")
def test_sealed():
    record = TokenizerRecord.literal([b"a"])
    for name in ("vocab_size", "kind", "_pieces", "other"):
        with pytest.raises(AttributeError):
            setattr(record, name, 5)
    with pytest.raises(AttributeError):
        del record._pieces
    with pytest.raises(TypeError):
        TokenizerRecord()
    assert record.vocab_size == 1


def test_equality():
    assert TokenizerRecord.literal([b"a"]) == TokenizerRecord.literal([bytearray(b"a")])
    assert TokenizerRecord.literal([b"a"]) != TokenizerRecord.literal([b"b"])
    assert TokenizerRecord.literal([b"a"]) != b"a"
    assert hash(TokenizerRecord.literal([b"a"])) == hash(TokenizerRecord.literal([b"a"]))


def test_records_can_be_pickled():
    for record in (TokenizerRecord.literal([b"a"]), TokenizerRecord.from_training_pairs([(1, 2)])):
        assert pickle.loads(pickle.dumps(record)) == record
        assert copy.deepcopy(record) == record
