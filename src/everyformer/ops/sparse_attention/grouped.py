"""Forward and backward in plain torch, by groups of small dense problems.

Every piece is walked as groups of rectangles: r queries, c keys and a mask that hides pairs
which do not count. Patterns without structure have r = 1. Cost and memory follow the
number of pairs; nothing of size n x n is stored, but for short sequences (`Masked`). For
the CPU, float64 and large heads.
"""

import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from everyformer.ops.dropping import kept
from everyformer.ops.sparse_attention.operands import Incoming, Operands
from everyformer.ops.sparse_attention.pieces import (
    Masked,
    Piece,
)
from everyformer.ops.sparse_attention.rectangles import Rectangles, rectangles

STEP_NUMBERS = 2**22
"""Numbers that one step works on: 16 MB in float32."""


class _Problem:
    """The inputs in the working dtype, one matrix per (batch, head) pair, row n empty."""

    def __init__(self, x: Operands) -> None:
        q, k, v, key_padding, seed, _, scale, dropout = x
        self.dtype = torch.promote_types(q.dtype, torch.float32)
        self.batch, self.heads, self.n, self.d = q.shape
        self.pairs = self.batch * self.heads
        self.shape, self.seed, self.dropout = q.shape, seed, dropout
        self.q, self.k, self.v = self.rows(q) * scale, self.rows(k), self.rows(v)
        self.padded = None
        if key_padding is not None:
            padded = torch.nn.functional.pad(key_padding, (0, 1), value=True)
            self.padded = padded.repeat_interleave(self.heads, 0)  # [pairs, n + 1]

    def rows(self, x: Tensor) -> Float[Tensor, "pairs n_plus_1 d"]:
        """(b, h, n, d) as (pairs, n + 1, d) in the working dtype, the last row zero."""
        wide = x.to(self.dtype).reshape(self.pairs, self.n, -1)
        return torch.nn.functional.pad(wide, (0, 0, 0, 1))

    def steps(self, pieces: Sequence[Piece | Masked]) -> Iterator[tuple[slice, Rectangles]]:
        """Pairs of (batch, head), and rectangles; in a fixed order."""
        masked = any(isinstance(piece, Masked) for piece in pieces)
        width = max(self.d, self.n) if masked else self.d
        together = min(self.pairs, max(1, STEP_NUMBERS // (self.n * width)))
        room = max(1, STEP_NUMBERS // (together * self.d))
        for found in rectangles(pieces, self.n, room, self.q.device):
            for pair in range(0, self.pairs, together):
                yield slice(pair, min(pair + together, self.pairs)), found

    def logits(
        self, some: slice, found: Rectangles, q: Tensor, k: Tensor
    ) -> Float[Tensor, "p g r c"]:
        """q k^T, with -inf at pairs that do not count."""
        logits = q @ k.mT
        if found.hidden is not None:
            logits.masked_fill_(found.hidden, -math.inf)
        if self.padded is not None:
            hidden = self.padded[some][:, found.keys][:, :, None, :]
            logits.masked_fill_(hidden, -math.inf)
        return logits

    def kept(self, some: slice, found: Rectangles) -> Float[Tensor, "p g r c"] | None:
        """What weights are multiplied by, 0 or 1 / (1 - dropout); None if all are kept."""
        if self.seed is None or self.dropout == 0.0:
            return None
        pair = torch.arange(some.start, some.stop, device=self.q.device)
        pair = pair[:, None, None, None]
        queries, keys = found.queries[:, :, None], found.keys[:, None, :]
        places = (pair // self.heads, pair % self.heads, queries, keys)
        return kept(self.seed, *places, self.dropout, self.dtype)


def forward(
    x: Operands, pieces: Sequence[Piece | Masked]
) -> tuple[Float[Tensor, "b h n d"], Float[Tensor, "b h n"]]:
    """The output and the natural-log LSE of every query (float32, or float64 for float64).

    A query without keys has output 0 and LSE -inf.
    """
    problem = _Problem(x)
    acc = torch.zeros_like(problem.q)
    largest = acc.new_full((problem.pairs, problem.n + 1, 1), -math.inf)
    total = torch.zeros_like(largest)
    for some, found in problem.steps(pieces):
        rows, keys = found.queries, found.keys
        logits = problem.logits(
            some, found, problem.q[some][:, rows], problem.k[some][:, keys]
        )
        before = largest[some][:, rows]  # [p, g, r, 1]
        top = torch.maximum(before, logits.amax(-1, keepdim=True))
        safe = top.masked_fill(top == -math.inf, 0.0)
        weights = logits.sub_(safe).exp_()
        keep = (before - safe).exp_()
        total[some, rows] = total[some][:, rows] * keep + weights.sum(-1, keepdim=True)
        factor = problem.kept(some, found)
        if factor is not None:
            weights.mul_(factor)
        mixed = weights @ problem.v[some][:, keys]
        acc[some, rows] = acc[some][:, rows] * keep + mixed
        largest[some, rows] = top
    largest, total, acc = (y[:, : problem.n] for y in (largest, total, acc))
    lse = largest + total.log()
    out = acc / total.masked_fill(total == 0, 1.0)
    return out.reshape(x.q.shape).to(x.q.dtype), lse.reshape(x.q.shape[:-1])


def backward(
    x: Operands, incoming: Incoming, pieces: Sequence[Piece | Masked]
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of q, k and v: P = exp(S - LSE), dS = P (D dO V^T - dO . O).

    D is what dropping multiplies the weights by.
    """
    problem = _Problem(x)
    grads = problem.rows(incoming.grad_out)
    delta = (grads * problem.rows(incoming.out)).sum(-1, keepdim=True)
    # exp(S - inf) = 0, also for S = -inf: queries without keys get weights 0.
    total = problem.rows(incoming.lse[..., None])
    total = total.masked_fill(total == -math.inf, math.inf)
    total[:, -1] = math.inf
    # Tokens first: rows that are added up are then contiguous for all pairs together.
    shape = (problem.n + 1, problem.pairs, problem.d)
    dq, dk, dv = (problem.q.new_zeros(shape) for _ in range(3))
    for some, found in problem.steps(pieces):
        rows, keys = found.queries, found.keys
        q_, do = problem.q[some][:, rows], grads[some][:, rows]
        k_, v_ = problem.k[some][:, keys], problem.v[some][:, keys]
        weights = problem.logits(some, found, q_, k_).sub_(total[some][:, rows]).exp_()
        factor, ds = problem.kept(some, found), do @ v_.mT
        if factor is not None:
            ds.mul_(factor)
        ds.sub_(delta[some][:, rows]).mul_(weights)
        if factor is not None:
            weights.mul_(factor)
        _add(dq, some, rows, ds @ k_)
        _add(dk, some, keys, ds.mT @ q_)
        _add(dv, some, keys, weights.mT @ do)
    dq, dk, dv = (
        y[: problem.n].transpose(0, 1).reshape(problem.shape) for y in (dq, dk, dv)
    )
    return (dq * x.scale).to(x.q.dtype), dk.to(x.k.dtype), dv.to(x.v.dtype)


def _add(
    total: Float[Tensor, "n_plus_1 pairs d"],
    some: slice,
    tokens: Int[Tensor, "g c"],
    terms: Float[Tensor, "p g c d"],
) -> None:
    """Add each term to the row of its token."""
    flat = terms.flatten(1, 2).transpose(0, 1)
    total[:, some].index_add_(0, tokens.flatten(), flat.contiguous())
