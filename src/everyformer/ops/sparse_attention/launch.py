"""Run the Triton kernels of a pattern: piece after piece."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from everyformer.ops.captured import outlasting
from everyformer.ops.launching import Tiles, addressable, on
from everyformer.ops.sparse_attention import tuning
from everyformer.ops.sparse_attention.operands import Incoming, Operands
from everyformer.ops.sparse_attention.passes import (
    Backward,
    Forward,
    Inputs,
    Upstream,
    edge_backward,
    edge_forward,
    star_backward,
    star_forward,
    tile_backward,
    tile_forward,
)
from everyformer.ops.sparse_attention.pieces import (
    Band,
    BlockLists,
    Edges,
    Listed,
    Piece,
    RingAndRelay,
)
from everyformer.ops.sparse_attention.problem import Problem
from everyformer.ops.sparse_attention.walks import (
    EdgeWalk,
    StarWalk,
    TileWalk,
    edge_walk,
    star_walk,
    tile_walk,
)

MOST_PROBLEMS = 64
"""Shapes whose launches a pattern keeps; the oldest are forgotten."""


class Walks:
    """All pieces of a pattern on one device, with what is prepared for them.

    A walk depends on the pattern alone, its launches also on the shapes of the tensors.
    Both are made when they are first needed.
    """

    def __init__(self, pieces: tuple[Piece, ...], n: int, device: torch.device) -> None:
        self.pieces, self.n, self.device = pieces, n, device
        self._tiles: dict[tuple[int, str, Tiles], TileWalk] = {}
        self._edges: dict[tuple[int, str], EdgeWalk] = {}
        self._forward: dict[Problem, list[Forward]] = {}
        self._backward: dict[Problem, list[Backward]] = {}

    def forward(self, p: Problem) -> list[Forward]:
        """The forward pass of each piece."""
        if p not in self._forward:
            p.check()
            _keep(self._forward, p, [self._piece_forward(p, k) for k in self._numbers])
        return self._forward[p]

    def backward(self, p: Problem) -> list[Backward]:
        """The backward pass of each piece."""
        if p not in self._backward:
            _keep(self._backward, p, [self._piece_backward(p, k) for k in self._numbers])
        return self._backward[p]

    @property
    def _numbers(self) -> range:
        return range(len(self.pieces))

    def _piece_forward(self, p: Problem, number: int) -> Forward:
        piece, again = self.pieces[number], number > 0
        if isinstance(piece, RingAndRelay):
            return star_forward(p, self._star_walk(p, piece))
        if isinstance(piece, Edges):
            return edge_forward(p, self._edge_walk(number, piece, "queries"), again=again)
        sizes = tuning.tuning_for(p.dtype, p.shape[3]).forward
        walk = self._tile_walk(number, piece, "queries", sizes)
        return tile_forward(p, walk, sizes, own=_own(piece), again=again)

    def _piece_backward(self, p: Problem, number: int) -> Backward:
        piece, again = self.pieces[number], number > 0
        if isinstance(piece, RingAndRelay):
            return star_backward(p, self._star_walk(p, piece))
        if isinstance(piece, Edges):
            by_query, by_key = (
                self._edge_walk(number, piece, owner) for owner in ("queries", "keys")
            )
            return edge_backward(p, by_query, by_key, again=again)
        sizes = tuning.tuning_for(p.dtype, p.shape[3])
        queries = self._tile_walk(number, piece, "queries", sizes.dq), sizes.dq
        keys = self._tile_walk(number, piece, "keys", sizes.dkv), sizes.dkv
        return tile_backward(p, queries, keys, own=_own(piece), again=again)

    def _star_walk(self, p: Problem, piece: RingAndRelay) -> StarWalk:
        ring = tuning.ring_for(p.dtype, p.shape[3])
        return star_walk(piece, ring["T"], self.device)

    def _tile_walk(
        self, number: int, piece: Band | Listed | BlockLists, owner: str, sizes: Tiles
    ) -> TileWalk:
        """Of a piece with structure."""
        key = (number, owner, sizes)
        if key not in self._tiles:
            shape = (sizes.queries, sizes.keys)
            self._tiles[key] = tile_walk(piece, self.n, owner, shape, self.device)
        return self._tiles[key]

    def _edge_walk(self, number: int, piece: Edges, owner: str) -> EdgeWalk:
        """Of a piece without."""
        key = (number, owner)
        if key not in self._edges:
            self._edges[key] = edge_walk(piece, owner, number > 0, self.device)
        return self._edges[key]


def _keep(kept: dict[Problem, Any], p: Problem, made: Any) -> None:
    if len(kept) >= MOST_PROBLEMS:
        del kept[next(iter(kept))]
    kept[p] = made


def _own(piece: Piece) -> bool:
    return isinstance(piece, Listed) and piece.own


def forward(x: Operands, walks: Walks) -> tuple[Tensor, Tensor]:
    """The output, and the base-2 logarithm of each row's sum of exponentials."""
    x = _addressable(x)
    q, p = x.q, Problem.of(x)
    several = len(walks.pieces) > 1
    dtype = torch.float32 if several else q.dtype  # sums of pieces are not rounded
    out = torch.empty(q.shape, dtype=dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    inputs = _inputs(x)
    with on(q.device):
        for run in outlasting(walks.forward(p), q):
            run(inputs, out, lse)
    return out.to(q.dtype) if several else out, lse


def backward(
    x: Operands, incoming: Incoming, walks: Walks
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, which share memory."""
    dq, dk, dv = joined_backward(x, incoming, walks).unbind()
    return dq, dk, dv


def joined_backward(
    x: Operands, incoming: Incoming, walks: Walks
) -> Float[Tensor, "3 b h n d"]:
    """Gradients of q, k and v, one after the other."""
    x, (grad_out, out, lse) = _addressable(x), incoming
    grad_out, out, lse = addressable(grad_out), out.contiguous(), lse.contiguous()
    q, p = x.q, Problem.of(x, grad_out)
    several = len(walks.pieces) > 1
    dtype = torch.float32 if several else q.dtype
    gradients = torch.empty(3, *q.shape, dtype=dtype, device=q.device)
    # The kernel of the star has no second pass that would read it.
    alone = not several and isinstance(walks.pieces[0], RingAndRelay)
    delta = lse if alone else torch.empty_like(lse)
    up = Upstream(grad_out, out, lse, delta, gradients.unbind())
    inputs = _inputs(x)
    with on(q.device):
        for run in outlasting(walks.backward(p), q):
            run(inputs, up)
    return gradients.to(q.dtype) if several else gradients


def _addressable(x: Operands) -> Operands:
    return x._replace(q=addressable(x.q), k=addressable(x.k), v=addressable(x.v))


def _inputs(x: Operands) -> Inputs:
    q, padding = x.q, x.key_padding
    padded = q if padding is None else padding.to(torch.int8).contiguous()
    return q, x.k, x.v, padded, q if x.seed is None else x.seed
