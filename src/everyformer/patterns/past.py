"""Patterns without the future: A_k ∩ {1, .., k}, for networks that predict the next token.

A window stays a window. What runs fast two-sided is kept as it is, inside a `Past`, which
kernels know; the rest is listed.
"""

from dataclasses import dataclass
from itertools import chain
from typing import Any

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
from everyformer.patterns.part import Part
from everyformer.patterns.rows import Rows

KEPT = (Stride, Dilated, Segments, Columns, WindowGlobal, Blocks)
"""Parts with kernels that leave the future out, if all of their tokens hear themselves."""


def is_kept(part: Part) -> bool:
    """Whether the past of a part is this part with a bound, and not a list of pairs."""
    if isinstance(part, Blocks):
        return all(number in keys for number, keys in enumerate(part.table))
    return isinstance(part, KEPT)


@dataclass(frozen=True)
class Past(Part):
    """A_k = the tokens 1, .., k among those of another part.

    Attributes:
        part: A stride, dilated window, segments, columns, window with global tokens, or
            blocks that all hear themselves.
    """

    part: Part

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_kept(self.part) or self.part.n != self.n:
            msg = (
                f"{self.kind} with n={self.n} of a {type(self.part).__name__} with "
                f"n={getattr(self.part, 'n', None)}: one n, and one of "
                f"{', '.join(kind.__name__ for kind in KEPT)} in which all hear "
                "themselves, is needed. past_of(part) makes the past of any part."
            )
            raise PatternError(msg)

    def _make_rows(self) -> Rows:
        return _earlier(self.part.rows())

    @property
    def connections(self) -> int:
        """The pairs whose key is not later, all own ones among them; without listing them.

        But for columns and blocks the other part has with each pair the turned one.
        """
        n, part = self.n, self.part
        match part:
            case Columns():
                return n + sum(n - 1 - column for column in part.columns)
            case Blocks():
                earlier = sum(
                    part.size(row) * part.size(key)
                    for row, keys in enumerate(part.table)
                    for key in keys
                    if key < row
                )
                own = (part.size(row) for row in range(len(part.table)))
                return earlier + sum(size * (size + 1) // 2 for size in own)
            case _:
                return (part.connections + n) // 2

    @classmethod
    def arguments_of_json(cls, data: dict[str, Any]) -> dict[str, Any]:
        """The other part, read from its own."""
        return {"n": data["n"], "part": Part.from_json(data["part"])}


def past_of(part: Part) -> Part:
    """The part A_k ∩ {1, .., k}, as one that runs fast wherever there is one.

    Raises:
        PatternError: If some token attends to later ones alone.
    """
    match part:
        case Dense(n=n):
            return Window(n, n - 1, 0)
        case Window(n=n, left=left):
            return Window(n, left, 0)
        case Past():
            return part
        case Star():
            return _past_of_star(part)
        case Union():
            return _past_of_union(part)
        case _ if is_kept(part):
            return Past(part.n, part)
        case _:
            rows = _earlier(part.rows())
            _check_none_is_empty(part, rows)
            return Gathered(part.n, rows)


def _past_of_star(part: Star) -> Part:
    """A window to the left; the seam of the ring, which the last tokens hear; the relay.

    Nobody before the relay, token n, may hear it: all but its own row is a window.
    """
    rows, n = _earlier(part.rows()), part.n
    query, key = rows.listeners(), rows.indices
    far = (query - key > part.width) | (query == key)
    listed = Gathered(n, Rows.of_pairs(n, query[far], key[far]))
    return Union(n, (Window(n, part.width, 0), listed))


def _past_of_union(part: Union) -> Part:
    """The union of the pasts; a set that is empty in one part alone takes from the rest."""
    whole = _earlier(part.rows())
    _check_none_is_empty(part, whole)
    parts: list[Part] = []
    for one in _flat(part):
        try:
            past = past_of(one)
        except PatternError:
            past = taking_from(whole, _earlier(one.rows()))
        parts += past.parts if isinstance(past, Union) else (past,)  # that of a star
    return parts[0] if len(parts) == 1 else Union(part.n, tuple(parts))


def taking_from(whole: Rows, rows: Rows) -> Gathered:
    """Sets of which the empty ones take a token from those of the whole."""
    empty = np.flatnonzero(rows.counts == 0)
    some = whole.indices[whole.indptr[empty]]
    listeners = np.concatenate([rows.listeners(), empty])
    heard = np.concatenate([rows.indices, some])
    return Gathered(rows.n, Rows.of_pairs(rows.n, listeners, heard))


def _flat(part: Union) -> chain[Part]:
    """The parts, unions among them opened."""
    return chain.from_iterable(
        _flat(one) if isinstance(one, Union) else (one,) for one in part.parts
    )


def _earlier(rows: Rows) -> Rows:
    """The same sets without later tokens; some may be empty."""
    query, key = rows.listeners(), rows.indices
    kept = key <= query
    return Rows.of_pairs(rows.n, query[kept], key[kept])


def _check_none_is_empty(part: Part, rows: Rows) -> None:
    empty = np.flatnonzero(rows.counts == 0)
    if len(empty):
        k = int(empty[0])
        heard = ", ".join(str(j + 1) for j in part.heard(k)[:4].tolist())
        dots = ", .." if len(part.heard(k)) > 4 else ""
        more = f", nor for {len(empty) - 1} more" if len(empty) > 1 else ""
        msg = (
            f"Token {k + 1} of {part.n} (1-based) attends to later tokens alone ({heard}"
            f"{dots}): without the future there is nothing left for it{more}. Let it "
            "attend to itself, or take a union with a window."
        )
        raise PatternError(msg)
