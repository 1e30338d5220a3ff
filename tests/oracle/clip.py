"""The global norm and the clip decision, one Python operation at a time."""

import math
import sys
from collections.abc import Iterable

# transform: ("uniform", scale) or ("normalized", divisor, multiplier)
Clip = tuple[float, float, tuple[object, ...], bool]


def clip_f64(values: Iterable[float], ceiling: float) -> Clip | None:
    """(norm before, norm after, transform, clipped); None when no factor can be represented."""
    top, sq = 0.0, 1.0
    for value in values:
        a = abs(value)
        if a == 0.0:
            continue
        if top < a:
            r = top / a
            sq = 1.0 + ((sq * r) * r)
            top = a
        else:
            r = a / top
            sq = sq + (r * r)
    if top == 0.0:
        return 0.0, 0.0, ("uniform", 1.0), False
    root = math.sqrt(sq)
    norm = top * root
    if norm == math.inf:
        norm = sys.float_info.max
    multiplier = ceiling / root
    if top <= multiplier:
        return norm, norm, ("uniform", 1.0), False
    if multiplier == 0.0:
        return None
    scale = (ceiling / top) / root
    if scale > 0.0:
        return norm, ceiling, ("uniform", scale), True
    return norm, ceiling, ("normalized", top, multiplier), True


def clip_f32(values: Iterable[float], ceiling: float) -> Clip:
    """The float32 rule: blocks of 4096 exact squares."""
    total, block, filled = 0.0, 0.0, 0
    for value in values:
        block += value * value
        filled += 1
        if filled == 4096:
            total, block, filled = total + block, 0.0, 0
    norm = math.sqrt(total + block)
    if norm > ceiling:
        return norm, ceiling, ("uniform", ceiling / norm), True
    return norm, norm, ("uniform", 1.0), False
