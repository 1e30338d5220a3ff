"""Elementwise sums and products, one scalar at a time."""

import numpy as np

from tests.oracle import scalar


def _map(function, *arrays):
    rounded = scalar.of(arrays[0].dtype).rounded
    columns = zip(*(x.ravel().tolist() for x in arrays), strict=True)
    flat = [rounded(function(*values)) for values in columns]
    return np.array(flat, arrays[0].dtype).reshape(arrays[0].shape)


def add(a, b):
    return _map(lambda x, y: x + y, a, b)


def multiply(a, b):
    return _map(lambda x, y: x * y, a, b)


def _received(contribution):
    """What a buffer holds that started at +0."""
    return _map(lambda x: 0.0 + x, contribution)


def multiply_backward(d_out, a, b):
    return _received(multiply(d_out, b)), _received(multiply(d_out, a))


def scale(x, s):
    s = scalar.of(x.dtype).rounded(s)
    return _map(lambda a: a * s, x)


def scale_backward(d_out, s):
    return _received(scale(d_out, s))
