"""Inputs, expected results and the tolerance table that all tests of `ops` share."""

import math
from dataclasses import dataclass
from typing import Literal

import torch
from hypothesis import strategies as st
from torch import Tensor

from everyformer.ops.toeplitz_attention.operands import Operands
from everyformer.ops.toeplitz_attention.reference import (
    toeplitz_attention_reference,
    toeplitz_logits_reference,
)

TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 2e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 2e-2,
}
"""Largest deviation from float64, relative to the largest entry or 1. No test widens it."""

BiasKind = Literal["none", "normal", "shared", "large", "steep", "window"]
GainKind = Literal["none", "normal", "shared", "negative", "zero", "past"]
PaddingKind = Literal["none", "some", "all"]

Results = dict[str, Tensor]
"""out, lse, dq, dk, dv, and dbias and dgain where there is such a vector."""


@dataclass(frozen=True)
class Case:
    """One shape with its options; `inputs` turns it into tensors."""

    batch: int = 2
    heads: int = 3
    n_q: int = 7
    n_k: int = 7
    d: int = 5
    bias: BiasKind = "normal"
    gain: GainKind = "normal"
    padding: PaddingKind = "none"
    causal: bool = False
    scale: float = 0.6
    seed: int = 0


@dataclass(frozen=True)
class Inputs:
    """The tensors of a case, and a gradient of the output."""

    q: Tensor
    k: Tensor
    v: Tensor
    bias: Tensor | None
    gain: Tensor | None
    key_padding: Tensor | None
    grad_out: Tensor
    causal: bool
    scale: float

    @property
    def operands(self) -> Operands:
        """What the forward pass takes."""
        return Operands(
            self.q, self.k, self.v, self.bias, self.gain, self.key_padding, self.causal,
            self.scale,
        )  # fmt: skip

    def to(self, dtype: torch.dtype, vectors: torch.dtype | None = None) -> "Inputs":
        """The same in another dtype; `vectors` is that of bias and gain, if different."""
        vectors = dtype if vectors is None else vectors
        return Inputs(
            self.q.to(dtype),
            self.k.to(dtype),
            self.v.to(dtype),
            None if self.bias is None else self.bias.to(vectors),
            None if self.gain is None else self.gain.to(vectors),
            self.key_padding,
            self.grad_out.to(dtype),
            self.causal,
            self.scale,
        )


def inputs(case: Case, dtype: torch.dtype = torch.float64) -> Inputs:
    """The tensors of a case; in every dtype the rounded numbers of float64."""
    random = torch.Generator().manual_seed(case.seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64)

    offsets = case.n_q + case.n_k - 1
    offset = torch.arange(offsets) - (case.n_k - 1)
    vector = normal(case.heads, offsets)
    bias = {
        "none": None,
        "normal": vector,
        "shared": vector[:1],
        "large": 30 * vector,
        # One key takes all the weight, whatever the products are.
        "steep": (1e4 * offset).expand(case.heads, -1).to(torch.float64),
        "window": vector.masked_fill(offset.abs() > 2, -math.inf),
    }[case.bias]
    vector = normal(case.heads, offsets)
    gain = {
        "none": None,
        "normal": vector,
        "shared": vector[:1],
        "negative": -vector.abs() - 0.1,
        "zero": torch.zeros_like(vector),
        "past": (offset > 0).to(torch.float64).expand(case.heads, -1),
    }[case.gain]
    padding = None
    if case.padding != "none":
        padding = torch.rand(case.batch, case.n_k, generator=random) < 0.4
        if case.padding == "all":
            padding[-1] = True
    return Inputs(
        normal(case.batch, case.heads, case.n_q, case.d),
        normal(case.batch, case.heads, case.n_k, case.d),
        normal(case.batch, case.heads, case.n_k, case.d),
        bias,
        gain,
        padding,
        normal(case.batch, case.heads, case.n_q, case.d),
        case.causal,
        case.scale,
    ).to(dtype)


def expected(given: Inputs) -> Results:
    """The results of the reference in float64 on these (perhaps rounded) numbers."""
    exact = given.to(torch.float64)
    names = {
        "q": exact.q,
        "k": exact.k,
        "v": exact.v,
        "bias": exact.bias,
        "gain": exact.gain,
    }
    leaves = {
        name: x.detach().clone().requires_grad_()
        for name, x in names.items()
        if x is not None
    }
    q, k, v, bias, gain = (leaves.get(name) for name in names)
    assert q is not None
    assert k is not None
    assert v is not None
    out = toeplitz_attention_reference(
        q, k, v, bias, gain,
        causal=exact.causal, scale=exact.scale, key_padding=exact.key_padding,
    )  # fmt: skip
    logits = toeplitz_logits_reference(
        q, k, bias, causal=exact.causal, scale=exact.scale, key_padding=exact.key_padding
    )
    gradients = torch.autograd.grad(out, list(leaves.values()), exact.grad_out)
    named = {f"d{name}": grad for name, grad in zip(leaves, gradients, strict=True)}
    return {"out": out.detach(), "lse": logits.detach().logsumexp(-1), **named}


def assert_agrees(actual: Results, wanted: Results, dtype: torch.dtype) -> None:
    """Compare all results with float64; infinities must be in the same places."""
    assert actual.keys() == wanted.keys()
    far: list[str] = []
    for name, want in wanted.items():
        got = actual[name].to(torch.float64)
        assert got.shape == want.shape, f"{name}: {got.shape} instead of {want.shape}"
        finite = want.isfinite()
        assert torch.equal(got[~finite], want[~finite]), f"{name}: other infinities"
        largest = max(1.0, float(want[finite].abs().amax())) if finite.any() else 1.0
        error = float((got - want)[finite].abs().amax()) / largest if finite.any() else 0.0
        if not error <= TOLERANCE[dtype]:  # also if it is NaN
            far.append(f"{name} is off by {error:.2e}")
    assert not far, f"{', '.join(far)}; {dtype} allows {TOLERANCE[dtype]:.0e}"


SHAPES = [
    Case(batch=1, heads=1, n_q=1, n_k=1, d=1),
    Case(batch=1, heads=2, n_q=2, n_k=2, d=3),
    Case(n_q=1, n_k=9),
    Case(n_q=9, n_k=1),
    Case(n_q=130, n_k=61, d=16),
    Case(n_q=61, n_k=130, d=16),
    Case(batch=1, n_q=128, n_k=128, d=8),
    Case(batch=3, heads=1, n_q=257, n_k=257, d=7),
]
"""n = 1, rectangles, and n at, below and above a multiple of 128."""

VARIANTS = [
    Case(bias="none", gain="none"),
    Case(bias="none", causal=True),
    Case(gain="none", causal=True),
    Case(bias="shared", gain="shared"),
    Case(gain="zero"),
    Case(gain="negative", causal=True),
    Case(gain="past"),
    Case(bias="steep"),
    Case(bias="window", n_q=11, n_k=6),
    Case(padding="some", causal=True),
    Case(padding="all"),
    Case(padding="all", causal=True, n_q=9, n_k=5, bias="none"),
    Case(causal=True, n_q=5, n_k=9, scale=-1.5),
]
"""Every option, on small shapes."""

EXPLICIT = SHAPES + VARIANTS

TINY = [
    Case(batch=1, heads=2, n_q=3, n_k=4, d=2),
    Case(batch=1, heads=2, n_q=4, n_k=3, d=2, causal=True, gain="negative"),
    Case(batch=2, heads=1, n_q=2, n_k=3, d=2, padding="all", bias="shared"),
]
"""With bias and gain, and small enough for finite differences."""


def cases(longest: int = 20) -> st.SearchStrategy[Case]:
    """Random shapes up to a length, with all options."""
    length = st.integers(1, longest)
    return st.builds(
        Case,
        batch=st.integers(1, 3),
        heads=st.integers(1, 3),
        n_q=length,
        n_k=length,
        d=st.integers(1, 9),
        bias=st.sampled_from(["none", "normal", "shared", "steep", "window"]),
        gain=st.sampled_from(["none", "normal", "shared", "negative", "zero", "past"]),
        padding=st.sampled_from(["none", "some", "all"]),
        causal=st.booleans(),
        scale=st.sampled_from([0.6, 1.0, -1.5, 0.0]),
        seed=st.integers(0, 2**16),
    )
