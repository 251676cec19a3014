"""Inputs and expected results of disentangled attention."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from tests.ops.operators import Function, Operator
from tests.ops.references import disentangled_attention_reference
from torch import Tensor

from everyformer.ops import disentangled_attention
from everyformer.ops.disentangled_attention.operands import Incoming, Operands

Kind = Literal["logarithmic", "clipped", "wide", "one"]
Results = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """One shape with its options; `drawn` turns it into tensors."""

    batch: int
    heads: int
    n_q: int
    n_k: int
    d: int
    kind: Kind = "logarithmic"
    terms: Literal["both", "c2p", "p2c"] = "both"
    padding: bool = False
    scale: float = 0.4
    dropout: float = 0.0


class Inputs(NamedTuple):
    """The tensors of a case, and a gradient of the output."""

    q: Tensor
    k: Tensor
    v: Tensor
    c2p: Tensor | None
    p2c: Tensor | None
    index: Tensor  # pyright: ignore[reportIncompatibleMethodOverride]
    key_padding: Tensor | None
    seed: Tensor | None
    scale: float
    dropout: float
    grad_out: Tensor
    buckets: int


def index_of(case: Case) -> tuple[Tensor, int]:
    """The bucket of each offset, and their number; one bucket at each end stays empty."""
    offset = torch.arange(1 - case.n_k, case.n_q)
    match case.kind:
        case "logarithmic":  # 0 to 4 alone, then ever wider, and clipped
            far = offset.abs().clamp(min=4, max=20)
            bucket = offset.sign() * torch.where(
                offset.abs() <= 4, offset.abs(), 4 + (3 * (far / 4).log()).ceil().long()
            )
            return bucket + 10, 21
        case "clipped":
            return offset.clamp(-6, 6) + 7, 15
        case "wide":  # wider than a tile
            return offset.add(500) // 27, 40
        case "one":
            return offset * 0 + 2, 4


def drawn(case: Case, dtype: torch.dtype) -> Inputs:
    """The tensors of a case; in every dtype the rounded numbers of float64."""
    random = torch.Generator().manual_seed(0)

    def normal(n: int, size: int) -> Tensor:
        shape = (case.batch, case.heads, n, size)
        return torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype)

    index, buckets = index_of(case)
    padding = None
    if case.padding:
        padding = torch.rand(case.batch, case.n_k, generator=random) < 0.4
        padding[-1] = True
    c2p, p2c = normal(case.n_q, buckets), normal(case.n_k, buckets)
    return Inputs(
        normal(case.n_q, case.d),
        normal(case.n_k, case.d),
        normal(case.n_k, case.d),
        None if case.terms == "p2c" else c2p,
        None if case.terms == "c2p" else p2c,
        index,
        padding,
        torch.tensor([7**20]) if case.dropout > 0 else None,
        case.scale,
        case.dropout,
        normal(case.n_q, case.d),
        buckets,
    )


NAMES = ("q", "k", "v", "c2p", "p2c")


def expected(x: Inputs) -> Results:
    """Output, LSE and all gradients, of the reference in float64."""
    leaves = {
        name: y.detach().double().requires_grad_()
        for name, y in zip(NAMES, x[:5], strict=True)
        if y is not None
    }
    q, k, v = (leaves[name] for name in NAMES[:3])
    terms = leaves.get("c2p"), leaves.get("p2c")
    options: dict[str, Any] = {
        "scale": x.scale, "key_padding": x.key_padding,
        "dropout": x.dropout, "seed": x.seed,
    }  # fmt: skip
    out = disentangled_attention_reference(q, k, v, *terms, x.index, **options)
    gradients = torch.autograd.grad(out, list(leaves.values()), x.grad_out.double())
    found = {f"d{name}": y for name, y in zip(leaves, gradients, strict=True)}
    # One value 1 and no maximum: the logarithm of the sum of exponentials, in float64.
    rows = torch.arange(q.shape[2])[:, None] - torch.arange(k.shape[2]) + k.shape[2] - 1
    places = x.index[rows].expand(*q.shape[:3], -1)
    logits = q @ k.mT
    if terms[0] is not None:
        logits = logits + terms[0].gather(-1, places)
    if terms[1] is not None:
        logits = logits + terms[1].gather(-1, places.mT).mT
    logits = logits * x.scale
    if x.key_padding is not None:
        logits = logits.masked_fill(x.key_padding[:, None, None], -torch.inf)
    return {"out": out.detach(), "lse": logits.detach().logsumexp(-1), **found}


def results(code: Any, x: Inputs, device: str = "cpu") -> Results:
    """Those of the chunked path or of the kernels."""
    given = Operands._make(y.to(device) if isinstance(y, Tensor) else y for y in x[:10])
    needs = x.c2p is not None, x.p2c is not None
    with torch.no_grad():
        out, lse = code.forward(given)
        incoming = Incoming(x.grad_out.to(device), out, lse, *needs)
        gradients = code.backward(given, incoming)
    found = {"out": out, "lse": lse}
    found |= {f"d{name}": y for name, y in zip(NAMES, gradients, strict=True)}
    return {name: y.cpu() for name, y in found.items() if y is not None}


def agreement(found: Results, wanted: Results) -> float:
    """The largest difference, relative to the largest entry or 1; inf if shapes differ."""
    assert found.keys() == wanted.keys()
    worst = 0.0
    for name, want in wanted.items():
        got = found[name].double()
        assert got.shape == want.shape, name
        finite = want.isfinite()
        assert torch.equal(got[~finite], want[~finite]), name
        if finite.any():
            size = max(1.0, float(want[finite].abs().max()))
            worst = max(worst, float((got - want)[finite].abs().max()) / size)
        assert worst == worst, f"{name} is not a number"
    return worst


def operator(case: Case) -> Operator:
    """With the terms that the case has."""
    x = drawn(case, torch.float64)
    names = [name for name in ("c2p", "p2c") if getattr(x, name) is not None]

    def calling(function: Any) -> Function:
        def called(q: Tensor, k: Tensor, v: Tensor, *terms: Tensor) -> Tensor:
            given = dict(zip(names, terms, strict=True))
            padding = None if x.key_padding is None else x.key_padding.to(q.device)
            return function(
                q, k, v, given.get("c2p"), given.get("p2c"), x.index.to(q.device),
                scale=x.scale, key_padding=padding, dropout=x.dropout,
                seed=None if x.seed is None else x.seed.to(q.device),
            )  # fmt: skip

        return called

    fast, plain = calling(disentangled_attention), calling(disentangled_attention_reference)
    return Operator(fast, plain, tuple(y for y in x[:5] if y is not None))
