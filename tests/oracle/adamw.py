"""AdamW of one parameter, one scalar at a time (numerics contract, section 10)."""

import math

import numpy as np

from tests.oracle import scalar


def _divided(a, b):
    """a / b as IEEE 754 has it, also for b = 0."""
    return float(np.float64(a) / np.float64(b))


def lines(p, gradient, m, v, rule):
    """Name and value of every line of one element's update, in order."""
    beta1, beta2, lr = rule["beta1"], rule["beta2"], rule["lr"]
    g = _divided(gradient, rule["divisor"]) * rule["multiplier"]
    m = beta1 * m + (1.0 - beta1) * g
    q = g * g
    v = beta2 * v + (1.0 - beta2) * q
    mh = _divided(m, rule["correction1"])
    vh = _divided(v, rule["correction2"])
    d = _divided(mh, math.sqrt(vh) + rule["eps"]) if vh >= 0 else math.nan
    a = lr * d
    k = (lr * rule["weight_decay"]) * p
    return {
        "effective_gradient": g,
        "first_moment": m,
        "squared_gradient": q,
        "second_moment": v,
        "corrected_first_moment": mh,
        "corrected_second_moment": vh,
        "direction": d,
        "step": a,
        "weight_decay": k,
        "parameter": (p - a) - k,
    }


def adamw_update(param, grad, first, second, rule):
    """(param, first, second, problem): new arrays and the first line that is not finite."""
    rounded = scalar.of(param.dtype).rounded
    out = [np.zeros_like(param) for _ in range(3)]
    problem = None
    stored = {"parameter": out[0], "first_moment": out[1], "second_moment": out[2]}
    values = zip(*(x.ravel().tolist() for x in (param, grad, first, second)), strict=True)
    for i, element in enumerate(values):
        for name, value in lines(*element, rule).items():
            if name in stored:
                value = rounded(value)
                stored[name].reshape(-1)[i] = value
            if problem is None and not math.isfinite(value):
                problem = (i, name, value)
    return *out, problem
