"""Inputs and expected results of attention with a bias and a gain for each pair."""

from dataclasses import dataclass
from typing import Any

import torch
from tests.ops.cases import Results
from tests.ops.operators import Function, Operator
from tests.ops.references import pairwise_attention_reference, pairwise_logits_reference
from torch import Tensor

from everyformer.ops import pairwise_attention
from everyformer.ops.pairwise_attention.operands import Incoming, Operands

NAMES = ("q", "k", "v", "bias", "gain")


@dataclass(frozen=True)
class Pairs:
    """A shape with its options: `bias` and `gain` name the axes that are not shared.

    "bhq" is a number for each sequence, head, query and key, "h" one for each head and key,
    and None means that there is none.
    """

    batch: int = 2
    heads: int = 3
    n_q: int = 7
    n_k: int = 7
    d: int = 16
    bias: str | None = "bhq"
    gain: str | None = "bhq"
    padding: bool = False
    causal: bool = False
    hidden: bool = False
    scale: float = 0.3
    dropout: float = 0.0

    def operands(self, dtype: torch.dtype = torch.float64) -> Operands:
        """Random numbers; with `hidden`, some of the bias are -inf, and one whole row."""
        random = torch.Generator().manual_seed(0)

        def normal(*shape: int) -> Tensor:
            made = torch.randn(*shape, generator=random, dtype=torch.float64)
            return made.to(dtype)

        def pairs(axes: str | None) -> Tensor | None:
            sizes = zip("bhq", (self.batch, self.heads, self.n_q), strict=True)
            shape = [1 if axes is None or a not in axes else size for a, size in sizes]
            return None if axes is None else normal(*shape, self.n_k)

        bias, gain = pairs(self.bias), pairs(self.gain)
        if bias is not None and self.hidden:
            bias[torch.rand(bias.shape, generator=random) < 0.3] = -torch.inf
            bias[0, 0, 0] = -torch.inf
        padding = None
        if self.padding:
            padding = torch.rand(self.batch, self.n_k, generator=random) < 0.4
            padding[-1] = True  # no keys at all
        q, k, v = (
            normal(self.batch, self.heads, n, self.d)
            for n in (self.n_q, self.n_k, self.n_k)
        )
        seed = torch.tensor([2**40 + 7]) if self.dropout else None
        return Operands(
            q, k, v, bias, gain, padding, seed, self.causal, self.scale, self.dropout
        )


def options(x: Operands) -> dict[str, Any]:
    """As the operator takes them."""
    named = {"causal": x.causal, "scale": x.scale, "key_padding": x.key_padding}
    return named | {"dropout": x.dropout, "seed": x.seed}


def upstream(x: Operands) -> Tensor:
    """A gradient of the output."""
    return x.q.detach().cos() + 0.1 * x.v.detach()[..., :1, :]


def wide(x: Operands) -> Operands:
    """In float64, on the CPU."""
    return Operands._make(
        (y.detach().cpu().double() if y.is_floating_point() else y.cpu())
        if isinstance(y, Tensor)
        else y
        for y in x
    )


def expected(x: Operands) -> Results:
    """The results of the reference in float64 on these (perhaps rounded) numbers."""
    exact = wide(x)
    leaves = [None if y is None else y.clone().requires_grad_() for y in exact[:5]]
    q, k, v, bias, gain = leaves
    assert q is not None
    assert k is not None
    assert v is not None
    out = pairwise_attention_reference(q, k, v, bias, gain, **options(exact))
    shown = {name: options(exact)[name] for name in ("causal", "scale", "key_padding")}
    logits = pairwise_logits_reference(q, k, bias, **shown)
    there = {f"d{name}": y for name, y in zip(NAMES, leaves, strict=True) if y is not None}
    given = upstream(x).cpu().double()
    gradients = torch.autograd.grad(out, list(there.values()), given)
    lse = logits.detach().logsumexp(-1)
    return {"out": out.detach(), "lse": lse} | dict(zip(there, gradients, strict=True))


def results(path: Any, x: Operands) -> Results:
    """Those of a module with `forward` and `backward`; the LSE as it has it."""
    with torch.no_grad():
        out, lse = path.forward(x)
        needs = x.bias is not None, x.gain is not None
        gradients = path.backward(x, Incoming(upstream(x), out, lse, *needs))
    names = ("dq", "dk", "dv", "dbias", "dgain")
    found = {"out": out, "lse": lse} | dict(zip(names, gradients, strict=True))
    return {name: y.cpu() for name, y in found.items() if y is not None}


def operator(case: Pairs) -> Operator:
    """The operator beside its reference."""
    x = case.operands()
    names = [name for name in NAMES if getattr(x, name) is not None]

    def calling(function: Any) -> Function:
        def called(*tensors: Tensor) -> Tensor:
            given: dict[str, Any] = dict(zip(names, tensors, strict=True))
            rest = {
                name: y.to(tensors[0].device) if isinstance(y, Tensor) else y
                for name, y in options(x).items()
            }
            return function(**given, **rest)

        return called

    tensors = tuple(getattr(x, name) for name in names)
    fast, plain = calling(pairwise_attention), calling(pairwise_attention_reference)
    return Operator(fast, plain, tensors)
