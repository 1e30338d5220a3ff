"""Learning byte pairs: small published cases, and equality with counting everything again."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmcy.errors import TokenizerError
from llmcy.tokenizer import BytePairTokenizer, learn, learn_bpe
from tests.oracle import bpe


def as_tuples(learned):
    assert [r.rank for r in learned.rules] == list(range(len(learned.rules)))
    return [(r.pair, r.new_id, r.candidate_count, r.replacement_count) for r in learned.rules]


def check(sequences, max_merges):
    learned = learn_bpe(sequences, max_merges)
    rules, final = bpe.learn(sequences, max_merges)
    assert as_tuples(learned) == rules
    assert [s.tolist() for s in learned.sequences] == final
    return learned


def test_overlaps_are_counted_but_not_replaced():
    learned = learn_bpe([b"aaa", b"aba"], 2)
    assert as_tuples(learned) == [((97, 97), 256, 2, 1), ((97, 98), 257, 1, 1)]
    assert [s.tolist() for s in learned.sequences] == [[256, 97], [257, 97]]
    assert learned.vocab_size == 258


def test_ties_go_to_the_smaller_left_id():
    assert learn_bpe([b"ba", b"ab"], 1).pairs == ((97, 98),)


def test_ties_go_to_the_smaller_right_id_next():
    assert learn_bpe([b"ac", b"ab"], 1).pairs == ((97, 98),)


def test_pairs_never_span_two_sequences():
    learned = learn_bpe([b"a", b"b", b"", b"c"], 9)
    assert learned.rules == ()
    assert [s.tolist() for s in learned.sequences] == [[97], [98], [], [99]]


def test_learning_stops_when_no_pair_is_left():
    learned = learn_bpe([b"abcd"], 100)
    assert learned.requested_merges == 100
    assert learned.pairs == ((97, 98), (99, 100), (256, 257))


@pytest.mark.parametrize("sequences", [[], [b""], [b"", b"x"]])
@pytest.mark.parametrize("merges", [0, 3])
def test_nothing_to_learn(sequences, merges):
    assert learn_bpe(sequences, merges).rules == ()


def test_no_merges_requested_leaves_bytes():
    learned = learn_bpe([b"aa"], 0)
    assert learned.rules == ()
    assert learned.sequences[0].tolist() == [97, 97]


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 8, 9, 31, 32, 33])
def test_runs_of_one_byte(n):
    check([b"a" * n, b"a" * (n - 1)], 40)


def test_names_and_progress_are_kept():
    seen = []
    learned = learn_bpe(
        [b"abab", bytearray(b"ab"), memoryview(b"abc")],
        2,
        document_ids=["x", "y", "z"],
        progress=lambda done, total: seen.append((done, total)),
    )
    assert learned.document_ids == ("x", "y", "z")
    assert seen == [(1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("make", "kind", "fields"),
    [
        (
            lambda: learn_bpe(iter(lambda: 1 / 0, None), 2**32 - 255),
            "TooManyMerges",
            {"requested": 2**32 - 255, "maximum": 2**32 - 256},
        ),
        (lambda: learn_bpe([], -1), "InvalidSize", {"name": "max_merges", "value": -1}),
        (lambda: learn_bpe([], True), "InvalidSize", {"name": "max_merges", "value": True}),
        (
            lambda: learn_bpe([b"a"], 1, document_ids=["x", "y"]),
            "NameCountMismatch",
            {"expected": 1, "actual": 2},
        ),
    ],
)
def test_errors(make, kind, fields):
    with pytest.raises(TokenizerError) as caught:
        make()
    assert (caught.value.kind, caught.value.fields) == (kind, fields)


def test_text_beyond_the_limit(monkeypatch):
    monkeypatch.setattr(learn, "MAX_SLOTS", 8)
    assert learn_bpe([b"abc", b"ab"], 1).vocab_size == 257
    with pytest.raises(TokenizerError) as caught:
        learn_bpe([b"abc", b"abc"], 1)
    assert (caught.value.kind, caught.value.n_bytes, caught.value.maximum) == ("TextTooLarge", 6, 8)


def test_lack_of_memory_is_an_error_of_its_own(monkeypatch):
    class Starved:
        def __init__(self, sequences):
            raise MemoryError

    monkeypatch.setattr(learn, "Learner", Starved)
    with pytest.raises(TokenizerError) as caught:
        learn_bpe([b"abc"], 1)
    assert (caught.value.kind, caught.value.n_bytes) == ("AllocationFailed", 3)


few_letters = st.text(alphabet="ab", max_size=60).map(str.encode)
some_letters = st.text(alphabet="abcd ", max_size=120).map(str.encode)


@given(
    sequences=st.lists(few_letters | some_letters | st.binary(max_size=40), max_size=5),
    max_merges=st.integers(0, 60),
)
def test_equals_the_definition(sequences, max_merges):
    check(sequences, max_merges)


def test_equals_the_definition_on_longer_text():
    rng = random.Random(3)
    words = ["".join(rng.choices("etaoin", k=rng.randrange(1, 6))) for _ in range(40)]
    sequences = [" ".join(rng.choices(words, k=150)).encode() for _ in range(6)]
    learned = check(sequences, 150)
    assert len(learned.rules) == 150


@given(sequences=st.lists(few_letters | some_letters, max_size=4), max_merges=st.integers(0, 40))
def test_the_encoding_of_training_text_is_its_final_sequence(sequences, max_merges):
    learned = learn_bpe(sequences, max_merges)
    tokenizer = BytePairTokenizer.from_learned(learned)
    for sequence, final in zip(sequences, learned.sequences, strict=True):
        assert (tokenizer.encode(sequence) - 2).tolist() == final.tolist()
