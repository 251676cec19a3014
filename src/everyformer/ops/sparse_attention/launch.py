"""Launch the Triton kernels: piece after piece, each going on where the last one ended."""

from dataclasses import dataclass
from typing import Any

import torch
import triton
from torch import Tensor

from everyformer.errors import InputError
from everyformer.ops.launching import launch
from everyformer.ops.sparse_attention.kernels import edges as edges_jitted
from everyformer.ops.sparse_attention.kernels import joining as joining_jitted
from everyformer.ops.sparse_attention.kernels import star as star_jitted
from everyformer.ops.sparse_attention.kernels import tiles as tiles_jitted
from everyformer.ops.sparse_attention.pieces import Edges, Listed, Piece, RingAndRelay
from everyformer.ops.sparse_attention.walks import (
    EdgeWalk,
    Slots,
    StarWalk,
    TileWalk,
    edge_walk,
    star_walk,
    tile_walk,
)
from everyformer.ops.toeplitz_attention.kernels import LOG2_E
from everyformer.ops.toeplitz_attention.launch import Tiles

tiles: Any = tiles_jitted  # their calls have a grid and options that no signature shows
edges: Any = edges_jitted
joining: Any = joining_jitted
star: Any = star_jitted


@dataclass(frozen=True)
class Tuning:
    """Tile sizes of all kernels, owners first. Measured on an H200."""

    forward: Tiles
    dq: Tiles
    dkv: Tiles


HALF = {
    64: Tuning(
        forward=Tiles(64, 64, 4, 3), dq=Tiles(64, 64, 4, 3), dkv=Tiles(64, 32, 4, 4)
    ),
    128: Tuning(
        forward=Tiles(64, 64, 4, 3), dq=Tiles(64, 64, 4, 3), dkv=Tiles(64, 32, 4, 3)
    ),
}
"""For bf16 and fp16, by padded head size; smaller heads use the first."""

FULL = Tuning(forward=Tiles(64, 32, 4, 2), dq=Tiles(32, 32, 4, 2), dkv=Tiles(32, 32, 4, 2))
"""For float32, whose tiles are twice as large and whose products use no tensor cores."""

STRANDS = {"R": 16, "E": 4, "num_warps": 4}
"""Strands of a program, and partners of each that it reads at a time."""

RING = {"M": 32, "num_warps": 4}
"""Tokens of the ring that a program has."""

WIDEST_UNROLLED = 2
"""Neighbours on either side for which the loop over them is unrolled."""

MOST_PAIRS = 65535 // 3
"""A grid has at most 65,535 programs in its second direction; three gradients use it."""

JOINED_AT_ONCE = 128
"""Slots of one sum, at most."""


def tuning_for(q: Tensor) -> Tuning:
    """The tile sizes for a dtype and a head size."""
    if q.dtype == torch.float32:
        return FULL
    return HALF[64] if q.shape[-1] <= 64 else HALF[128]


class Walks:
    """The walks of all pieces of a pattern on one device, made when first needed."""

    def __init__(self, pieces: tuple[Piece, ...], n: int, device: torch.device) -> None:
        """Of these pieces."""
        self.pieces, self.n, self.device = pieces, n, device
        self._tiles: dict[tuple[int, str, int, int], TileWalk] = {}
        self._edges: dict[tuple[int, str], EdgeWalk] = {}
        self._stars: dict[int, StarWalk] = {}

    def tiles(self, number: int, owner: str, sizes: Tiles) -> TileWalk:
        """Of a piece with structure."""
        key = (number, owner, sizes.queries, sizes.keys)
        if key not in self._tiles:
            piece = self.pieces[number]
            if isinstance(piece, Edges | RingAndRelay):
                raise TypeError(f"{type(piece).__name__} has no tiles")
            self._tiles[key] = tile_walk(piece, self.n, owner, key[2:], self.device)
        return self._tiles[key]

    def edges(self, number: int, owner: str) -> EdgeWalk:
        """Of a piece without."""
        key = (number, owner)
        if key not in self._edges:
            piece = self.pieces[number]
            if not isinstance(piece, Edges):
                raise TypeError(f"{type(piece).__name__} has no list of edges")
            self._edges[key] = edge_walk(piece, owner, number > 0, self.device)
        return self._edges[key]

    def star(self, number: int, tile: int) -> StarWalk:
        """Of a ring and its relay."""
        if number not in self._stars:
            piece = self.pieces[number]
            if not isinstance(piece, RingAndRelay):
                raise TypeError(f"{type(piece).__name__} has no relay")
            self._stars[number] = star_walk(piece, tile, self.device)
        return self._stars[number]


@dataclass(frozen=True)
class Problem:
    """The inputs as kernels want them, and what follows from them.

    Attributes:
        q, k, v: Shape (B, H, n, D), last axis contiguous.
        padded: 1 where a key does not count, int8, or q as a placeholder.
        options: What all kernels are specialised on.
    """

    q: Tensor
    k: Tensor
    v: Tensor
    padded: Tensor
    scale: float
    options: dict[str, Any]

    @classmethod
    def of(
        cls, q: Tensor, k: Tensor, v: Tensor, scale: float, key_padding: Tensor | None
    ) -> "Problem":
        """Make last axes contiguous, and collect the options.

        Raises:
            InputError: If there are more sequences and heads than a GPU can launch.
        """
        if q.shape[0] * q.shape[1] > MOST_PAIRS:
            msg = (
                f"{q.shape[0]} sequences with {q.shape[1]} heads make "
                f"{q.shape[0] * q.shape[1]} pairs, but one call takes {MOST_PAIRS}. Split "
                "the batch."
            )
            raise InputError(msg)
        q, k, v = (_addressable(x) for x in (q, k, v))
        D = q.shape[-1]
        return cls(
            q=q,
            k=k,
            v=v,
            padded=q if key_padding is None else key_padding.to(torch.int8).contiguous(),
            scale=scale,
            options={
                "D": D,
                "BLOCK_D": max(16, triton.next_power_of_2(D)),
                "HAS_PAD": key_padding is not None,
            },
        )

    @property
    def tile_options(self) -> dict[str, Any]:
        """Those of the tile kernels."""
        precision = "ieee" if self.q.dtype == torch.float32 else "tf32"
        return self.options | {"PRECISION": precision}

    @property
    def pairs(self) -> int:
        """Batch times heads."""
        return self.q.shape[0] * self.q.shape[1]

    def strides(self, *tensors: Tensor) -> list[int]:
        """Strides of batch, head and token of each tensor, and of padding by batch."""
        found = [stride for x in tensors for stride in x.stride()[:3]]
        return [*found, self.padded.stride(0) if self.options["HAS_PAD"] else 0]

    def buffer(self, slots: Slots | None, width: int, several: int = 1) -> Tensor:
        """Memory for the slots of several sums, float32; q as a placeholder for none."""
        if slots is None:
            return self.q
        shape = (several, self.pairs, slots.rows, width)
        return torch.empty(shape, dtype=torch.float32, device=self.q.device)


def _two(buffer: Tensor, slots: Slots | None) -> tuple[Tensor, ...]:
    """The halves of a buffer for two sums."""
    return (buffer, buffer) if slots is None else buffer.unbind()


def _addressable(x: Tensor) -> Tensor:
    """With a contiguous last axis, and all of a head within 2^31 numbers."""
    far = x.shape[2] * x.stride(2) >= 2**31
    return x.contiguous() if x.stride(-1) != 1 or far else x


def forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    walks: Walks,
    scale: float,
    key_padding: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """The output, and the base-2 logarithm of each row's sum of exponentials."""
    p = Problem.of(q, k, v, scale, key_padding)
    several = len(walks.pieces) > 1
    dtype = torch.float32 if several else q.dtype  # sums of pieces are not rounded
    out = torch.empty(q.shape, dtype=dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    for number, piece in enumerate(walks.pieces):
        again = number > 0
        if isinstance(piece, RingAndRelay):
            _forward_star(p, walks.star(number, RING["M"]), out, lse)
        elif isinstance(piece, Edges):
            _forward_edges(p, walks.edges(number, "queries"), out, lse, again)
        else:
            sizes = tuning_for(p.q).forward
            walk = walks.tiles(number, "queries", sizes)
            _forward_tiles(p, walk, sizes, _own(piece), out, lse, again)
    return out.to(q.dtype), lse


def _own(piece: Piece) -> bool:
    return isinstance(piece, Listed) and piece.own


def _forward_tiles(
    p: Problem,
    walk: TileWalk,
    sizes: Tiles,
    own: bool,
    out: Tensor,
    lse: Tensor,
    again: bool,
) -> None:
    B, H, n, D = p.q.shape
    part, part_lse = p.buffer(walk.slots, D), p.buffer(walk.slots, 1)
    rows = 0 if walk.slots is None else walk.slots.rows
    launch(
        tiles._forward_kernel, (walk.programs, B * H),
        p.q, p.k, p.v, p.padded, *walk.lists, out, lse, part, part_lse,
        *p.strides(p.q, p.k, p.v), rows, H, n, p.scale * LOG2_E, *walk.numbers,
        OWN=own, AGAIN=again, num_warps=sizes.warps, num_stages=sizes.stages,
        **walk.options, **p.tile_options,
    )  # fmt: skip
    _join_softmax(p, walk.slots, part, part_lse, out, lse, again)


def _forward_edges(
    p: Problem, walk: EdgeWalk, out: Tensor, lse: Tensor, again: bool
) -> None:
    B, H, n, D = p.q.shape
    part, part_lse = p.buffer(walk.slots, D), p.buffer(walk.slots, 1)
    rows = 0 if walk.slots is None else walk.slots.rows
    strands = walk.strands.shape[0]
    launch(
        edges._forward_kernel, (triton.cdiv(strands, STRANDS["R"]), B * H),
        p.q, p.k, p.v, p.padded, walk.strands, walk.partners, out, lse, part, part_lse,
        *p.strides(p.q, p.k, p.v), strands, rows, H, n, p.scale * LOG2_E,
        AGAIN=again, SLOTS=walk.slots is not None, **STRANDS, **p.options,
    )  # fmt: skip
    _join_softmax(p, walk.slots, part, part_lse, out, lse, again)


def _forward_star(p: Problem, walk: StarWalk, out: Tensor, lse: Tensor) -> None:
    B, H, n, D = p.q.shape
    part, part_lse = p.buffer(walk.slots, D), p.buffer(walk.slots, 1)
    launch(
        star._forward_kernel, (walk.slots.rows, B * H),
        p.q, p.k, p.v, p.padded, out, lse, part, part_lse,
        *p.strides(p.q, p.k, p.v), walk.slots.rows, H, n, walk.width, p.scale * LOG2_E,
        NARROW=_narrow(walk), **RING, **p.options,
    )  # fmt: skip
    _join_softmax(p, walk.slots, part, part_lse, out, lse, again=False)


def _narrow(walk: StarWalk) -> int:
    return walk.width if walk.width <= WIDEST_UNROLLED else 0


def _join_softmax(
    p: Problem,
    slots: Slots | None,
    part: Tensor,
    part_lse: Tensor,
    out: Tensor,
    lse: Tensor,
    again: bool,
) -> None:
    if slots is None:
        return
    launch(
        joining._softmax_kernel, (slots.joins.shape[0], p.pairs),
        part, part_lse, slots.joins, out, lse, slots.stride, slots.rows, p.q.shape[2],
        AGAIN=again, T=_at_once(slots), D=p.options["D"], BLOCK_D=p.options["BLOCK_D"],
    )  # fmt: skip


def _join_sums(
    p: Problem, slots: Slots | None, part: Tensor, totals: tuple[Tensor, ...], again: bool
) -> None:
    """Add the slots of one or several gradients up, which lie one after the other."""
    if slots is None:
        return
    launch(
        joining._sum_kernel, (slots.joins.shape[0], len(totals) * p.pairs),
        part, slots.joins, totals[0], slots.stride, slots.rows, p.q.shape[2],
        AGAIN=again, T=_at_once(slots), D=p.options["D"], BLOCK_D=p.options["BLOCK_D"],
    )  # fmt: skip


def _at_once(slots: Slots) -> int:
    return min(JOINED_AT_ONCE, triton.next_power_of_2(slots.most))


def backward(
    grad_out: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    walks: Walks,
    scale: float,
    key_padding: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    p = Problem.of(q, k, v, scale, key_padding)
    step = Backward.of(p, _addressable(grad_out), out, lse, len(walks.pieces) > 1)
    for number, piece in enumerate(walks.pieces):
        again = number > 0
        if isinstance(piece, RingAndRelay):
            step.star(walks.star(number, RING["M"]))
            continue
        if isinstance(piece, Edges):
            step.dq_edges(walks.edges(number, "queries"), again)
            step.dkv_edges(walks.edges(number, "keys"), again)
            continue
        tuning, own = tuning_for(p.q), _own(piece)
        step.dq_tiles(walks.tiles(number, "queries", tuning.dq), tuning.dq, own, again)
        walk = walks.tiles(number, "keys", tuning.dkv)
        step.dkv_tiles(walk, tuning.dkv, again or own)
    dq, dk, dv = (x.to(q.dtype) for x in step.gradients)
    return dq, dk, dv


@dataclass(frozen=True)
class Backward:
    """The backward pass: its tensors, and one method for each kernel.

    dQ of the first piece comes first: it fills in delta, which all others read. The
    gradients of q, k and v lie one after the other.
    """

    p: Problem
    grad_out: Tensor
    out: Tensor
    lse: Tensor
    delta: Tensor
    gradients: tuple[Tensor, ...]

    @classmethod
    def of(
        cls, p: Problem, grad_out: Tensor, out: Tensor, lse: Tensor, several: bool
    ) -> "Backward":
        """With memory for the gradients."""
        dtype = torch.float32 if several else p.q.dtype
        device = p.q.device
        gradients = torch.empty(3, *p.q.shape, dtype=dtype, device=device).unbind()
        delta = torch.empty(p.q.shape[:3], dtype=torch.float32, device=device)
        return cls(p, grad_out, out.contiguous(), lse, delta, gradients)

    @property
    def scalars(self) -> tuple[int, int, float, float]:
        """H, n, the scale of the scores in base 2, and that of gradients."""
        p = self.p
        return p.q.shape[1], p.q.shape[2], p.scale * LOG2_E, p.scale

    def dq_tiles(self, walk: TileWalk, sizes: Tiles, own: bool, again: bool) -> None:
        """dQ by tiles of queries; with `own`, dK and dV of own keys."""
        p = self.p
        part = p.buffer(walk.slots, p.options["D"])
        rows = 0 if walk.slots is None else walk.slots.rows
        launch(
            tiles._dq_kernel, (walk.programs, p.pairs),
            p.q, p.k, p.v, p.padded, *walk.lists, self.grad_out, self.out, self.lse,
            self.delta, *self.gradients, part,
            *p.strides(p.q, p.k, p.v, self.grad_out), rows, *self.scalars, *walk.numbers,
            OWN=own, AGAIN=again, num_warps=sizes.warps, num_stages=sizes.stages,
            **walk.options, **p.tile_options,
        )  # fmt: skip
        _join_sums(p, walk.slots, part, self.gradients[:1], again)

    def dkv_tiles(self, walk: TileWalk, sizes: Tiles, again: bool) -> None:
        """dK and dV by tiles of keys."""
        p = self.p
        parts = p.buffer(walk.slots, p.options["D"], several=2)
        rows = 0 if walk.slots is None else walk.slots.rows
        launch(
            tiles._dkv_kernel, (walk.programs, p.pairs),
            p.q, p.k, p.v, p.padded, *walk.lists, self.grad_out, self.lse, self.delta,
            *self.gradients[1:], *_two(parts, walk.slots),
            *p.strides(p.q, p.k, p.v, self.grad_out), rows, *self.scalars, *walk.numbers,
            AGAIN=again, num_warps=sizes.warps, num_stages=sizes.stages,
            **walk.options, **p.tile_options,
        )  # fmt: skip
        _join_sums(p, walk.slots, parts, self.gradients[1:], again)

    def dq_edges(self, walk: EdgeWalk, again: bool) -> None:
        """dQ by strands of queries."""
        p = self.p
        part = p.buffer(walk.slots, p.options["D"])
        rows = 0 if walk.slots is None else walk.slots.rows
        strands = walk.strands.shape[0]
        launch(
            edges._dq_kernel, (triton.cdiv(strands, STRANDS["R"]), p.pairs),
            p.q, p.k, p.v, p.padded, walk.strands, walk.partners, self.grad_out, self.out,
            self.lse, self.delta, self.gradients[0], part,
            *p.strides(p.q, p.k, p.v, self.grad_out), strands, rows, *self.scalars,
            AGAIN=again, SLOTS=walk.slots is not None, **STRANDS, **p.options,
        )  # fmt: skip
        _join_sums(p, walk.slots, part, self.gradients[:1], again)

    def dkv_edges(self, walk: EdgeWalk, again: bool) -> None:
        """dK and dV by strands of keys."""
        p = self.p
        parts = p.buffer(walk.slots, p.options["D"], several=2)
        rows = 0 if walk.slots is None else walk.slots.rows
        strands = walk.strands.shape[0]
        launch(
            edges._dkv_kernel, (triton.cdiv(strands, STRANDS["R"]), p.pairs),
            p.q, p.k, p.v, p.padded, walk.strands, walk.partners, self.grad_out, self.lse,
            self.delta, *self.gradients[1:], *_two(parts, walk.slots),
            *p.strides(p.q, p.k, p.v, self.grad_out), strands, rows, *self.scalars,
            AGAIN=again, SLOTS=walk.slots is not None, **STRANDS, **p.options,
        )  # fmt: skip
        _join_sums(p, walk.slots, parts, self.gradients[1:], again)

    def star(self, walk: StarWalk) -> None:
        """All three by tiles of the ring."""
        p = self.p
        H, n, scale, back_scale = self.scalars
        parts = p.buffer(walk.slots, p.options["D"], several=3)
        launch(
            star._backward_kernel, (walk.slots.rows, p.pairs),
            p.q, p.k, p.v, p.padded, self.grad_out, self.out, self.lse, *self.gradients,
            parts, *p.strides(p.q, p.k, p.v, self.grad_out),
            walk.slots.rows, H, n, walk.width, scale, back_scale,
            NARROW=_narrow(walk), **RING, **p.options,
        )  # fmt: skip
        _join_sums(p, walk.slots, parts, self.gradients, again=False)
