from typing import Any

import numpy as np
from numpy.typing import NDArray

STAGE_NAMES: tuple[str, ...]

def adamw_update(
    param: NDArray[Any],
    grad: NDArray[Any],
    first: NDArray[Any],
    second: NDArray[Any],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    correction1: float,
    correction2: float,
    divisor: float,
    multiplier: float,
    new_param: NDArray[Any],
    new_first: NDArray[Any],
    new_second: NDArray[Any],
    n_threads: int,
) -> tuple[int, str, float] | None: ...
def adamw_update_all(
    params: tuple[NDArray[Any], ...],
    grads: tuple[NDArray[Any], ...],
    firsts: tuple[NDArray[Any], ...],
    seconds: tuple[NDArray[Any], ...],
    weight_decays: tuple[float, ...],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    correction1: float,
    correction2: float,
    divisor: float,
    multiplier: float,
    new_params: tuple[NDArray[Any], ...],
    new_firsts: tuple[NDArray[Any], ...],
    new_seconds: tuple[NDArray[Any], ...],
    known_finite: bool,
    n_threads: int,
) -> bool: ...
def adamw_is_bounded(
    params: tuple[NDArray[Any], ...],
    grads: tuple[NDArray[Any], ...],
    firsts: tuple[NDArray[Any], ...],
    seconds: tuple[NDArray[Any], ...],
    weight_decays: tuple[float, ...],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    correction1: float,
    correction2: float,
    divisor: float,
    multiplier: float,
    bounds: NDArray[np.float64],
    known: bool,
    largest_grad: float,
    n_threads: int,
) -> bool: ...
def quotients(x: NDArray[np.float64], c: float, out: NDArray[np.float64]) -> None: ...
def adamw_stages(
    param: NDArray[Any],
    grad: NDArray[Any],
    first: NDArray[Any],
    second: NDArray[Any],
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    correction1: float,
    correction2: float,
    divisor: float,
    multiplier: float,
    out: NDArray[Any],
) -> None: ...
