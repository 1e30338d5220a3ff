"""Benchmark cases: work counts against counting, calls against their own results."""

import numpy as np
import pytest

from llmcy.bench.cases import GEMMS, SCALING, STEPS, GemmCase, StepCase, gemm_case, step_case
from llmcy.bench.kernel_cases import KERNEL_CASES, Draw
from llmcy.bench.step import TrainingStep

TINY = StepCase("tiny", 11, 8, 2, 1, 12, 6, 2)


def test_flops_of_a_step_are_those_of_its_products() -> None:
    per_token = 4 * 8 * 8 + 3 * 8 * 12 + 11 * 8  # multiply-adds of the projections and the head
    causal = sum(range(1, 7)) * 8 * 2  # query-key pairs of a row, times width, for scores and mix
    assert TINY.flops == 2 * 3 * (12 * per_token + 2 * causal)
    assert GemmCase("x", "dw", 2, 3, 4, 5).flops == 2 * 5 * 2 * 3 * 4


def test_names_of_cases_are_unique_and_found() -> None:
    steps = [*STEPS, *(case for cases in SCALING.values() for case in cases)]
    for cases, find in ((GEMMS, gemm_case), (steps, step_case)):
        assert len({case.name for case in cases}) == len(cases)
        assert all(find(case.name) is case for case in cases)
        with pytest.raises(ValueError, match="nothing of that name"):
            find("nothing of that name")


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", KERNEL_CASES)
def test_every_kernel_case_gives_the_same_finite_results_twice(name: str, dtype: str) -> None:
    case = KERNEL_CASES[name]
    given = case.inputs(TINY, Draw(dtype))
    before = {key: array.copy() for key, array in given.items()}
    first, second = (flat(case.call(TINY, given)) for _ in range(2))
    assert len(first) > 0
    for one, two in zip(first, second, strict=True):
        assert np.isfinite(one).all()
        assert one.tobytes() == two.tobytes()
    for key, array in given.items():  # what is measured is not what is left from the last call
        assert array.tobytes() == before[key].tobytes()
    assert case.values(TINY) > 0


def flat(result: object) -> list[np.ndarray]:
    if isinstance(result, tuple):
        return [array for part in result if part is not None for array in flat(part)]
    return [np.asarray(result)]


def test_a_training_step_lowers_its_loss_and_recording_changes_no_bit() -> None:
    subjects = [TrainingStep(TINY, "float32", recorded=recorded) for recorded in (True, False)]
    losses = [[subject() for _ in range(5)] for subject in subjects]
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]
