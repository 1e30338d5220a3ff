"""Byte-level BPE by the definition: count everything again for every rule."""

import itertools


def replace(tokens, pair, new):
    """One left-to-right pass without overlap: (tokens after, replacements)."""
    out, at, count = [], 0, 0
    while at < len(tokens):
        if tuple(tokens[at : at + 2]) == pair:
            out.append(new)
            at += 2
            count += 1
        else:
            out.append(tokens[at])
            at += 1
    return out, count


def learn(sequences, max_merges):
    """([(pair, new id, overlapping count, replacements)], final sequences)."""
    sequences = [list(s) for s in sequences]
    rules = []
    while len(rules) < max_merges:
        counts = {}
        for tokens in sequences:
            for left, right in itertools.pairwise(tokens):
                counts[left, right] = counts.get((left, right), 0) + 1
        if not counts:
            break
        pair = min(counts, key=lambda p: (-counts[p], p))
        new = 256 + len(rules)
        replaced = 0
        for i, tokens in enumerate(sequences):
            sequences[i], count = replace(tokens, pair, new)
            replaced += count
        rules.append((pair, new, counts[pair], replaced))
    return rules, sequences


def encode(data, pairs):
    """Training-space ids after one pass of every rule, in rank order."""
    tokens = list(data)
    for rank, pair in enumerate(pairs):
        tokens, _ = replace(tokens, tuple(pair), 256 + rank)
    return tokens


def token_bytes(token, pairs):
    """Bytes of a training-space id."""
    if token < 256:
        return bytes([token])
    left, right = pairs[token - 256]
    return token_bytes(left, pairs) + token_bytes(right, pairs)
