"""The profile of a step sees every kernel, and leaves the way of a call as it was."""

from benchmarks.profile_step import profile
from llmcy._kernels import front
from tests.kernels.test_front import A, B


def test_products_are_listed_and_the_short_way_is_open_again(capsys):
    profile("fixture", "float64", 1, 1)
    printed = capsys.readouterr().out
    assert "matmul.matmul nn" in printed
    assert "adamw.adamw_update_all" in printed
    assert front.try_matmul(A, B, False, False, None, 1) is not None
