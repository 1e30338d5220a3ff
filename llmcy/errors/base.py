"""What every error has: a kind that never changes, the fields of that kind, perhaps a cause."""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "LlmcyError",
]


class LlmcyError(Exception):
    """Base of every error llmcy raises on purpose.

    Parameters
    ----------
    kind
        One of the class's ``KINDS``.
    message
        Who complains, about which argument, what was expected and what came.
    cause
        The wrapped error, for kinds that wrap one.
    **fields
        Exactly the fields that ``KINDS[kind]`` names.

    Raises
    ------
    TypeError
        For a kind or a set of fields that the class does not declare.
    """

    KINDS: ClassVar[dict[str, tuple[str, ...]]] = {}

    kind: str
    fields: dict[str, Any]
    cause: BaseException | None

    def __init__(
        self, kind: str, message: str, *, cause: BaseException | None = None, **fields: Any
    ) -> None:
        declared = type(self).KINDS.get(kind)
        if declared is None:
            raise TypeError(f"{type(self).__name__} has no kind {kind!r}")
        if set(declared) != set(fields):
            raise TypeError(
                f"{type(self).__name__}.{kind} takes fields {declared}, got {tuple(fields)}"
            )
        super().__init__(message)
        self.kind = kind
        self.fields = fields
        self.cause = cause
        if cause is not None:
            self.__cause__ = cause
        for name, value in fields.items():
            setattr(self, name, value)

    def __getattr__(self, name: str) -> Any:
        # only reached for names that are not set; tells type checkers that fields exist
        raise AttributeError(
            f"{type(self).__name__} of kind {self.__dict__.get('kind')} has no {name!r}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.kind, str(self), self.cause, self.fields)


def _rebuild(
    cls: type[LlmcyError],
    kind: str,
    message: str,
    cause: BaseException | None,
    fields: dict[str, Any],
) -> LlmcyError:
    return cls(kind, message, cause=cause, **fields)
