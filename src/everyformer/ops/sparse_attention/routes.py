"""Which pieces a pattern is cut into: one case for each kind of part.

| part | pieces | why |
|---|---|---|
| Dense, Window | a band | tiles along the diagonal |
| Stride, Dilated | a band on residue classes | each class is dense, or a window |
| Segments | a band on segments | each is dense |
| Columns | all queries, listed keys, own key | the listed keys are one dense strip |
| WindowGlobal | a band, listed keys, listed queries | the strips leave the band out |
| Blocks | block lists | dense tiles |
| Star | ring and relay; a wide one as a window with a global token, and edges | one pass |
| Gathered | edges | nothing is known |
| Union | those of two parts, the second outside the first; the rest as edges | |
| Past | those of its part, without later keys | bands end at the query, strips are cut |
| Past of Blocks | block lists without later blocks | only own blocks are cut |
"""

from dataclasses import replace
from itertools import chain

import numpy as np
from jaxtyping import Bool

from everyformer.errors import InputError
from everyformer.ops.sparse_attention.pieces import (
    Band,
    BlockLists,
    Edges,
    Listed,
    Outside,
    Piece,
    RingAndRelay,
    Tokens,
)
from everyformer.patterns import (
    Blocks,
    Columns,
    Dense,
    Dilated,
    Gathered,
    Part,
    Past,
    Rows,
    Segments,
    Star,
    Stride,
    Union,
    Window,
    WindowGlobal,
)

WIDEST_RING = 8
"""Neighbours on either side in a star that runs as one piece."""

SMALLEST_BLOCK = 16
"""Smaller blocks are not tiles; they run as edges."""


def pieces_of(part: Part) -> tuple[Piece, ...]:
    """Disjoint pieces whose union is the part; the first has a pair for every query.

    Raises:
        InputError: If the part is of a kind that nobody has taught this function.
    """
    n = part.n
    match part:
        case Dense():
            return (_window(n, n, n),)
        case Window(left=left, right=right):
            return (_window(n, left, right),)
        case Stride() | Dilated() | Segments():
            return (_left_over(part, Outside()),)
        case Columns():
            return (_columns(part, Outside(gap=(0, 0)), own=True),)
        case WindowGlobal():
            return _window_global(part, past=False)
        case Blocks(block=block) if block >= SMALLEST_BLOCK:
            return (BlockLists(block, _lists(part.table)),)
        case Star(width=w):
            if 2 * w + 1 >= n - 1:
                return (_window(n, n, n),)
            return (RingAndRelay(n, w),) if w <= WIDEST_RING else _wide_star(n, w)
        case Gathered() | Blocks():
            return (Edges(part.rows()),)
        case Union():
            return _union(part)
        case Past(part=WindowGlobal() as inner):
            return _window_global(inner, past=True)
        case Past(part=Blocks(block=block) as inner):
            small = block < SMALLEST_BLOCK
            return (Edges(part.rows()) if small else _past_blocks(inner),)
        case Past(part=inner):
            return tuple(_past(piece, n) for piece in pieces_of(inner))
        case _:
            msg = (
                f"SparseAttention knows no way to run a {part.kind}. List its pairs: "
                "patterns.Gathered(n, part.rows())."
            )
            raise InputError(msg)


def _past(piece: Piece, n: int) -> Piece:
    """The same pairs without those whose key is later than the query.

    Classes and segments ascend, so that a band ends at the query. A strip leaves out
    -before <= key - query <= after with before >= 0, and now all from -before on: what it
    leaves out or counts beside the strip holds the own key.
    """
    match piece:
        case Band():
            return replace(piece, right=0)
        case Listed(outside=outside):
            before = 0 if outside.gap is None else outside.gap[0]
            return replace(piece, outside=replace(outside, gap=(before, n)))
        case _:
            msg = f"a {type(piece).__name__} cannot leave out the future"
            raise AssertionError(msg)


def _window(n: int, left: int, right: int) -> Band:
    return Band(1, 0, 1, n, min(left, n), min(right, n))


def _residues(n: int, width: int, reach: int, outside: Outside) -> Band:
    reach = min(reach, n)
    return Band(min(width, n), 1, width, n, reach, reach, outside)


def _columns(part: Columns, outside: Outside, *, own: bool) -> Listed:
    keys = np.array(part.columns, dtype=np.int32)
    return Listed(None, keys, own, outside)


def _window_global(part: WindowGlobal, *, past: bool) -> tuple[Piece, ...]:
    """The window; G for all outside their windows; the others for G, likewise.

    Of the past no strip is empty: a relay in front hears nobody else.
    """
    n, h, some = part.n, part.half_width, part.global_tokens
    heard = [g for g in some if not past or g + h < n - 1]
    hearing = [g for g in some if not past or g - h > 0]
    others = np.setdiff1d(np.arange(n, dtype=np.int32), np.array(some, dtype=np.int32))
    pieces: list[Piece] = [_window(n, h, 0 if past else h)]
    outside = Outside(gap=(h, n if past else h))
    if heard:
        pieces.append(Listed(None, np.array(heard, dtype=np.int32), outside=outside))
    if hearing and len(others):
        pieces.append(Listed(np.array(hearing, np.int32), others, outside=outside))
    return tuple(pieces)


def _wide_star(n: int, width: int) -> tuple[Piece, ...]:
    """A window with the relay as a global token; what is near across the seam, listed."""
    ring, near = n - 1, np.arange(width, dtype=np.int32)
    start, back = (x.ravel() for x in np.meshgrid(near, near))
    start, end = start[back >= start], (ring - width + back)[back >= start]
    query, key = np.concatenate([start, end]), np.concatenate([end, start])
    seam = Edges(Rows.of_pairs(n, query, key))
    return (*_window_global(WindowGlobal(n, width, (ring,)), past=False), seam)


def _lists(table: tuple[tuple[int, ...], ...]) -> Rows:
    """For every block of queries its blocks of keys."""
    counts = [len(keys) for keys in table]
    indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Rows(indptr, np.fromiter(chain(*table), np.int32, count=indptr[-1]))


def _past_blocks(part: Blocks) -> BlockLists:
    """Within its block a query hears the tokens up to itself, and earlier blocks whole."""
    earlier = tuple(
        tuple(key for key in keys if key <= number)
        for number, keys in enumerate(part.table)
    )
    return BlockLists(part.block, _lists(earlier), past=True)


def _union(part: Union) -> tuple[Piece, ...]:
    """A window or segments first, then a part that can leave them out, then edges.

    Every key counts once: the second leaves the first out, the edges both.
    """
    n, parts = part.n, list(_flat(part))
    if any(isinstance(one, Dense) for one in parts):
        return pieces_of(Dense(n))
    first = next((one for one in parts if isinstance(_inner(one), _FIRST)), None)
    if first is None:
        return (Edges(part.rows()),)
    parts.remove(first)
    pieces, covered = list(pieces_of(first)), list[Part]([first])
    outside = _outside(first)
    ends = isinstance(first, Past)  # then what it leaves of a segment is left out, too
    second = next((one for one in parts if _can_be_second(one, ends)), None)
    if outside is not None and second is not None:
        parts.remove(second)
        covered.append(second)
        pieces.append(_left_over(second, outside))
    if parts:
        rows = Union(n, tuple(parts)).rows()
        query, key = rows.listeners(), rows.indices
        known = np.any([_attends(one, query, key) for one in covered], axis=0)
        if not known.all():
            pieces.append(Edges(Rows.of_pairs(n, query[~known], key[~known])))
    return tuple(pieces)


_FIRST = (Window, Segments, WindowGlobal)
_SECOND = (Stride, Dilated, Columns, Segments)


def _inner(part: Part) -> Part:
    """What a past is the past of; other parts themselves."""
    return part.part if isinstance(part, Past) else part


def _can_be_second(part: Part, ends: bool) -> bool:
    return isinstance(_inner(part), _SECOND) and (isinstance(part, Past) or not ends)


def _flat(part: Union) -> chain[Part]:
    """The parts, unions among them opened."""
    return chain.from_iterable(
        _flat(one) if isinstance(one, Union) else (one,) for one in part.parts
    )


def _outside(part: Part) -> Outside | None:
    match _inner(part):
        case Window(left=left, right=right):
            return Outside(gap=(left, right))
        case Segments(width=w):
            return Outside(segment=w)
        case _:
            return None


def _left_over(part: Part, outside: Outside) -> Piece:
    """A part outside a window or segments, which hold the own token of every query."""
    match part:
        case Past(n=n, part=inner):
            return _past(_left_over(inner, outside), n)
        case Stride(n=n, width=w):
            return _residues(n, w, n, outside)
        case Dilated(n=n, half_width=h, dilation=q):
            return _residues(n, q, h, outside)
        case Segments(n=n, width=width):
            w = min(width, n)
            return Band(-(-n // w), w, 1, w, w, w, outside)
        case Columns():
            return _columns(part, outside, own=False)
        case _:
            msg = f"a {part.kind} cannot leave pairs out"
            raise AssertionError(msg)


def _attends(part: Part, query: Tokens, key: Tokens) -> Bool[np.ndarray, " _"]:
    """Whether each pair is in the part."""
    match part:
        case Past(part=inner):
            return _attends(inner, query, key) & (key <= query)
        case Window(left=left, right=right):
            return (key - query >= -left) & (key - query <= right)
        case Segments(width=w):
            return query // w == key // w
        case Stride(width=w):
            return (key - query) % w == 0
        case Dilated(half_width=h, dilation=q):
            gap = abs(key - query)
            return (gap % q == 0) & (gap <= h * q)
        case Columns():
            return (query == key) | np.isin(key, part.columns)
        case WindowGlobal(half_width=h, global_tokens=some):
            near = abs(key - query) <= h
            return near | np.isin(key, some) | np.isin(query, some)
        case _:
            msg = f"pairs of a {part.kind} are not known in closed form"
            raise AssertionError(msg)
