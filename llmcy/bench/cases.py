"""What is measured: shapes as frozen dataclasses, shared by every benchmark."""

from __future__ import annotations

from dataclasses import dataclass, replace

from llmcy.config import ModelConfig


@dataclass(frozen=True)
class GemmCase:
    """Matrix products of one size.

    Attributes
    ----------
    form
        ``nn`` is a @ b, ``nt`` is a @ b.T, ``tn`` is a.T @ b; ``dw`` is the gradient of a weight,
        the sum over ``batch`` rows of products a.T @ b of k tokens each.
    m, n, k
        Result m x n, k products each.
    batch
        How many products; with ``dw`` they are added.
    """

    name: str
    form: str
    m: int
    n: int
    k: int
    batch: int = 1

    @property
    def flops(self) -> float:
        return 2.0 * self.batch * self.m * self.n * self.k


@dataclass(frozen=True)
class StepCase:
    """One training step of a whole model."""

    name: str
    vocab_size: int
    d_model: int
    n_heads: int
    n_layers: int
    d_ff: int
    context_length: int
    batch_size: int

    def config(self, dtype: str) -> ModelConfig:
        return ModelConfig(
            vocab_size=self.vocab_size,
            d_model=self.d_model,
            n_heads=self.n_heads,
            n_layers=self.n_layers,
            d_ff=self.d_ff,
            max_seq_len=self.context_length,
            dtype=dtype,
        )

    @property
    def tokens(self) -> int:
        return self.batch_size * self.context_length

    @property
    def flops(self) -> float:
        """Multiplications and additions of forward and backward: products and causal attention."""
        d, f, t = self.d_model, self.d_ff, self.context_length
        weights = self.n_layers * (4 * d * d + 3 * d * f) + self.vocab_size * d
        attention = self.n_layers * d * (t + 1)  # scores and mix: 2 * d * (t + 1) / 2 a token
        return 6.0 * self.tokens * (weights + attention)


FIXTURE = StepCase("fixture", 5, 4, 2, 1, 4, 2, 2)
SMALL = StepCase("0.8M", 65, 128, 4, 4, 344, 64, 12)
MEDIUM = StepCase("3.3M", 512, 256, 4, 4, 704, 256, 8)
LARGE = StepCase("28M", 4096, 512, 8, 8, 1408, 256, 4)
STEPS = (FIXTURE, SMALL, MEDIUM, LARGE)


def decoder_products(step: StepCase) -> tuple[GemmCase, ...]:
    """Every distinct product of a decoder, in the forms training needs."""
    d, f, v, rows = step.d_model, step.d_ff, step.vocab_size, step.tokens
    b, t, width = step.batch_size, step.context_length, step.d_model // step.n_heads
    sizes = {"attention": (d, d), "gate": (d, f), "down": (f, d)}
    cases = []
    for part, (i, o) in sizes.items():
        cases.append(GemmCase(f"{step.name} {part} nn", "nn", rows, o, i))
        cases.append(GemmCase(f"{step.name} {part} nt", "nt", rows, i, o))
        cases.append(GemmCase(f"{step.name} {part} dw", "dw", i, o, t, b))
    cases.append(GemmCase(f"{step.name} head nt", "nt", rows, v, d))  # the table lies (V, D)
    cases.append(GemmCase(f"{step.name} head nn", "nn", rows, d, v))
    cases.append(GemmCase(f"{step.name} head dw", "dw", v, d, t, b))
    cases.append(GemmCase(f"{step.name} scores nt", "nt", t, t, width, b * step.n_heads))
    cases.append(GemmCase(f"{step.name} mix nn", "nn", t, width, t, b * step.n_heads))
    cases.append(GemmCase(f"{step.name} mix tn", "tn", t, width, t, b * step.n_heads))
    return tuple(cases)


SQUARES = tuple(
    GemmCase(f"{size}^3 {form}", form, size, size, size)
    for size in (16, 32, 48, 64, 96, 128, 256, 512, 1024)
    for form in ("nn", "nt", "tn")
)
GEMMS = (*SQUARES, *(case for step in STEPS[1:] for case in decoder_products(step)))

# what training costs as one size grows and the others stay
SCALING: dict[str, tuple[StepCase, ...]] = {
    "batch": tuple(replace(MEDIUM, name=f"batch {b}", batch_size=b) for b in (1, 2, 4, 8, 16)),
    "context": tuple(
        replace(MEDIUM, name=f"context {t}", context_length=t, batch_size=2048 // t)
        for t in (32, 64, 128, 256, 512, 1024)
    ),
    "layers": tuple(replace(MEDIUM, name=f"layers {n}", n_layers=n) for n in (1, 2, 4, 8)),
}


def gemm_case(name: str) -> GemmCase:
    """The matrix product of that name."""
    for case in GEMMS:
        if case.name == name:
            return case
    raise ValueError(f"no matrix product {name!r}")


def step_case(name: str) -> StepCase:
    """The training step of that name."""
    for case in (*STEPS, *(case for cases in SCALING.values() for case in cases)):
        if case.name == name:
            return case
    raise ValueError(f"no training step {name!r}; there are {[case.name for case in STEPS]}")
