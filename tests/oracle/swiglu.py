"""SiLU and SwiGLU with their gradients, one scalar at a time (contract, sections 6 and 8)."""

import math

import numpy as np

from tests.oracle import scalar


def sigmoid(x, dtype):
    number = scalar.of(dtype)
    if math.isnan(x):
        return x
    if x >= 0.0:
        return number.rounded(1.0 / number.rounded(1.0 + number.exp(-x)))
    e = number.exp(x)
    return number.rounded(e / number.rounded(1.0 + e))


def _silu(x, dtype):
    return scalar.of(dtype).rounded(x * sigmoid(x, dtype))


def _silu_pull(d, x, dtype):
    rounded = scalar.of(dtype).rounded
    sg = sigmoid(x, dtype)
    slope = rounded(sg * rounded(1.0 + rounded(x * rounded(1.0 - sg))))
    return 0.0 + rounded(d * slope)


def _map(function, *arrays):
    flat = [function(*values) for values in zip(*(x.ravel().tolist() for x in arrays), strict=True)]
    return np.array(flat, arrays[0].dtype).reshape(arrays[0].shape)


def silu(x):
    return _map(lambda a: _silu(a, x.dtype), x)


def silu_backward(d_out, x):
    return _map(lambda d, a: _silu_pull(d, a, x.dtype), d_out, x)


def swiglu(gate, up):
    rounded = scalar.of(gate.dtype).rounded
    return _map(lambda g, u: rounded(_silu(g, gate.dtype) * u), gate, up)


def swiglu_backward(d_out, gate, up):
    dtype = gate.dtype
    rounded = scalar.of(dtype).rounded
    d_gate = _map(lambda d, g, u: _silu_pull(0.0 + rounded(d * u), g, dtype), d_out, gate, up)
    d_up = _map(lambda d, g: 0.0 + rounded(d * _silu(g, dtype)), d_out, gate)
    return d_gate, d_up
