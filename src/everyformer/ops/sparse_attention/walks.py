"""How a kernel walks a piece: its programs, its lists, and where long sums are cut.

Queries own in the forward pass and for dQ; keys own for dK and dV, and walk the same pairs
turned round. A walk depends on the pattern alone and is made once for each device.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from everyformer.ops.sparse_attention.pieces import (
    Band,
    BlockLists,
    Edges,
    Listed,
    RingAndRelay,
    transposed,
)
from everyformer.patterns import Rows

LONGEST_CHUNK = 1024
"""Listed partners of one program."""

LONGEST_LIST = 16
"""Blocks of one program."""

LONGEST_STRAND = 128
"""Listed pairs of one strand."""

SMALLEST_TILE = 16
"""That a tensor core takes."""


@dataclass(frozen=True)
class Slots:
    """Where the parts of long sums lie.

    Attributes:
        rows: Rows of the buffer, for one head.
        joins: For every long sum its token, its first row and the number of rows.
        stride: Rows between two parts of a sum.
        most: Parts of the longest sum.
    """

    rows: int
    joins: Tensor
    stride: int
    most: int

    @classmethod
    def of(cls, rows: int, joins: np.ndarray, stride: int, device: torch.device) -> "Slots":
        """On a device."""
        return cls(rows, _ints(joins, device), stride, int(joins[:, 2].max()))


@dataclass(frozen=True)
class TileWalk:
    """The walk of a tile kernel.

    Attributes:
        programs: For one head.
        lists: Listed queries, listed keys, lists of blocks, items; or placeholders.
        numbers: The integers of the kernel, in its order.
        options: What the kernel is specialised on.
        slots: None if every sum is short.
    """

    programs: int
    lists: tuple[Tensor, Tensor, Tensor, Tensor]
    numbers: tuple[int, ...]
    options: dict[str, Any]
    slots: Slots | None


@dataclass(frozen=True)
class EdgeWalk:
    """The walk of an edge kernel.

    Attributes:
        strands: Owner, first pair, end, and slot or -1.
        partners: The partners of all pairs, owner by owner.
        slots: None if every sum is short.
    """

    strands: Tensor
    partners: Tensor
    slots: Slots | None

    @property
    def lists(self) -> tuple[Tensor, Tensor]:
        """As the kernels take them."""
        return self.strands, self.partners


@dataclass(frozen=True)
class StarWalk:
    """The walk of the kernel for stars: one slot for each tile of the ring."""

    width: int
    slots: Slots


def star_walk(piece: RingAndRelay, rows: int, device: torch.device) -> StarWalk:
    """Tiles of the ring with their neighbours, and the relay as the one long sum."""
    ring = piece.n - 1
    count = -(-ring // (rows - 2 * piece.width))
    slots = Slots.of(count, np.array([[ring, 0, count]]), 1, device)
    return StarWalk(piece.width, slots)


def tile_walk(
    piece: Band | Listed | BlockLists,
    n: int,
    owner: str,
    tiles: tuple[int, int],
    device: torch.device,
) -> TileWalk:
    """How tiles of `owner` ("queries" or "keys") meet their partners."""
    if isinstance(piece, Band):
        return _band_walk(piece, n, owner, tiles, device)
    if isinstance(piece, Listed):
        return _listed_walk(piece, n, owner, tiles, device)
    return _block_walk(piece, n, owner, tiles, device)


def _tile(largest: int, count: int) -> int:
    """A power of two, not much larger than what there is."""
    return min(largest, max(SMALLEST_TILE, 1 << (count - 1).bit_length()))


def _ints(numbers: Any, device: torch.device) -> Tensor:
    return torch.tensor(np.asarray(numbers, dtype=np.int32), device=device)


def _band_walk(
    piece: Band, n: int, owner: str, tiles: tuple[int, int], device: torch.device
) -> TileWalk:
    band = piece if owner == "queries" else piece.transposed()
    count = band.count(n)
    M, N = (_tile(size, count) for size in tiles)
    per_class = -(-count // M)
    nothing = _ints([0], device)
    window = band.left < count - 1 or band.right < count - 1
    outside, numbers = _outside(band)
    return TileWalk(
        programs=band.classes * per_class,
        lists=(nothing, nothing, nothing, nothing),
        numbers=(
            band.shift, band.step, band.limit, n, n, min(band.left, n),
            min(band.right, n), *numbers, per_class, n,
        ),
        options={
            "M": M, "N": N, "BLOCK": 1, "SPAN": 1, "VISIT": 0, "LIST_QUERIES": False,
            "LIST_KEYS": False, "WINDOW": window, **outside, "SLOTS": False,
        },
        slots=None,
    )  # fmt: skip


def _outside(
    piece: Band | Listed, owner: str = "queries"
) -> tuple[dict[str, bool], tuple[int, int, int]]:
    """What the kernel is told of the pairs that are left out."""
    outside = piece.outside if owner == "queries" else piece.outside.transposed()
    gap, segment = outside.gap, outside.segment
    before, after = gap or (0, 0)
    told = {
        "GAP": gap is not None,
        "SEGMENT": segment is not None,
        "PLAIN": gap is None and segment is None,
    }
    return told, (before, after, segment or 1)


def _listed_walk(
    piece: Listed, n: int, owner: str, tiles: tuple[int, int], device: torch.device
) -> TileWalk:
    nothing = _ints([0], device)
    both = (piece.queries, piece.keys)
    queries, keys = (nothing if x is None else _ints(x, device) for x in both)
    sizes = [n if x is None else len(x) for x in both]
    tokens = piece.queries
    if owner == "keys":
        sizes.reverse()
        tokens = piece.keys
    told, numbers = _outside(piece, owner)
    owners, partners = sizes
    M, N = _tile(tiles[0], owners), _tile(tiles[1], partners)
    count = -(-owners // M)
    chunks = -(-partners // LONGEST_CHUNK)
    slots = None
    if tokens is None or chunks == 1:  # n owners make enough programs
        chunks = 1
    else:
        joins = np.stack([tokens, np.arange(owners), np.full(owners, chunks)], axis=1)
        slots = Slots.of(chunks * count * M, joins, count * M, device)
    items = _past_items(piece, n, owner, (M, count), chunks)
    return TileWalk(
        programs=chunks * count,
        lists=(queries, keys, nothing, nothing if items is None else _ints(items, device)),
        numbers=(
            0, 1, n, owners, partners, n, n, *numbers, count,
            partners if chunks == 1 else LONGEST_CHUNK,
        ),
        options={
            "M": M, "N": N, "BLOCK": 1, "SPAN": 1, "VISIT": 1 if items is None else 3,
            "LIST_QUERIES": piece.queries is not None, "LIST_KEYS": piece.keys is not None,
            "WINDOW": False, **told, "SLOTS": slots is not None,
        },
        slots=slots,
    )  # fmt: skip


def _past_items(
    piece: Listed, n: int, owner: str, tiles: tuple[int, int], chunks: int
) -> np.ndarray | None:
    """For every program its first partner and their end, if keys come before queries.

    Only keys with key < query - before count. Of ascending partners those of a tile are
    keys up to its last query, or queries from its first key on.
    """
    gap = piece.outside.gap
    lists = [np.arange(n) if x is None else x for x in (piece.queries, piece.keys)]
    ascending = all((np.diff(x) > 0).all() for x in lists)
    if gap is None or gap[1] < n or not ascending:
        return None
    owners, partners = lists if owner == "queries" else reversed(lists)
    M, count = tiles
    firsts = np.arange(count) * M
    low, high = np.zeros(count, dtype=np.int64), np.full(count, len(partners))
    if owner == "queries":
        last = owners[np.minimum(firsts + M, len(owners)) - 1]
        high = np.searchsorted(partners, last - gap[0], "left")
    else:
        low = np.searchsorted(partners, owners[firsts] + gap[0], "right")
    chunk = len(partners) if chunks == 1 else LONGEST_CHUNK
    begins = np.arange(chunks)[:, None] * chunk
    low, high = np.maximum(low, begins), np.minimum(high, begins + chunk)
    return np.stack([low.ravel(), np.maximum(low, high).ravel()], axis=1)


def _block_walk(
    piece: BlockLists, n: int, owner: str, tiles: tuple[int, int], device: torch.device
) -> TileWalk:
    lists = piece.lists if owner == "queries" else transposed(piece.lists)
    block = piece.block
    M, N = (_tile(size, block) for size in tiles)
    span = -(-block // N) * N
    whole = block % N == 0 and n % block == 0
    items: list[tuple[int, int, int, int, int]] = []
    joins: list[np.ndarray] = []
    used = 0
    for number in range(lists.n):
        start, stop = int(lists.indptr[number]), int(lists.indptr[number + 1])
        cuts = [*range(start, stop, LONGEST_LIST), stop] if stop > start else [start, start]
        pieces = len(cuts) - 1
        for first in range(number * block, min((number + 1) * block, n), M):
            for part in range(pieces):
                slot = used + part if pieces > 1 else -1
                low, high = cuts[part] * span, cuts[part + 1] * span
                cut = high if owner == "queries" else low
                if piece.past and owner == "queries" and part == pieces - 1:
                    cut = high - span
                    high = cut + min(_up_to(first % block + M, N), span)
                elif piece.past and owner == "keys" and part == 0:
                    cut = low + span
                    low += first % block // N * N
                items.append((first, low, high, slot, cut))
            if pieces > 1:
                last = min(first + M, (number + 1) * block, n)
                rows = np.arange(last - first)
                joins.append(
                    np.stack([first + rows, used * M + rows, 0 * rows + pieces], axis=1)
                )
                used += pieces
    items.sort(key=lambda item: (item[1] - item[2], item[0], item[1]))  # longest first
    nothing = _ints([0], device)
    slots = Slots.of(used * M, np.concatenate(joins), M, device) if joins else None
    # Of the past -n <= query - key <= -1 is left out, in tiles of the own block.
    gap = (0, 0) if not piece.past else (-1, n) if owner == "queries" else (n, -1)
    return TileWalk(
        programs=len(items),
        lists=(nothing, nothing, _ints(lists.indices, device), _ints(items, device)),
        numbers=(0, 1, n, n, n, n, n, *gap, 1, 1, n),
        options={
            "M": M, "N": N, "BLOCK": block, "SPAN": span, "VISIT": 2,
            "LIST_QUERIES": False, "LIST_KEYS": False, "WINDOW": False,
            "GAP": piece.past, "SEGMENT": False, "PLAIN": whole,
            "SLOTS": slots is not None,
        },
        slots=slots,
    )  # fmt: skip


def _up_to(count: int, tile: int) -> int:
    """The least multiple of a tile that is not below."""
    return -(-count // tile) * tile


def edge_walk(piece: Edges, owner: str, again: bool, device: torch.device) -> EdgeWalk:
    """Strands of `owner` ("queries" or "keys"); with `again` only those with pairs."""
    rows: Rows = piece.rows if owner == "queries" else transposed(piece.rows)
    counts = rows.counts
    parts = np.maximum(-(-counts // LONGEST_STRAND), 0 if again else 1)
    token = np.repeat(np.arange(rows.n), parts)
    part = np.arange(len(token)) - np.repeat(np.cumsum(parts) - parts, parts)
    first = rows.indptr[token] + part * LONGEST_STRAND
    end = np.minimum(first + LONGEST_STRAND, rows.indptr[token + 1])
    cut = parts[token] > 1
    slot = np.where(cut, np.cumsum(cut) - 1, -1)
    strands = np.stack([token, first, end, slot], axis=1)
    strands = strands[np.argsort(~cut, kind="stable")]  # the long sums first
    slots = None
    if cut.any():
        long = np.flatnonzero(parts > 1)
        starts = np.concatenate([[0], np.cumsum(parts[long])[:-1]])
        joins = np.stack([long, starts, parts[long]], axis=1)
        slots = Slots.of(int(cut.sum()), joins, 1, device)
    return EdgeWalk(_ints(strands, device), _ints(rows.indices, device), slots)
