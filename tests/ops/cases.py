"""Inputs, expected results and the tolerance table that all tests of `ops` share."""

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from hypothesis import strategies as st
from tests.ops.references import toeplitz_attention_reference, toeplitz_logits_reference
from torch import Tensor

from everyformer.ops.toeplitz_attention.operands import Operands

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
MaskKind = Literal["none", "bool", "rows", "keys", "heads", "added", "column", "lowest"]

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
    group: int = 1
    """Heads of queries for each head of keys."""
    offset: int = 0
    mask: MaskKind = "none"
    sequences: tuple[int, ...] = ()
    """Their lengths."""
    dropout: float = 0.0


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
    offset: int = 0
    attn_mask: Tensor | None = None
    sequences: Tensor | None = None
    dropout: float = 0.0
    seed: Tensor | None = None

    @property
    def operands(self) -> Operands:
        """What the forward pass takes."""
        return Operands(
            self.q, self.k, self.v, self.bias, self.gain, self.key_padding, self.attn_mask,
            self.sequences, self.seed, self.causal, self.scale, self.offset, self.dropout,
        )  # fmt: skip

    def options(self, device: str = "cpu") -> dict[str, Any]:
        """All that is given by name."""
        names = (
            "causal", "scale", "offset", "dropout", "key_padding", "attn_mask", "sequences",
            "seed",
        )  # fmt: skip
        values = ((name, getattr(self, name)) for name in names)
        return {name: x.to(device) if isinstance(x, Tensor) else x for name, x in values}

    def to(self, dtype: torch.dtype, vectors: torch.dtype | None = None) -> "Inputs":
        """The same in another dtype; `vectors` is that of bias and gain, if different."""
        vectors = dtype if vectors is None else vectors
        return replace(
            self,
            q=self.q.to(dtype),
            k=self.k.to(dtype),
            v=self.v.to(dtype),
            bias=None if self.bias is None else self.bias.to(vectors),
            gain=None if self.gain is None else self.gain.to(vectors),
            grad_out=self.grad_out.to(dtype),
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
    keys = case.batch, case.heads // case.group, case.n_k, case.d
    x = Inputs(
        normal(case.batch, case.heads, case.n_q, case.d),
        normal(*keys),
        normal(*keys),
        bias,
        gain,
        padding,
        normal(case.batch, case.heads, case.n_q, case.d),
        case.causal,
        case.scale,
        case.offset,
    )
    begins = torch.tensor((0, *case.sequences), dtype=torch.int32).cumsum(0)
    x = replace(
        x,
        attn_mask=mask_of(case, random),
        sequences=begins.to(torch.int32) if case.sequences else None,
        dropout=case.dropout,
        seed=torch.tensor([case.seed - 3]) * 2**40 if case.dropout else None,
    )
    return x.to(dtype)


def mask_of(case: Case, random: torch.Generator) -> Tensor | None:
    """Of every shape that is broadcast, some with rows in which nothing counts."""
    b, h, n_q, n_k = case.batch, case.heads, case.n_q, case.n_k

    def some(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=random) < 0.6

    def numbers(*shape: int) -> Tensor:
        found = torch.randn(*shape, generator=random)
        return found.masked_fill(~some(*shape), -math.inf)

    match case.mask:
        case "bool":
            return some(b, h, n_k, n_q).mT
        case "rows":
            return some(n_q, 1)
        case "keys":
            return some(b, 1, 1, n_k)
        case "heads":
            return numbers(h, 1, n_k)
        case "added":
            return numbers(b, 1, n_q, 2 * n_k)[..., ::2]
        case "column":
            return numbers(b, h, n_q, 1)
        case "lowest":
            lowest = torch.finfo(torch.float32).min
            return numbers(n_q, n_k).nan_to_num(neginf=lowest)
        case _:
            return None


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
    options = exact.options()
    out = toeplitz_attention_reference(q, k, v, bias, gain, **options)
    del options["dropout"], options["seed"]
    logits = toeplitz_logits_reference(q, k, bias, **options)
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

MODES = [
    Case(n_q=3, n_k=9, causal=True, offset=6),
    Case(n_q=1, n_k=9, causal=True, offset=8, heads=4, group=2, mask="keys"),
    Case(n_q=6, n_k=9, causal=True, offset=-2, gain="none"),
    Case(n_q=6, n_k=4, causal=True, offset=-9),
    Case(n_q=5, n_k=3, causal=True, offset=2**40, padding="some"),
    Case(n_q=130, n_k=150, d=3, causal=True, offset=20),
    Case(heads=4, group=2),
    Case(heads=6, group=3, causal=True, bias="shared", padding="some"),
    Case(heads=4, group=4, n_q=9, n_k=5, bias="none", gain="none"),
    *(
        Case(mask=mask, n_q=6, n_k=8)
        for mask in ("bool", "rows", "keys", "heads", "added", "column", "lowest")
    ),
    Case(mask="heads", heads=4, group=2, n_q=140, n_k=7, causal=True, offset=-120),
    Case(mask="bool", bias="none", gain="none", padding="all", causal=True),
    Case(batch=1, sequences=(3, 4)),
    Case(batch=1, sequences=(1, 0, 5, 1), causal=True, mask="bool", heads=4, group=2),
    Case(batch=1, n_q=300, n_k=300, heads=1, d=2, sequences=(20, 150, 130), gain="none"),
    Case(dropout=0.3),
    Case(dropout=0.5, gain="none", bias="none", causal=True, offset=2, seed=9),
    Case(dropout=0.2, heads=4, group=2, mask="added", padding="some", n_q=5, n_k=8),
    Case(dropout=0.4, batch=1, sequences=(5, 2), seed=7),
    Case(dropout=1.0),
]
"""Offsets, groups, masks, packed sequences, dropped weights: alone and together."""

EXPLICIT = SHAPES + VARIANTS + MODES

TINY = [
    Case(batch=1, heads=2, n_q=3, n_k=4, d=2),
    Case(batch=1, heads=2, n_q=4, n_k=3, d=2, causal=True, gain="negative"),
    Case(batch=2, heads=1, n_q=2, n_k=3, d=2, padding="all", bias="shared"),
    Case(batch=1, heads=2, n_q=2, n_k=4, d=2, group=2, causal=True, offset=2, mask="added"),
    Case(
        batch=1,
        heads=2,
        n_q=4,
        n_k=4,
        d=2,
        group=2,
        sequences=(3, 1),
        dropout=0.3,
        mask="bool",
        seed=2,
    ),
]
"""With bias and gain, and small enough for finite differences."""


@st.composite
def cases(draw: st.DrawFn, longest: int = 20) -> Case:
    """Random shapes up to a length, with all options; sequences fill the length."""
    n_q, n_k = draw(st.integers(1, longest)), draw(st.integers(1, longest))
    batch, group = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 3]))
    offset = draw(st.one_of(st.just(0), st.integers(-longest, longest)))
    sequences: tuple[int, ...] = ()
    if draw(st.integers(0, 3)) == 0:
        batch, n_k, offset = 1, n_q, 0
        middle = draw(st.integers(0, n_q))
        sequences = (middle, n_q - middle)
    return Case(
        batch=batch,
        heads=group * draw(st.integers(1, 2)),
        n_q=n_q,
        n_k=n_k,
        d=draw(st.integers(1, 9)),
        bias=draw(st.sampled_from(["none", "normal", "shared", "steep", "window"])),
        gain=draw(
            st.sampled_from(["none", "normal", "shared", "negative", "zero", "past"])
        ),
        padding=draw(st.sampled_from(["none", "some", "all"])),
        causal=draw(st.booleans()),
        scale=draw(st.sampled_from([0.6, 1.0, -1.5, 0.0])),
        seed=draw(st.integers(0, 2**16)),
        group=group,
        offset=offset,
        mask=draw(
            st.sampled_from(
                [
                    "none",
                    "none",
                    "bool",
                    "rows",
                    "keys",
                    "heads",
                    "added",
                    "column",
                    "lowest",
                ]
            )
        ),
        sequences=sequences,
        dropout=draw(st.sampled_from([0.0, 0.0, 0.3, 1.0])),
    )
