"""Choosing a token, one obvious step at a time, with exponentials rounded by mpmath."""

from mpmath import mp, mpf


def exp(x: float) -> float:
    """Correctly rounded exponential."""
    if x == float("-inf"):
        return 0.0
    with mp.workprec(2000 if x > -1e-300 else 400):
        return float(mp.exp(mpf(x)))


def kahan(values: list[float]) -> float:
    """Compensated sum in order."""
    s = c = 0.0
    for v in values:
        y = v - c
        t = s + y
        c = (t - s) - y
        s = t
    return s


def distribution(
    logits: list[float], temperature: float, top_k: int
) -> tuple[list[int], list[float], float]:
    """(retained ids in rank order, probabilities in id order, their compensated sum)."""
    ranked = sorted(range(len(logits)), key=lambda i: (-logits[i], i))[:top_k]
    top = logits[ranked[0]]
    weights = [1.0]
    for i in ranked[1:]:
        if temperature < 1.0:
            gap = (logits[i] - top) / temperature
        else:
            gap = logits[i] / temperature - top / temperature
        weights.append(exp(gap))
    total = kahan(weights)
    probabilities = [0.0] * len(logits)
    for i, weight in zip(ranked, weights, strict=True):
        probabilities[i] = weight / total
    return ranked, probabilities, kahan(probabilities)


def choose(probabilities: list[float], draw: float) -> tuple[int, float, float]:
    """(token, start, end) of the interval that holds the draw."""
    support = [i for i, p in enumerate(probabilities) if p > 0.0]
    start = 0.0
    for i in support:
        end = 1.0 if i == support[-1] else min(start + probabilities[i], 1.0)
        if draw < end:
            return i, start, end
        start = end
    raise AssertionError(draw)


def filtered(
    logits: list[float],
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    penalty: float,
    history: list[int],
) -> tuple[list[int], list[float]]:
    """(retained ids in rank order, probabilities in id order) after every filter in its order."""
    logits = [
        (x / penalty if x > 0.0 else x * penalty) if i in history else x
        for i, x in enumerate(logits)
    ]
    ranked, probabilities, _ = distribution(logits, temperature, top_k)
    top = logits[ranked[0]]
    weights = {}
    for i in ranked:
        gap = (
            (logits[i] - top) / temperature
            if temperature < 1.0
            else logits[i] / temperature - top / temperature
        )
        weights[i] = exp(gap)
    weights[ranked[0]] = 1.0
    kept = []
    for rank, i in enumerate(ranked):
        before = kahan([probabilities[j] for j in ranked[:rank]])
        if rank and top_p < 1.0 and before >= top_p:
            break
        kept.append(i)
    kept = [i for i in kept if weights[i] >= min_p]
    total = kahan([weights[i] for i in kept])
    final = [0.0] * len(logits)
    for i in kept:
        final[i] = weights[i] / total
    return kept, final
