"""Epochs made in the obvious way: nested loops and a textbook shuffle in whole numbers."""

MASK = 2**64 - 1


def split_mix(state):
    state = (state + 0x9E3779B97F4A7C15) & MASK
    z = state
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31), state


def below(state, n):
    while True:
        draw, state = split_mix(state)
        if draw >= (2**64 - n) % n:
            return draw % n, state


def epoch_windows(lengths, context, stride, seed=None):
    """((document index, start) in epoch order, state after the shuffle or None)."""
    windows = [
        (d, s) for d, n in enumerate(lengths) for s in range(0, n, stride) if s + context + 1 <= n
    ]
    if seed is None:
        return windows, None
    state = seed
    for u in range(len(windows) - 1, 0, -1):
        v, state = below(state, u + 1)
        windows[u], windows[v] = windows[v], windows[u]
    return windows, state
