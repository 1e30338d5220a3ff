"""Arguments of functions and settings of the process: shapes, types, ranges, finite numbers."""

from __future__ import annotations

from llmcy.errors.base import LlmcyError

__all__ = [
    "ConfigError",
    "DTypeError",
    "NonFiniteError",
    "RangeError",
    "ShapeError",
]


class ShapeError(LlmcyError, ValueError):
    """An array or a size that does not fit the others."""

    KINDS = {"ShapeMismatch": ("name", "expected", "actual")}


class DTypeError(LlmcyError, TypeError):
    """An array of another type, layout or kind than the function takes."""

    KINDS = {
        "UnsupportedDType": ("name", "expected", "actual"),
        "NotContiguous": ("name",),
        "Misaligned": ("name",),
        "NotAnArray": ("name", "actual"),
        "ReadOnly": ("name",),
        "Overlap": ("name", "other"),
    }


class RangeError(LlmcyError, ValueError):
    """A number outside the range the function takes."""

    KINDS = {
        "OutOfRange": ("name", "value", "expected"),
        "TokenOutOfRange": ("name", "index", "value", "vocab_size"),
    }


class NonFiniteError(LlmcyError, ArithmeticError):
    """A NaN or an infinity where only finite numbers have a meaning."""

    KINDS = {"NonFiniteValue": ("name", "index", "value")}


class ConfigError(LlmcyError, ValueError):
    """A setting of the process or of a command that cannot be used."""

    KINDS = {
        "InvalidThreadCount": ("value",),
        "UnknownInstructionSet": ("name", "available"),
        "InvalidSetting": ("name", "value"),
    }
