"""Pieces as groups of small dense problems: r queries, c keys, and a mask.

The mask hides pairs that do not count. Rows and columns are chosen such that few are
hidden, and groups such that few masks are made. Patterns without structure have r = 1.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

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

CHOICES = 16, 32, 64, 128
"""Queries of a rectangle of a band."""

COLUMN = 12
"""Pairs that take as long as reading a key and adding to its gradients (measured)."""

STEPS = 5
"""Steps without pairs that take as long as a step of the size that is asked for."""

EVEN = 16
"""Keys of a list are so many or a multiple of it: products of fewer take as long."""

_Numbers = TypeVar("_Numbers", Tensor, np.ndarray)


class Rectangles(NamedTuple):
    """Several rectangles of one shape; index n stands for nobody.

    Attributes:
        queries: Tokens of the rows; a token is in one rectangle of a piece at most.
        keys: Tokens of the columns.
        hidden: True where a pair does not count; None where all do. An axis of 1 is shared.
    """

    queries: Int[Tensor, "g r"]
    keys: Int[Tensor, "g c"]
    hidden: Bool[Tensor, "#g #r c"] | None


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
    """Every r queries of a class, with the keys from the first one's to the last one's.

    Strips with as many keys before and behind them hide the same pairs, but for keys beyond
    the end of a class and pairs within a segment.
    """
    count = band.count(n)
    left, right = min(band.left, count - 1), min(band.right, count - 1)
    r = _rows(count, left, right, room / band.classes)
    classes = band.shift * np.arange(band.classes)
    segments = Outside(segment=band.outside.segment)
    for before, c, firsts in _strips(count, left, right, r):
        i, j = np.arange(r), np.arange(c) - before  # counted from the first query
        out = ~_within(j - i[:, None], (left, right))
        if band.outside.gap is not None:
            out |= _within(band.step * (j - i[:, None]), band.outside.gap)
        alike = torch.as_tensor(out[None], device=device) if out.any() else None
        origin, first = (x.ravel() for x in np.meshgrid(classes, firsts))
        size = np.minimum(-(-(n - origin) // band.step), band.limit)
        together = max(1, room // (r * c))
        for begin in range(0, len(first), together):
            some = np.s_[begin : begin + together, None]
            queries, keys = (
                np.where(x < size[some], origin[some] + band.step * x, n)
                for x in (first[some] + i, first[some] + j)
            )
            beyond = (keys == n).any()
            queries, keys = (torch.as_tensor(x, device=device) for x in (queries, keys))
            hidden = alike
            if beyond:
                hidden = _either(hidden, (keys == n)[:, None, :])
            if segments.segment is not None:
                hidden = _either(hidden, _left_out(segments, queries, keys))
            yield Rectangles(queries, keys, hidden)


def _rows(count: int, left: int, right: int, room: float) -> int:
    """r for which a class costs least: r c pairs and c keys of each strip, and its steps.

    Strips with equal numbers of keys make one step, or several that are as large as the
    room for a class.
    """

    def cost(r: int) -> float:
        before, keys = _reach(np.arange(0, count, r), count, left, right, r)
        kinds, strips = np.unique([before, keys], axis=1, return_counts=True)
        steps = np.ceil(strips * kinds[1] * r / room).sum()
        return float(keys.sum()) * (r + COLUMN) + steps * room / STEPS

    r = min(CHOICES, key=cost)
    return -(-count // -(-count // r))


def _strips(
    count: int, left: int, right: int, r: int
) -> Iterator[tuple[int, int, Int[np.ndarray, " s"]]]:
    """Strips of r queries: keys before the first one, all keys, and first queries."""
    first = np.arange(0, count, r)
    shapes = np.stack(_reach(first, count, left, right, r))
    for before, c in np.unique(shapes, axis=1).T.tolist():
        yield before, c, first[(shapes == [[before], [c]]).all(0)]


def _reach(
    first: Int[np.ndarray, " s"], count: int, left: int, right: int, r: int
) -> tuple[Int[np.ndarray, " s"], Int[np.ndarray, " s"]]:
    """How many keys strips have before their first query, and in all."""
    before = np.minimum(first, left)
    return before, before + np.minimum(r + right, count - first)


def _either(one: Tensor | None, other: Tensor) -> Tensor:
    return other if one is None else one | other


def _of_lists(
    piece: Listed, n: int, room: int, device: torch.device
) -> Iterator[Rectangles]:
    everybody = torch.arange(n, device=device)

    def tokens(listed: np.ndarray | None) -> Tensor:
        return everybody if listed is None else torch.tensor(listed, device=device).long()

    queries, keys = tokens(piece.queries), tokens(piece.keys)
    if piece.own:
        for some in queries.split(room):
            yield Rectangles(some[:, None], some[:, None], None)
    for some in queries.split(max(1, room // max(len(keys), 1))):
        heard = keys[: _last_heard(piece, some, keys, n)]
        if len(heard):
            hidden = _left_out(piece.outside, some[None], heard[None])
            yield Rectangles(some[None], heard[None], hidden)


def _last_heard(piece: Listed, queries: Tensor, keys: Tensor, n: int) -> int:
    """How many keys, the first ones, hold all that some of the queries hear."""
    gap = piece.outside.gap
    if gap is None or gap[1] < n:
        return len(keys)
    early = (keys < queries.max() - gap[0]).nonzero()
    return -(-(int(early[-1]) + 1) // EVEN) * EVEN if len(early) else 0


def _of_blocks(
    piece: BlockLists, n: int, room: int, device: torch.device
) -> Iterator[Rectangles]:
    block, lists = piece.block, piece.lists
    if piece.past:
        own = Band(lists.n, block, 1, block, left=block, right=0)
        yield from _of_band(own, n, room, device)
        lists = _without_own(lists)
    inside = torch.arange(block, device=device)
    for rows, heard in _by_count(lists, device, exact=True):
        together = max(1, room // (block * block * heard.shape[1]))
        for some, lists in zip(rows.split(together), heard.split(together), strict=True):
            queries = some[:, None] * block + inside
            keys = (lists[:, :, None] * block + inside).flatten(1)
            hidden = (keys >= n)[:, None, :]
            yield Rectangles(queries.clamp(max=n), keys.clamp(max=n), hidden)


def _without_own(lists: Rows) -> Rows:
    """For every block the others."""
    query, key = lists.listeners(), lists.indices
    return Rows.of_pairs(lists.n, query[key != query], key[key != query])


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
        found |= _within(key - query, outside.gap)
    if outside.segment is not None:
        found |= query // outside.segment == key // outside.segment
    return found


def _within(gap: _Numbers, bounds: tuple[int, int]) -> _Numbers:
    """Whether -bounds[0] <= gap <= bounds[1]."""
    return (gap >= -bounds[0]) & (gap <= bounds[1])
