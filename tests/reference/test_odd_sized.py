"""The odd-sized run: published fingerprints in float64, and both types by the slow oracle.

The oracle's run shares nothing with the package but the fixture's inputs: loops over Python floats
for the model, the gradient norm and AdamW.
"""

from dataclasses import replace

import numpy as np
import pytest

from llmcy.checksum import fingerprint
from llmcy.reference import expected
from llmcy.reference.fixtures import TrainingFixture, wide
from llmcy.reference.training import moments_fingerprint
from tests.oracle import model as model_oracle
from tests.oracle.adamw import adamw_update
from tests.oracle.grad_norm import grad_norm

Arrays = dict[str, np.ndarray]


def odd_sized(ceiling: float, dtype: np.dtype) -> TrainingFixture:
    fixture = wide(ceiling)
    return replace(fixture, model_config=replace(fixture.model_config, dtype=dtype.name))


def clip(grad: Arrays, ceiling: float, dtype: np.dtype) -> float:
    """The factor of section 9, or of float32's rule 8."""
    top, root, norm = grad_norm(list(grad.values()))
    if dtype == np.float32:
        return ceiling / norm if norm > ceiling else 1.0
    return 1.0 if top <= ceiling / root else (ceiling / top) / root


def by_oracle(fixture: TrainingFixture, dtype: np.dtype) -> tuple[Arrays, dict[str, list]]:
    """Parameters and moments after every update of the plan."""
    settings = fixture.optimizer_config
    beta1, beta2 = settings.betas
    params = {name: np.array(node.data) for name, node in fixture.model().named_parameters()}
    moments = {name: [np.zeros_like(x), np.zeros_like(x)] for name, x in params.items()}
    batches = fixture.update_epoch().batches
    p1 = p2 = 1.0
    for step, rate in enumerate(fixture.rates, start=1):
        batch = batches[(step - 1) % len(batches)]
        _, _, _, grad = model_oracle.run(fixture.model_config, params, batch.inputs, batch.targets)
        grad = {name: grad[name] for name in params}  # stable order
        scale = clip(grad, fixture.max_grad_norm, dtype)
        p1, p2 = p1 * beta1, p2 * beta2
        for name in params:
            rule = {
                "beta1": beta1,
                "beta2": beta2,
                "lr": rate,
                "eps": settings.eps,
                "weight_decay": 0.0 if name.endswith(".gain") else settings.weight_decay,
                "correction1": 1.0 - p1,
                "correction2": 1.0 - p2,
                "divisor": 1.0,
                "multiplier": scale,
            }
            params[name], *moments[name], problem = adamw_update(
                params[name], grad[name], *moments[name], rule
            )
            assert problem is None
    return params, moments


@pytest.mark.parametrize("ceiling", [1.2, 2.2, 100.0])
def test_published_fingerprints(ceiling: float, isa: str, n_threads: int) -> None:
    result = wide(ceiling).train_decoder()
    assert (
        expected.OddSized(
            result.final_state.fingerprint(),
            moments_fingerprint(result.final_optimizer.state()),
            result.selected_step,
        )
        == expected.ODD_SIZED[ceiling]
    )


@pytest.mark.parametrize(
    "updates",
    [3, pytest.param(6, marks=pytest.mark.slow)],  # float32 needs seconds an update
)
def test_both_types_equal_the_oracle(dtype: np.dtype, updates: int) -> None:
    """With the ceiling 2.2 steps 1 and 3 clip and the others do not."""
    fixture = odd_sized(2.2, dtype)
    fixture = replace(fixture, rates=fixture.rates[:updates], validation_steps=(0, updates))
    result = fixture.train_decoder()
    params, moments = by_oracle(fixture, dtype)
    for name, array in result.final_state.named_arrays():
        assert array.dtype == dtype
        assert array.tobytes() == params[name].tobytes(), name
    for entry in result.final_optimizer.state().entries:
        first, second = moments[entry.name]
        assert entry.first_moment.tobytes() == first.tobytes(), entry.name
        assert entry.second_moment.tobytes() == second.tobytes(), entry.name
    if updates == 6:
        ordered = sorted(moments, key=str.encode)
        labels = (
            fingerprint(params.values()),
            fingerprint(moment for name in ordered for moment in moments[name]),
        )
        published = expected.ODD_SIZED if dtype == np.float64 else expected.ODD_SIZED_FLOAT32
        assert labels == (published[2.2].parameters, published[2.2].moments)


@pytest.mark.parametrize("ceiling", [1.2, 2.2, 100.0])
def test_float32_fingerprints_of_the_contracts_version(
    ceiling: float, isa: str, n_threads: int
) -> None:
    result = odd_sized(ceiling, np.dtype("float32")).train_decoder()
    assert (
        expected.OddSized(
            result.final_state.fingerprint(),
            moments_fingerprint(result.final_optimizer.state()),
            result.selected_step,
        )
        == expected.ODD_SIZED_FLOAT32[ceiling]
    )
