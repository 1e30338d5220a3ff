"""Calls made again, one after the other."""

import pytest

from llmcy._kernels.calls import Calls


def test_calls_are_made_in_order_with_their_arguments() -> None:
    seen: list[tuple[int, ...]] = []
    calls = Calls((lambda *a: seen.append(a),) * 3, ((1,), (), (2, 3)), (None,) * 3)
    assert len(calls) == 3
    assert calls.run() == -1
    assert calls.run() == -1
    assert seen == [(1,), (), (2, 3)] * 2


def test_another_result_ends_the_run() -> None:
    seen: list[int] = []

    def give(value: object) -> object:
        seen.append(1)
        return value

    assert Calls((give,) * 3, ((None,), (10**20,), (-1,)), (None, 10**20, -1)).run() == -1
    assert Calls((give,) * 3, ((None,), (7,), (-1,)), (None, -1, -1)).run() == 1
    assert len(seen) == 3 + 2


def test_an_exception_passes() -> None:
    with pytest.raises(ZeroDivisionError):
        Calls((lambda: 1 // 0,), ((),), (None,)).run()


def test_what_is_no_list_of_calls_is_refused() -> None:
    with pytest.raises(ValueError, match="one entry a call"):
        Calls((print,), (), (None,))
    with pytest.raises(TypeError, match="must be a tuple"):
        Calls((print,), ([],), (None,))  # type: ignore[arg-type]
