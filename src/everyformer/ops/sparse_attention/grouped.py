"""Forward and backward in plain torch, by groups of small dense problems.

Every piece is walked as groups of rectangles: r queries, c keys and a mask that hides pairs
which do not count. Patterns without structure have r = 1. Cost and memory follow the
number of pairs; nothing of size n x n is stored, but for short sequences (`Masked`). For
the CPU, float64 and large heads.
"""

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from everyformer.ops.dropping import kept
from everyformer.ops.sparse_attention.operands import Incoming, Operands
from everyformer.ops.sparse_attention.pieces import (
    Band,
    BlockLists,
    Edges,
    Listed,
    Masked,
    Outside,
    Piece,
    RingAndRelay,
)
from everyformer.patterns import Rows

ROWS = 128
"""Queries of a rectangle, at most."""

STEP_NUMBERS = 2**22
"""Numbers that one step works on: 16 MB in float32."""


class Rectangles(NamedTuple):
    """Several rectangles of one shape; index n stands for nobody.

    Attributes:
        queries: Tokens of the rows; a token is in one rectangle of a piece at most.
        keys: Tokens of the columns.
        hidden: True where a pair does not count; None where all do.
    """

    queries: Int[Tensor, "g r"]
    keys: Int[Tensor, "g c"]
    hidden: Bool[Tensor, "g r c"] | None


def rectangles(
    pieces: Sequence[Piece | Masked], n: int, room: int, device: torch.device
) -> Iterator[Rectangles]:
    """All pairs of the pieces, each once, at most `room` pairs at a time where possible."""
    for piece in pieces:
        match piece:
            case Band():
                yield from _of_band(piece, n, room, device)
            case Listed():
                yield from _of_lists(piece, n, room, device)
            case BlockLists():
                yield from _of_blocks(piece, n, room, device)
            case Edges() | RingAndRelay():
                yield from _of_edges(piece.rows, room, device)
            case Masked():
                yield _of_mask(piece.rows, device)


def _of_band(band: Band, n: int, room: int, device: torch.device) -> Iterator[Rectangles]:
    count = band.count(n)
    left, right = min(band.left, count - 1), min(band.right, count - 1)
    r = min(ROWS, count)
    c = min(r + left + right, count) if r == count else r + left + right
    firsts = torch.arange(0, count, r, device=device)
    together = max(1, room // (r * c))
    number = torch.arange(band.classes * len(firsts), device=device)
    for chosen in number.split(together):
        origin = chosen // len(firsts) * band.shift
        first = firsts[chosen % len(firsts)]
        size = (n - origin + band.step - 1).div(band.step, rounding_mode="floor")
        size = size.clamp(max=band.limit)[:, None]
        i = first[:, None] + torch.arange(r, device=device)  # [g, r], places in a class
        start = torch.zeros_like(first) if c == count else first - left
        j = start[:, None] + torch.arange(c, device=device)
        here, there = i < size, (j >= 0) & (j < size)
        gap = j[:, None, :] - i[:, :, None]
        hidden = ~there[:, None, :] | (gap < -left) | (gap > right)
        queries = torch.where(here, origin[:, None] + band.step * i, n)
        keys = torch.where(there, origin[:, None] + band.step * j, n)
        yield Rectangles(queries, keys, hidden | _left_out(band.outside, queries, keys))


def _of_lists(
    piece: Listed, n: int, room: int, device: torch.device
) -> Iterator[Rectangles]:
    everybody = torch.arange(n, device=device)

    def tokens(listed: np.ndarray | None) -> Tensor:
        return everybody if listed is None else torch.tensor(listed, device=device).long()

    queries, keys = tokens(piece.queries), tokens(piece.keys)
    for some in queries.split(max(1, room // max(len(keys), 1))):
        if len(keys):
            hidden = _left_out(piece.outside, some[None], keys[None])
            yield Rectangles(some[None], keys[None], hidden)
    if piece.own:
        for some in queries.split(room):
            yield Rectangles(some[:, None], some[:, None], None)


def _of_blocks(
    piece: BlockLists, n: int, room: int, device: torch.device
) -> Iterator[Rectangles]:
    block = piece.block
    inside = torch.arange(block, device=device)
    for rows, heard in _by_count(piece.lists, device, exact=True):
        together = max(1, room // (block * block * heard.shape[1]))
        for some, lists in zip(rows.split(together), heard.split(together), strict=True):
            queries = some[:, None] * block + inside
            keys = (lists[:, :, None] * block + inside).flatten(1)
            hidden = (keys >= n)[:, None, :].expand(-1, block, -1)
            yield Rectangles(queries.clamp(max=n), keys.clamp(max=n), hidden)


def _of_edges(rows: Rows, room: int, device: torch.device) -> Iterator[Rectangles]:
    n = rows.n
    for some, heard in _by_count(rows, device, exact=False):
        together = max(1, room // heard.shape[1])
        for queries, keys in zip(some.split(together), heard.split(together), strict=True):
            yield Rectangles(queries[:, None], keys, (keys == n)[:, None, :])


def _of_mask(rows: Rows, device: torch.device) -> Rectangles:
    everybody = torch.arange(rows.n, device=device)[None]
    hidden = torch.ones(1, rows.n, rows.n, dtype=torch.bool)
    hidden[
        0, torch.as_tensor(rows.listeners()), torch.as_tensor(rows.indices.copy()).long()
    ] = False
    return Rectangles(everybody, everybody, hidden.to(device))


def _by_count(
    rows: Rows, device: torch.device, *, exact: bool
) -> Iterator[tuple[Int[Tensor, " g"], Int[Tensor, "g c"]]]:
    """Rows of about the same length together, filled up with n; not the empty ones.

    Lengths differ by less than a half, so that less than half of the room is wasted.
    """
    counts = rows.counts
    sizes = counts if exact else _rounded_up(counts)
    for size in np.unique(sizes[counts > 0]):
        chosen = np.flatnonzero((sizes == size) & (counts > 0))
        place = np.arange(size)
        at = rows.indptr[chosen][:, None] + np.minimum(place, counts[chosen][:, None] - 1)
        heard = np.where(place < counts[chosen][:, None], rows.indices[at], rows.n)
        yield (
            torch.tensor(chosen, device=device),
            torch.tensor(heard, device=device).long(),
        )


def _rounded_up(counts: np.ndarray) -> np.ndarray:
    """To 1, 2, 3, 4, 6, 8, 12, 16, 24, ..: powers of two and the middle between two."""
    power = 2 ** np.ceil(np.log2(np.maximum(counts, 1))).astype(np.int64)
    middle = power * 3 // 4
    return np.where(counts <= middle, np.maximum(middle, 1), power)


def _left_out(outside: Outside, queries: Tensor, keys: Tensor) -> Tensor:
    query, key = queries[:, :, None], keys[:, None, :]
    found = torch.zeros_like(query + key, dtype=torch.bool)
    if outside.gap is not None:
        found |= (key - query >= -outside.gap[0]) & (key - query <= outside.gap[1])
    if outside.segment is not None:
        found |= query // outside.segment == key // outside.segment
    return found


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
