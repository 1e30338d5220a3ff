"""Ten megabytes and 4,096 rules: minutes by the definition, so checked by what must hold."""

import random
from pydoc_data.topics import topics

import pytest

from llmcy.tokenizer import BytePairTokenizer, learn_bpe


@pytest.mark.slow
@pytest.mark.parametrize("whole", [False, True])
def test_ten_megabytes(whole):
    rng = random.Random(5)
    base = "".join(topics.values()).encode()
    documents = []
    while sum(map(len, documents)) < 10_000_000:
        text = bytearray(base)
        for _ in range(len(text) // 20):
            text[rng.randrange(len(text))] = rng.randrange(97, 123)
        documents.append(bytes(text))
    if whole:
        documents = [b"".join(documents)]
    learned = learn_bpe(documents, 4096)
    assert len(learned.rules) == 4096
    counts = [rule.candidate_count for rule in learned.rules]
    assert all(1 <= r.replacement_count <= r.candidate_count for r in learned.rules)
    # replacing a pair makes no pair more frequent than itself
    assert counts == sorted(counts, reverse=True)
    tokenizer = BytePairTokenizer.from_learned(learned)
    n_bytes = n_tokens = 0
    for document, final in zip(documents, learned.sequences, strict=True):
        ids = tokenizer.encode(document)
        assert (ids - 2 == final).all()
        assert tokenizer.decode(ids) == document
        n_bytes += len(document)
        n_tokens += len(ids)
    # every replacement shortens the text by one token
    assert n_bytes - n_tokens == sum(rule.replacement_count for rule in learned.rules)
