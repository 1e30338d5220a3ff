"""JSON read strictly: what two readers could understand differently is refused."""

from __future__ import annotations

import json
from typing import Any

from llmcy.errors import DataError

__all__ = ["checked_object", "checked_string", "invalid_json", "parse_strict", "parse_text"]


def invalid_json(what: str, problem: str, cause: BaseException | None = None) -> DataError:
    return DataError(
        "InvalidJson", f"{what}: {problem}", cause=cause, document=what, problem=problem
    )


def parse_text(what: str, text: str | bytes) -> tuple[str, bytes]:
    """The text and its UTF-8 bytes, exactly as given; ``InvalidJson`` when it is not Unicode."""
    try:
        if isinstance(text, str):
            return text, text.encode("utf-8")
        data = bytes(memoryview(text))
        return data.decode("utf-8"), data
    except (UnicodeEncodeError, UnicodeDecodeError) as error:
        raise invalid_json(what, f"not UTF-8 text ({error.reason})", error) from error


def parse_strict(what: str, text: str) -> Any:
    """Parse JSON; repeated keys, NaN and infinities are refused, negative integers become floats.

    Raises
    ------
    DataError
        ``InvalidJson`` with the document's name and the problem.
    """

    def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise invalid_json(what, f"key {key!r} is repeated")
            found[key] = value
        return found

    def no_constant(name: str) -> Any:
        raise invalid_json(what, f"{name} is not JSON")

    try:
        return json.loads(
            text,
            object_pairs_hook=unique_keys,
            parse_constant=no_constant,
            # no field here is signed, and "-0" must not pass for the integer 0
            parse_int=lambda digits: float(digits) if digits.startswith("-") else int(digits),
        )
    except DataError:
        raise
    except RecursionError as error:
        raise invalid_json(what, "nested too deeply", error) from error
    except ValueError as error:
        raise invalid_json(what, str(error), error) from error


def checked_object(what: str, value: Any, keys: tuple[str, ...]) -> dict[str, Any]:
    """``value`` as an object with exactly these keys, else ``InvalidJson``."""
    if not isinstance(value, dict):
        raise invalid_json(what, f"expected an object, got {_kind(value)}")
    for key in value:
        if key not in keys:
            raise invalid_json(what, f"unknown key {key!r}")
    for key in keys:
        if key not in value:
            raise invalid_json(what, f"key {key!r} is missing")
    return value


def checked_string(what: str, name: str, value: Any) -> str:
    """``value`` as a string of Unicode scalar values, else ``InvalidJson``."""
    if not isinstance(value, str):
        raise invalid_json(what, f"{name} must be a string, got {_kind(value)}")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise invalid_json(what, f"{name} has a lone surrogate")
    return value


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean"}
    return names.get(type(value), "a number")
