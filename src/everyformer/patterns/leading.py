"""The first n tokens of a pattern: A_k ∩ {1, .., n} for k <= n, as a part that runs fast.

Sequences shorter than a pattern are its first tokens. In a causal pattern their sets stay
what they are, so that a token hears the same ones at every length.
"""

from itertools import takewhile

import numpy as np

from everyformer.errors import PatternError
from everyformer.patterns.kinds import (
    Blocks,
    Columns,
    Dense,
    Dilated,
    Gathered,
    Segments,
    Star,
    Stride,
    Union,
    Window,
    WindowGlobal,
)
from everyformer.patterns.part import Part, check_whole
from everyformer.patterns.past import Past, taking_from
from everyformer.patterns.rows import Rows


def first_of(part: Part, n: int) -> Part:
    """The part of the first n tokens.

    Raises:
        PatternError: If there are fewer, or one of them attends to later ones alone.
    """
    check_whole("first", 1, n=n)
    if n > part.n:
        msg = (
            f"The first {n} tokens are asked for of a {part.kind} with n={part.n}. Make "
            f"it for {n} tokens, or give at most {part.n}."
        )
        raise PatternError(msg)
    if n == part.n:
        return part
    match part:
        case Dense():
            return Dense(n)
        case Window(left=left, right=right):
            return Window(n, left, right)
        case Stride(width=w):
            return Stride(n, w)
        case Segments(width=w):
            return Segments(n, w)
        case Dilated(half_width=h, dilation=q):
            return Dilated(n, h, q)
        case Columns(width=w):
            return Columns(n, w, last=False)  # the last token is not among these
        case WindowGlobal(half_width=h, global_tokens=some):
            return WindowGlobal(n, h, tuple(takewhile(lambda g: g < n, some)))
        case Past(part=inner):
            return Past(n, first_of(inner, n))
        case Star():
            return _first_of_star(part, n)
        case Blocks(block=block, table=table):
            return _first_of_blocks(part, n, block, table)
        case Union():
            return _first_of_union(part, n)
        case _:
            rows = _among(part.rows(), n)
            _check_none_is_empty(part, rows)
            return Gathered(n, rows)


def _first_of_star(part: Star, n: int) -> Part:
    """A window, since the relay is not among them; where the seam is near, that too."""
    rows = _among(part.rows(), n)
    query, key = rows.listeners(), rows.indices
    far = abs(query - key) > part.width
    window = Window(n, part.width, part.width)
    if not far.any():
        return window
    far |= query == key
    return Union(n, (window, Gathered(n, Rows.of_pairs(n, query[far], key[far]))))


def _first_of_blocks(
    part: Blocks, n: int, block: int, table: tuple[tuple[int, ...], ...]
) -> Part:
    count = -(-n // block)
    kept = [tuple(takewhile(lambda key: key < count, keys)) for keys in table[:count]]
    if not all(kept):
        _check_none_is_empty(part, _among(part.rows(), n))
    return Blocks(n, block, tuple(kept))


def _first_of_union(part: Union, n: int) -> Part:
    """The union of what is left; a set empty in one part alone takes from the rest."""
    parts: list[Part] = []
    whole: Rows | None = None
    for one in part.parts:
        try:
            parts.append(first_of(one, n))
        except PatternError:
            if whole is None:
                whole = _among(part.rows(), n)
                _check_none_is_empty(part, whole)
            parts.append(taking_from(whole, _among(one.rows(), n)))
    return Union(n, tuple(parts))


def _among(rows: Rows, n: int) -> Rows:
    """The same sets, of the first n tokens and with these alone; some may be empty."""
    query, key = rows.listeners(), rows.indices
    kept = (query < n) & (key < n)
    return Rows.of_pairs(n, query[kept], key[kept])


def _check_none_is_empty(part: Part, rows: Rows) -> None:
    empty = np.flatnonzero(rows.counts == 0)
    if len(empty):
        k = int(empty[0])
        heard = ", ".join(str(j + 1) for j in part.heard(k)[:4].tolist())
        dots = ", .." if len(part.heard(k)) > 4 else ""
        msg = (
            f"Token {k + 1} of {part.n} (1-based) attends to later tokens than the first "
            f"{rows.n} alone ({heard}{dots}): nothing is left for it. Let it attend to "
            "itself, or make the pattern for each length."
        )
        raise PatternError(msg)
