"""Forward and backward in plain torch, 128 queries at a time, without autograd.

Of B and C and their gradients one part is read or added to at a time, so that nothing of
size n_q x n_k is ever made which the caller did not give or ask for. The derivation is in
README.md.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from everyformer.ops.dropping import kept
from everyformer.ops.pairwise_attention.operands import Gradients, Incoming, Operands

CHUNK = 128
"""Queries per step."""

STEP_ENTRIES = 2**20
"""Weights per step, if heads are short enough to be taken together (4 MB in float32)."""


class _Step(NamedTuple):
    """One step: these sequences, heads, queries and keys."""

    batch: slice
    heads: slice
    rows: slice
    keys: slice

    def of(self, pairs: Tensor) -> Tensor:
        """The part of a bias, a gain or a gradient; an axis of 1 is shared by all steps."""
        whole = slice(None)
        kept = zip(self, pairs.shape, strict=True)
        return pairs[tuple(part if size > 1 else whole for part, size in kept)]

    @property
    def queries(self) -> tuple[slice, slice, slice]:
        """The part of q, of the output and of the LSE."""
        return self.batch, self.heads, self.rows

    @property
    def seen(self) -> tuple[slice, slice, slice]:
        """The part of k and v."""
        return self.batch, self.heads, self.keys


class _Problem:
    """The inputs in the working dtype, q scaled."""

    def __init__(self, x: Operands) -> None:
        self.given = x
        self.dtype = torch.promote_types(x.q.dtype, torch.float32)
        self.q = x.q.to(self.dtype) * x.scale
        self.k, self.v = x.k.to(self.dtype), x.v.to(self.dtype)

    def steps(self) -> Iterator[_Step]:
        """All steps in a fixed order, so that sums have the same bits on every run."""
        b, h, n_q, n_k = self.given.sizes
        together = max(1, STEP_ENTRIES // (min(CHUNK, n_q) * n_k))
        heads, batch = min(h, together), max(1, together // h)
        for z in range(0, b, batch):
            for head in range(0, h, heads):
                for row in range(0, n_q, CHUNK):
                    end = min(row + CHUNK, n_q)
                    keys = min(end, n_k) if self.given.causal else n_k
                    yield _Step(
                        slice(z, z + batch),
                        slice(head, head + heads),
                        slice(row, end),
                        slice(0, keys),
                    )

    def logits(self, step: _Step) -> Tensor:
        """scale q k^T + B of a step, -inf where a query does not see a key."""
        x = self.given
        logits = self.q[step.queries] @ self.k[step.seen].mT
        if x.bias is not None:
            logits += step.of(x.bias).to(self.dtype)
        if x.causal:
            future = torch.ones_like(logits[0, 0], dtype=torch.bool)
            logits.masked_fill_(future.triu(1 + step.rows.start), -math.inf)
        if x.key_padding is not None:
            hidden = x.key_padding[step.batch, None, None, step.keys]
            logits.masked_fill_(hidden, -math.inf)
        return logits

    def gain(self, step: _Step) -> Tensor | None:
        """C of a step."""
        x = self.given
        return None if x.gain is None else step.of(x.gain).to(self.dtype)

    def dropped(self, step: _Step) -> Tensor | None:
        """D of a step: the weights that `toeplitz_attention` drops; None if none is."""
        x = self.given
        if x.seed is None or x.dropout == 0.0:
            return None
        batches, heads, queries, keys = (
            torch.arange(size, device=x.q.device)[some]
            for some, size in zip(step, x.sizes, strict=True)
        )
        places = batches[:, None, None, None], heads[:, None, None], queries[:, None], keys
        return kept(x.seed, *places, x.dropout, self.dtype)


def forward(x: Operands) -> tuple[Float[Tensor, "b h n_q d"], Float[Tensor, "b h n_q"]]:
    """The output and the natural-log LSE of every query (float32, or float64 for float64).

    A query without keys has output 0 and LSE -inf.
    """
    problem = _Problem(x)
    out = problem.q.new_empty(x.q.shape)
    lse = problem.q.new_empty(x.q.shape[:3])
    for step in problem.steps():
        weights = problem.logits(step)
        largest = weights.amax(-1, keepdim=True)
        largest.masked_fill_(largest == -math.inf, 0.0)
        total = weights.sub_(largest).exp_().sum(-1, keepdim=True)
        lse[step.queries] = (largest + total.log())[..., 0]
        for factor in (problem.gain(step), problem.dropped(step)):
            if factor is not None:
                weights *= factor
        mixed = weights @ problem.v[step.seen]
        out[step.queries] = mixed.div_(total.masked_fill_(total == 0, 1.0))
    return out.to(x.q.dtype), lse


def backward(x: Operands, incoming: Incoming) -> Gradients:
    """The gradients of q, k, v, bias and gain, each in the shape of its input.

    P = exp(S - LSE), G = D ⊙ dO Vᵀ, Δ = rowsum(dO ⊙ O), dS = P ⊙ (C ⊙ G - Δ); O and LSE
    are those of `forward`, D is 1 unless weights are dropped. The last two are None if not
    needed, or without such a matrix.
    """
    problem = _Problem(x)
    grads = incoming.grad_out.to(problem.dtype)
    delta = (grads * incoming.out.to(problem.dtype)).sum(-1, keepdim=True)
    # exp(S - inf) = 0, also for S = -inf: queries without keys get weights 0.
    lse = incoming.lse.masked_fill(incoming.lse == -math.inf, math.inf)[..., None]
    dq = problem.q.new_empty(x.q.shape)
    dk, dv = (problem.q.new_zeros(x.k.shape) for _ in range(2))
    needs = (x.bias, incoming.needs_bias), (x.gain, incoming.needs_gain)
    dbias, dgain = (
        dq.new_zeros(pairs.shape) if pairs is not None and needed else None
        for pairs, needed in needs
    )
    for step in problem.steps():
        grad = grads[step.queries]
        weights = problem.logits(step).sub_(lse[step.queries]).exp_()  # P
        ds = (grad @ problem.v[step.seen].mT).mul_(weights)  # P G
        gain, dropped = problem.gain(step), problem.dropped(step)
        if dropped is not None:
            ds *= dropped
        _add(dgain, step, ds)
        if gain is not None:
            ds *= gain
        ds.addcmul_(weights, delta[step.queries], value=-1)
        _add(dbias, step, ds)
        for factor in (gain, dropped):
            if factor is not None:
                weights *= factor
        dv[step.seen] += weights.mT @ grad
        dk[step.seen] += ds.mT @ problem.q[step.queries]
        dq[step.queries] = ds @ problem.k[step.seen]
    dq *= x.scale
    given = zip((dq, dk, dv, dbias, dgain), x[:5], strict=True)
    found = [None if g is None or y is None else g.to(y.dtype) for g, y in given]
    return tuple(found)  # pyright: ignore[reportReturnType]


def _add(total: Tensor | None, step: _Step, found: Tensor) -> None:
    """Add a part to a gradient, summed over what its matrix shares."""
    if total is not None:
        part = step.of(total)
        part += found.sum_to_size(part.shape)
