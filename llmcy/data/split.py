"""Splitting documents by the hash of their bytes.

The rule ``sha256-threshold-v1``: let ``u`` be the first 8 bytes of a digest as a big-endian integer
divided by 2**64.  The digest is SHA-256 of the document's bytes, or, with a salt, SHA-256 of the
salt's UTF-8 bytes followed by that digest.  Then

    u < test                        -> test
    test <= u < test + validation   -> validation
    otherwise                       -> train

compared exactly, as fractions.  A document's place depends on its own bytes only: adding, removing
or renaming others never moves it, and exact duplicates always land together.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

from llmcy.data.partition import Partition
from llmcy.errors import ConfigError, DataError

__all__ = ["DUPLICATE_CHOICES", "RULE_NAME", "SplitRule"]

RULE_NAME = "sha256-threshold-v1"
DUPLICATE_CHOICES = ("drop", "keep")


@dataclass(frozen=True)
class SplitRule:
    """How documents are given to partitions.

    Parameters
    ----------
    validation, test
        Expected shares of the documents; numbers or texts such as ``"0.05"`` or ``"1/20"``, >= 0,
        together below 1.  A float means the decimal it prints as.  The rest is for training.
    salt
        Another text gives another split of the same kind.
    duplicates
        ``"drop"`` keeps the first of documents with equal bytes, ``"keep"`` keeps all of them (in
        one partition, as the rule has it).

    Raises
    ------
    DataError
        ``InvalidFraction``.
    ConfigError
        ``InvalidSetting`` for ``duplicates`` or ``salt``.
    """

    validation: Fraction
    test: Fraction
    salt: str = ""
    duplicates: str = "drop"

    def __init__(
        self,
        validation: Fraction | Decimal | float | str = "0.1",
        test: Fraction | Decimal | float | str = "0.1",
        salt: str = "",
        duplicates: str = "drop",
    ) -> None:
        object.__setattr__(self, "validation", _fraction("validation", validation))
        object.__setattr__(self, "test", _fraction("test", test))
        if self.validation + self.test >= 1:
            raise DataError(
                "InvalidFraction",
                f"validation {validation} and test {test} leave nothing to train on",
                name="validation + test",
                value=str(self.validation + self.test),
            )
        if duplicates not in DUPLICATE_CHOICES:
            raise ConfigError(
                "InvalidSetting",
                f"duplicates must be one of {', '.join(DUPLICATE_CHOICES)}, got {duplicates!r}",
                name="duplicates",
                value=duplicates,
            )
        try:
            salt.encode("utf-8")
        except UnicodeEncodeError as error:
            raise ConfigError(
                "InvalidSetting", "salt has a lone surrogate", cause=error, name="salt", value=salt
            ) from error
        object.__setattr__(self, "salt", salt)
        object.__setattr__(self, "duplicates", duplicates)

    def fraction(self, partition: Partition) -> Fraction:
        """Expected share of one partition."""
        held_out = {Partition.VALIDATION: self.validation, Partition.TEST: self.test}
        return held_out.get(partition, 1 - self.validation - self.test)

    def partition_of(self, digest: bytes) -> Partition:
        """Partition of a document whose bytes have this SHA-256 digest (32 bytes)."""
        if self.salt:
            digest = hashlib.sha256(self.salt.encode("utf-8") + digest).digest()
        u = Fraction(int.from_bytes(digest[:8], "big"), 2**64)
        if u < self.test:
            return Partition.TEST
        if u < self.test + self.validation:
            return Partition.VALIDATION
        return Partition.TRAIN

    def to_dict(self) -> dict[str, Any]:
        """The rule as JSON-able values; fractions as exact texts."""
        return {
            "name": RULE_NAME,
            "fractions": {p.label: str(self.fraction(p)) for p in Partition},
            "salt": self.salt,
            "duplicates": self.duplicates,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> SplitRule:
        """The rule that `to_dict` wrote."""
        fractions = fields["fractions"]
        return cls(fractions["validation"], fractions["test"], fields["salt"], fields["duplicates"])


def _fraction(name: str, value: Fraction | Decimal | float | str) -> Fraction:
    try:
        if isinstance(value, bool):
            raise ValueError
        exact = Fraction(repr(value) if isinstance(value, float) else value)
    except (ValueError, TypeError, OverflowError, ZeroDivisionError) as error:
        raise _invalid_fraction(name, value) from error
    if not 0 <= exact < 1:
        raise _invalid_fraction(name, value)
    return exact


def _invalid_fraction(name: str, value: object) -> DataError:
    return DataError(
        "InvalidFraction",
        f"{name} must be a number from 0 to below 1, got {value!r}",
        name=name,
        value=value,
    )
