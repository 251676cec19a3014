"""Forward and backward of disentangled attention on the CPU, 128 queries at a time.

The products with the buckets are gathered for the queries of a step only, and their
gradients scattered back, so nothing of size n_q x n_k is ever stored. Without autograd.
"""

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from everyformer.ops.disentangled_attention.operands import Incoming, Operands
from everyformer.ops.disentangled_attention.reference import bucket_matrix
from everyformer.ops.dropping import kept

CHUNK = 128
"""Queries per step."""

STEP_ENTRIES = 2**20
"""Weights per step, if heads are short enough to be taken together (4 MB in float32)."""


class _Step(NamedTuple):
    """These (batch, head) pairs and these queries; the bucket of each query and key."""

    pairs: slice
    rows: slice
    buckets: Tensor

    def by_query(self, like: Tensor) -> Tensor:
        """The buckets, [pairs, rows, n_k], of as many pairs as in `like`."""
        return self.buckets.expand(like.shape[0], -1, -1)

    def by_key(self, like: Tensor) -> Tensor:
        """The buckets, [pairs, n_k, rows], of as many pairs as in `like`."""
        return self.buckets.mT.expand(like.shape[0], -1, -1)


class _Problem:
    """The inputs, one matrix per (batch, head) pair; q, k, v in the working dtype."""

    def __init__(self, x: Operands) -> None:
        self.given = x
        self.dtype = torch.promote_types(x.q.dtype, torch.float32)
        self.batch, self.heads, self.n_q = x.q.shape[:3]
        self.n_k = x.k.shape[-2]
        self.pairs = self.batch * self.heads
        self.q, self.k, self.v = map(self.rows, x[:3])
        self.c2p = None if x.c2p is None else x.c2p.flatten(0, 1)
        self.p2c = None if x.p2c is None else x.p2c.flatten(0, 1)
        self.padding = None
        if x.key_padding is not None:
            self.padding = x.key_padding.repeat_interleave(self.heads, 0)[:, None]

    def rows(self, x: Tensor) -> Tensor:
        """(b, h, n, d) as (pairs, n, d) in the working dtype."""
        return x.to(self.dtype).reshape(self.pairs, *x.shape[2:])

    def steps(self) -> Iterator[_Step]:
        """All steps in a fixed order, so that sums have the same bits on every run."""
        together = max(1, STEP_ENTRIES // (min(CHUNK, self.n_q) * self.n_k))
        for row in range(0, self.n_q, CHUNK):
            rows = range(row, min(row + CHUNK, self.n_q))
            buckets = bucket_matrix(self.given.bucket_of, rows, self.n_k)
            for pair in range(0, self.pairs, together):
                pairs = slice(pair, min(pair + together, self.pairs))
                yield _Step(pairs, slice(rows.start, rows.stop), buckets)

    def logits(self, step: _Step) -> Tensor:
        """scale (q k^T + C + P), -inf where a key does not count."""
        found = torch.bmm(self.q[step.pairs, step.rows], self.k[step.pairs].mT)
        if self.c2p is not None:
            found += self.c2p[step.pairs, step.rows].gather(-1, step.by_query(found))
        if self.p2c is not None:
            found += self.p2c[step.pairs].gather(-1, step.by_key(found)).mT
        found *= self.given.scale
        if self.padding is not None:
            found.masked_fill_(self.padding[step.pairs], -math.inf)
        return found

    def drop(self, step: _Step, *weights: Tensor) -> None:
        """Multiply by 0 where a weight is dropped, by 1 / (1 - dropout) elsewhere."""
        x = self.given
        if x.dropout == 0.0 or x.seed is None:
            return
        pairs = torch.arange(self.pairs)[step.pairs, None, None]
        queries = torch.arange(self.n_q)[step.rows, None]
        factor = kept(
            x.seed, pairs // self.heads, pairs % self.heads, queries,
            torch.arange(self.n_k), x.dropout, self.dtype,
        )  # fmt: skip
        for y in weights:
            y *= factor


def forward(x: Operands) -> tuple[Tensor, Tensor]:
    """The output, and the logarithm of each query's sum of exponentials."""
    problem = _Problem(x)
    out = problem.q.new_empty(problem.q.shape)
    lse = problem.q.new_empty(problem.pairs, problem.n_q, 1)
    for step in problem.steps():
        weights = problem.logits(step)
        largest = weights.amax(-1, keepdim=True)
        largest.masked_fill_(largest == -math.inf, 0.0)
        total = weights.sub_(largest).exp_().sum(-1, keepdim=True)
        here = step.pairs, step.rows
        lse[here] = largest + total.log()
        problem.drop(step, weights)
        mixed = torch.bmm(weights, problem.v[step.pairs])
        out[here] = mixed / total.masked_fill_(total == 0, 1.0)
    return out.view(x.q.shape).to(x.q.dtype), lse.view(x.q.shape[:-1])


def backward(
    x: Operands, incoming: Incoming
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients of q, k, v, c2p and p2c; None for the last two if not needed.

    P = exp(S - LSE), dS = scale P ⊙ (D ⊙ dO Vᵀ - Δ) with Δ = rowsum(dO ⊙ O), where D is
    what weights are multiplied by if some are dropped; then
    dc2p[i, b] is the sum of dS_ij over the keys j whose offset i - j is in bucket b.
    """
    problem = _Problem(x)
    grads = problem.rows(incoming.grad_out)
    delta = (grads * problem.rows(incoming.out)).sum(-1, keepdim=True)
    # exp(S - inf) = 0, also for S = -inf: queries without keys get weights 0.
    lse = problem.rows(incoming.lse)[..., None]
    lse = lse.masked_fill(lse == -math.inf, math.inf)
    dq, dk, dv = (y.new_zeros(y.shape) for y in (problem.q, problem.k, problem.v))
    dc2p = _sums(problem.c2p, incoming.needs_c2p, problem.dtype)
    dp2c = _sums(problem.p2c, incoming.needs_p2c, problem.dtype)
    for step in problem.steps():
        here = step.pairs, step.rows
        weights = problem.logits(step).sub_(lse[here]).exp_()
        ds = torch.bmm(grads[here], problem.v[step.pairs].mT)
        used = weights if x.dropout == 0.0 else weights.clone()
        problem.drop(step, used, ds)
        dv[step.pairs].baddbmm_(used.mT, grads[here])
        ds = ds.sub_(delta[here]).mul_(weights).mul_(x.scale)
        dk[step.pairs].baddbmm_(ds.mT, problem.q[here])
        dq[here] = torch.bmm(ds, problem.k[step.pairs])
        if dc2p is not None:
            dc2p[here].scatter_add_(-1, step.by_query(ds), ds)
        if dp2c is not None:
            dp2c[step.pairs].scatter_add_(-1, step.by_key(ds), ds.mT)
    return (
        _like(dq, x.q),
        _like(dk, x.k),
        _like(dv, x.v),
        None if dc2p is None or x.c2p is None else _like(dc2p, x.c2p),
        None if dp2c is None or x.p2c is None else _like(dp2c, x.p2c),
    )


def _sums(like: Tensor | None, needed: bool, dtype: torch.dtype) -> Tensor | None:
    """Zeros to add to."""
    if like is None or not needed:
        return None
    return like.new_zeros(like.shape, dtype=dtype)


def _like(gradient: Tensor, x: Tensor) -> Tensor:
    return gradient.view(x.shape).to(x.dtype)
