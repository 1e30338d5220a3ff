"""The report on sampling: distributions, draws, and text from a loaded checkpoint."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

from llmcy.checkpoint import Checkpoint
from llmcy.errors import SamplingError
from llmcy.generate import (
    Distribution,
    GenerationConfig,
    GenerationResult,
    Greedy,
    Sample,
    StopReason,
    TemperatureTopK,
    distribution,
    generate_uncached,
    sample,
)
from llmcy.model import Decoder
from llmcy.reference.text import decimals, hexadecimal, listed, record
from llmcy.rng import SplitMix64

__all__ = [
    "MAX_NEW_TOKENS",
    "MODE",
    "PROMPT",
    "MeasuredSampling",
    "measure_sampling",
    "sampling_report",
    "stop_word",
]

LOGITS = (0.0, 1.0, 1.0, 2.0)
TEMPERATURES = (0.5, 1.0, 2.0)
SEED, DRAWS = 36, 8
MODE = TemperatureTopK(1.0, 3)  # of the draws and of the generated text
NARROW = TemperatureTopK(1.0, 2)  # cuts between two equal logits
UNDERFLOW = (2.0, 2.0, 1.0)
SMALLEST = TemperatureTopK(sys.float_info.min, 3)
PROMPT, MAX_NEW_TOKENS = (0,), 4
DECIMALS = 12


@dataclass(frozen=True)
class MeasuredSampling:
    """Distributions of four logits, draws from them, and a continued prompt.

    Attributes
    ----------
    by_temperature
        Every token kept, at each temperature.
    narrow, smallest, drawn, whole
        Two kept tokens; the smallest normal temperature; the distribution of the draws; the same
        without a limit.
    sequence, draws
        The tokens drawn, and how far the stream had moved.
    greedy, greedy_moved
        A greedy choice, and whether it moved the stream.
    loaded_bytes, rng_state, vocab_size, context
        Of the checkpoint that was loaded.
    text, replayed
        Its continuation, and whether a second one from the same state was equal in everything.
    ended
        The continuation when its first token ends it.
    rejected, rng_unchanged
        Kinds of bad requests and whether each was refused; whether the stream stood still.
    """

    by_temperature: dict[float, Distribution]
    narrow: Distribution
    smallest: Distribution
    drawn: Distribution
    whole: Distribution
    sequence: tuple[int, ...]
    draws: int
    greedy: Sample
    greedy_moved: bool
    loaded_bytes: int
    rng_state: int
    vocab_size: int
    context: int
    text: GenerationResult
    replayed: bool
    ended: GenerationResult
    rejected: dict[str, bool]
    rng_unchanged: bool


def measure_sampling(data: bytes) -> MeasuredSampling:
    """Sample, and continue a prompt with the checkpoint in ``data``."""
    rng = SplitMix64(SEED)
    sequence = tuple(sample(LOGITS, MODE, rng).token_id for _ in range(DRAWS))
    draws = _moved(SEED, rng.state)
    greedy_rng = SplitMix64(SEED)
    greedy = sample(LOGITS, Greedy(), greedy_rng)

    checkpoint = Checkpoint.from_bytes(data)
    state = checkpoint.sampling_rng_state()
    model = checkpoint.into_model()
    text, state_after = _continued(model, state, None)
    again, state_again = _continued(model, state, None)
    ended, _ = _continued(model, state, text.generated[0])

    refusing = SplitMix64(SEED)
    rejected = {
        "temperature_zero": _refuses("InvalidTemperature", lambda: sample(
            LOGITS, TemperatureTopK(0.0, 3), refusing)),
        "top_k_zero": _refuses("InvalidTopK", lambda: sample(
            LOGITS, TemperatureTopK(1.0, 0), refusing)),
        "nonfinite_logit": _refuses("NonFiniteLogit", lambda: sample(
            (0.0, math.inf), MODE, refusing)),
    }  # fmt: skip
    return MeasuredSampling(
        by_temperature={t: distribution(LOGITS, _all_at(t)) for t in TEMPERATURES},
        narrow=distribution(LOGITS, NARROW),
        smallest=distribution(UNDERFLOW, SMALLEST),
        drawn=distribution(LOGITS, MODE),
        whole=distribution(LOGITS, _all_at(MODE.temperature)),
        sequence=sequence,
        draws=draws,
        greedy=greedy,
        greedy_moved=greedy_rng.state != SEED,
        loaded_bytes=len(data),
        rng_state=state,
        vocab_size=model.config.vocab_size,
        context=model.config.max_seq_len,
        text=text,
        replayed=(text, state_after) == (again, state_again),
        ended=ended,
        rejected=rejected,
        rng_unchanged=refusing.state == SEED,
    )


def sampling_report(measured: MeasuredSampling) -> str:
    """All lines of the report, each ending in a newline."""
    narrow, smallest, text = measured.narrow, measured.smallest, measured.text
    cut = narrow.logits[narrow.retained[-1]]  # kept and removed tokens with this logit
    removed = [i for i, x in enumerate(LOGITS) if x == cut and i not in narrow.retained]
    kept = [i for i in narrow.retained if LOGITS[i] == cut]
    retained = measured.drawn.retained
    whole = measured.whole.probabilities
    model = {"vocabulary": measured.vocab_size, "context": measured.context}
    temperatures = " ".join(
        f"tau:{t:.6f} probabilities:{decimals(found.probabilities, DECIMALS)}"
        for t, found in measured.by_temperature.items()
    )
    lines = [
        record("input", logits=decimals(LOGITS, 6), stable_order=listed(measured.whole.ranking)),
        f"temperature={temperatures}",
        record(
            "top_k",
            k=NARROW.top_k,
            retained=listed(narrow.retained),
            tied_boundary=f"keep:{kept[-1]} remove:{removed[0]}",
            sum=f"{narrow.probability_sum:.{DECIMALS}f}",
        ),
        record(
            "support",
            tau=repr(SMALLEST.temperature),
            top_k=SMALLEST.top_k,
            retained=listed(smallest.retained),
            positive_support=listed(smallest.positive_support),
            probabilities=decimals(smallest.probabilities, DECIMALS),
        ),
        record(
            "sample",
            seed=SEED,
            top_k=MODE.top_k,
            sequence=listed(measured.sequence),
            draws=measured.draws,
            greedy_token=measured.greedy.token_id,
            greedy_draw="none" if measured.greedy.unit_draw is None else measured.greedy.unit_draw,
        ),
        record(
            "checkpoint",
            loaded_bytes=measured.loaded_bytes,
            rng_state=hexadecimal(measured.rng_state),
            **model,
            eos="none",
            max_new_tokens=MAX_NEW_TOKENS,
            prompt=listed(text.prompt),
            generated=listed(text.generated),
            prefixes=listed(step.prefix_length for step in text.steps),
            stop=stop_word(text.stop),
            full_prefix_calls=text.full_prefix_calls,
            replay_identical=measured.replayed,
        ),
        record(
            "eos",
            **model,
            eos_token=text.generated[0],
            max_new_tokens=MAX_NEW_TOKENS,
            generated=listed(measured.ended.generated),
            stop=stop_word(measured.ended.stop),
            full_prefix_calls=measured.ended.full_prefix_calls,
        ),
        record("errors", **measured.rejected, rng_unchanged=measured.rng_unchanged),
        record(
            "history",
            greedy_token=measured.greedy.token_id,
            greedy_rng_advanced=measured.greedy_moved,
            top_k=MODE.top_k,
            retained=listed(retained),
            retained_full_mass=f"{sum(float(whole[i]) for i in retained):.{DECIMALS}f}",
            removed_full_mass=f"{_mass_without(whole.tolist(), retained):.{DECIMALS}f}",
        ),
        "next=keep-keys-and-values",
    ]
    return "\n".join(lines) + "\n"


def stop_word(stop: StopReason) -> str:
    """Why a text ended, as reports spell it."""
    return str(stop.value).replace("_", "-")


def _all_at(temperature: float) -> TemperatureTopK:
    return TemperatureTopK(temperature, len(LOGITS))


def _continued(model: Decoder, state: int, eos: int | None) -> tuple[GenerationResult, int]:
    rng = SplitMix64(state)
    request = GenerationConfig(MODE, eos, MAX_NEW_TOKENS)
    return generate_uncached(model, PROMPT, request, rng), rng.state


def _mass_without(probabilities: list[float], retained: tuple[int, ...]) -> float:
    return sum(p for i, p in enumerate(probabilities) if i not in retained)


def _moved(state: int, target: int) -> int:
    """How many draws lie between two states of one stream."""
    rng, count = SplitMix64(state), 0
    while rng.state != target:
        rng.next_u64()
        count += 1
    return count


def _refuses(kind: str, attempt: Callable[[], object]) -> bool:
    try:
        attempt()
    except SamplingError as error:
        return error.kind == kind
    return False
