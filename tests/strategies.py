"""Arrays for kernel tests: hypothesis chooses shapes, a seed and a flavour; numpy fills them."""

import numpy as np
from hypothesis import strategies as st

FLAVOURS = ("plain", "zeros", "tiny", "wide", "huge")
FINITE_FLAVOURS = FLAVOURS[:3]  # products of two such values, and sums of a few, stay finite

seeds = st.integers(0, 2**32 - 1)
flavours = st.sampled_from(FLAVOURS)
finite_flavours = st.sampled_from(FINITE_FLAVOURS)


def filled(rng: np.random.Generator, shape, dtype, flavour="plain") -> np.ndarray:
    """An array of the flavour: ``plain`` normal values; ``zeros`` with many of either sign;
    ``tiny`` with subnormals and values whose products underflow; ``wide`` over half the exponent
    range; ``huge`` with values whose products overflow."""
    dtype = np.dtype(dtype)
    info = np.finfo(dtype)
    x = rng.standard_normal(shape)
    if flavour == "zeros":
        pick = rng.random(shape)
        x = np.where(pick < 0.3, 0.0, np.where(pick < 0.6, -0.0, np.round(x)))
    elif flavour == "tiny":
        power = rng.choice([0, info.minexp // 2, info.minexp, info.minexp - info.nmant // 2], shape)
        x = np.ldexp(x, power)
    elif flavour == "wide":
        x = np.ldexp(x, rng.integers(info.minexp // 2, info.maxexp // 2, shape))
    elif flavour == "huge":
        x = np.ldexp(x, rng.choice([0, info.maxexp - 3], shape))
    return np.ascontiguousarray(x, dtype)
