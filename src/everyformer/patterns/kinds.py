"""The kinds of parts: windows, strides, segments, columns, stars, blocks, lists, unions.

Formulas are 1-based, as in the paper; fields and rows are 0-based.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from everyformer.errors import PatternError
from everyformer.numerics.limits import shown
from everyformer.patterns.part import LARGEST, Part, check_tokens, whole_numbers
from everyformer.patterns.rows import Rows


@dataclass(frozen=True)
class Dense(Part):
    """A_k = [n]."""

    def _make_rows(self) -> Rows:
        k = np.arange(self.n)
        return Rows.progressions(0 * k, 0 * k + self.n)

    @property
    def connections(self) -> int:
        """n^2: every pair is connected."""
        return self.n**2


@dataclass(frozen=True)
class Window(Part):
    """A_k = [n] ∩ {k - left, .., k + right}.

    Attributes:
        left: Tokens before k.
        right: Tokens after k; 0 for a causal window.
    """

    left: int
    right: int
    least: ClassVar = {"left": 0, "right": 0}

    def _make_rows(self) -> Rows:
        k = np.arange(self.n)
        start = np.maximum(k - self.left, 0)
        return Rows.progressions(start, np.minimum(k + self.right, self.n - 1) + 1)

    @property
    def connections(self) -> int:
        """n + sum_{i <= left} (n - i) + sum_{i <= right} (n - i)."""
        sides = (min(side, self.n - 1) for side in (self.left, self.right))
        return self.n + sum(m * self.n - m * (m + 1) // 2 for m in sides)


@dataclass(frozen=True)
class Stride(Part):
    """A_k = [n] ∩ {.., k - w, k, k + w, ..}: the tokens of the same residue mod w.

    Attributes:
        width: w.
    """

    width: int
    least: ClassVar = {"width": 1}

    def _make_rows(self) -> Rows:
        residue = np.arange(self.n) % self.width
        return Rows.progressions(residue, np.full(self.n, self.n), self.width)

    @property
    def connections(self) -> int:
        """The sum of the squared sizes of the residue classes."""
        q, r = divmod(self.n, self.width)
        return r * (q + 1) ** 2 + (self.width - r) * q**2


@dataclass(frozen=True)
class Segments(Part):
    """A_k = the segment of w tokens that k is in; the last may be shorter.

    Attributes:
        width: w.
    """

    width: int
    least: ClassVar = {"width": 1}

    def _make_rows(self) -> Rows:
        start = np.arange(self.n) // self.width * self.width
        return Rows.progressions(start, np.minimum(start + self.width, self.n))

    @property
    def connections(self) -> int:
        """The sum of the squared sizes of the segments."""
        q, r = divmod(self.n, self.width)
        return q * self.width**2 + r**2


@dataclass(frozen=True)
class Columns(Part):
    """A_k = {k} ∪ {w, 2w, 3w, ..} in 1-based numbers, with token n or without.

    Attributes:
        width: w.
        last: Whether token n is heard by all, also where w does not divide n.
    """

    width: int
    last: bool
    least: ClassVar = {"width": 1}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.last, bool | np.bool_):
            msg = f"{self.kind} with last={shown(self.last)}: True or False is needed."
            raise PatternError(msg)
        object.__setattr__(self, "last", bool(self.last))

    @property
    def columns(self) -> tuple[int, ...]:
        """The tokens that all attend to, 0-based."""
        found = tuple(range(self.width - 1, self.n, self.width))
        return (*found, self.n - 1) if self.last and self.n % self.width else found

    def _make_rows(self) -> Rows:
        k, columns = np.arange(self.n), np.array(self.columns, dtype=np.int64)
        listeners = np.concatenate([k, np.repeat(k, len(columns))])
        heard = np.concatenate([k, np.tile(columns, self.n)])
        return Rows.of_pairs(self.n, listeners, heard)

    @property
    def connections(self) -> int:
        """n c + (n - c) for c columns."""
        c = len(self.columns)
        return self.n * c + self.n - c


@dataclass(frozen=True)
class Star(Part):
    """A ring of n - 1 tokens, each with w neighbours on either side, and a relay.

    A_n = [n]; A_k = {n} ∪ {(i - 1) mod (n - 1) + 1 : i = k - w, .., k + w} for k < n.

    Attributes:
        width: w.
    """

    width: int
    least: ClassVar = {"width": 1}

    def _make_rows(self) -> Rows:
        n, ring = self.n, np.arange(self.n - 1)
        reach = min(self.width, n // 2)
        near = np.arange(-reach, reach + 1)
        neighbours = (ring[:, None] + near) % max(n - 1, 1)
        listeners = [np.repeat(ring, len(near)), ring, np.full(n, n - 1)]
        heard = [neighbours.ravel(), np.full(n - 1, n - 1), np.arange(n)]
        return Rows.of_pairs(n, np.concatenate(listeners), np.concatenate(heard))

    @property
    def connections(self) -> int:
        """(n - 1)(2w + 2) + n, or n^2 where the ring is full."""
        ring = self.n - 1
        return self.n + ring * (min(2 * self.width + 1, ring) + 1)


@dataclass(frozen=True)
class WindowGlobal(Part):
    """A window, and tokens that hear all and are heard by all.

    A_k = [n] ∩ {k - h, .., k + h} ∪ G; A_g = [n] for g in G.

    Attributes:
        half_width: h.
        global_tokens: G, 0-based.
    """

    half_width: int
    global_tokens: tuple[int, ...]
    least: ClassVar = {"half_width": 0}

    def __post_init__(self) -> None:
        super().__post_init__()
        tokens = whole_numbers("The list of global tokens", self.global_tokens)
        object.__setattr__(self, "global_tokens", tokens)
        check_tokens(self.kind, self.n, tokens)
        if list(self.global_tokens) != sorted(set(self.global_tokens)):
            msg = (
                f"{self.kind}: global_tokens={self.global_tokens} (0-based) must be "
                "ascending and name each token once."
            )
            raise PatternError(msg)

    def _make_rows(self) -> Rows:
        k, G = np.arange(self.n), np.array(self.global_tokens, dtype=np.int64)
        near = Window(self.n, self.half_width, self.half_width).rows()
        all_k, all_g = np.tile(k, len(G)), np.repeat(G, self.n)
        return Rows.of_pairs(
            self.n,
            np.concatenate([near.listeners(), all_k, all_g]),
            np.concatenate([near.indices, all_g, all_k]),
        )

    @property
    def connections(self) -> int:
        """The window's, and twice n - |W_g| for each g, less what two g share."""
        h, n, G = self.half_width, self.n, self.global_tokens
        near = [min(g + h, n - 1) - max(g - h, 0) + 1 for g in G]
        shared = sum(abs(a - b) > h for a in G for b in G)
        window = Window(n, h, h).connections
        return window + 2 * sum(n - size for size in near) - shared


@dataclass(frozen=True)
class Dilated(Part):
    """A_k = [n] ∩ {k + q t : |t| <= h}.

    Attributes:
        half_width: h.
        dilation: q.
    """

    half_width: int
    dilation: int
    least: ClassVar = {"half_width": 1, "dilation": 1}

    def _make_rows(self) -> Rows:
        k, q = np.arange(self.n), self.dilation
        back = np.minimum(k // q, self.half_width)
        ahead = np.minimum((self.n - 1 - k) // q, self.half_width)
        return Rows.progressions(k - q * back, k + q * ahead + 1, q)

    @property
    def connections(self) -> int:
        """n + 2 sum_{t <= h} (n - q t)."""
        m, q = min(self.half_width, (self.n - 1) // self.dilation), self.dilation
        return self.n + 2 * m * self.n - q * m * (m + 1)


@dataclass(frozen=True)
class Blocks(Part):
    """Blocks of queries that attend to whole blocks of keys, as BigBird's kernels do.

    Attributes:
        block: Tokens of a block; the last may be shorter.
        table: For every block of queries the blocks of keys, 0-based and ascending.
    """

    block: int
    table: tuple[tuple[int, ...], ...]
    least: ClassVar = {"block": 1}

    def __post_init__(self) -> None:
        super().__post_init__()
        rows = self.table if isinstance(self.table, tuple | list) else ()
        table = tuple(whole_numbers("A row of the table of blocks", row) for row in rows)
        object.__setattr__(self, "table", table)
        count = -(-self.n // self.block)
        wrong = [
            row
            for row, keys in enumerate(self.table)
            if not keys
            or list(keys) != sorted(set(keys))
            or not 0 <= keys[0] <= keys[-1] < count
        ]
        if len(self.table) != count or wrong:
            where = f"rows {wrong[:4]}" if wrong else f"{len(self.table)} rows"
            msg = (
                f"{self.kind}: the table (0-based) has {where}, but n={self.n} and "
                f"block={self.block} make {count} blocks: {count} rows are needed, each "
                f"with ascending, different key blocks of 0..{count - 1}."
            )
            raise PatternError(msg)

    def size(self, block: int) -> int:
        """Tokens of a block."""
        return min(self.block, self.n - block * self.block)

    def _make_rows(self) -> Rows:
        spans = [
            np.concatenate(
                [np.arange(b * self.block, b * self.block + self.size(b)) for b in keys]
            )
            for keys in self.table
        ]
        sizes = [self.size(row) for row in range(len(self.table))]
        counts = np.repeat([len(span) for span in spans], sizes)
        indptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        indices = [np.tile(span, size) for span, size in zip(spans, sizes, strict=True)]
        return Rows(indptr, np.concatenate(indices).astype(np.int32))

    @property
    def connections(self) -> int:
        """The sum over kept blocks of their sizes."""
        return sum(
            self.size(row) * self.size(key)
            for row, keys in enumerate(self.table)
            for key in keys
        )


@dataclass(frozen=True)
class Gathered(Part):
    """Any sets A_k, listed.

    Attributes:
        listed: The sets.
    """

    listed: Rows

    def __post_init__(self) -> None:
        """Check that there is a set for each token, and none is empty."""
        super().__post_init__()
        rows = self.listed
        if rows.n != self.n:
            raise PatternError(f"{self.kind}: {rows.n} sets for n={self.n} tokens.")
        ends = rows.indptr[[0, -1]].tolist()
        if ends != [0, len(rows.indices)] or (rows.counts < 0).any():
            msg = f"{self.kind}: the {len(rows.indices)} entries are not cut into sets: the"
            raise PatternError(f"{msg} bounds must ascend from 0 to their number.")
        empty = np.flatnonzero(rows.counts == 0)
        if len(empty):
            msg = (
                f"Token {empty[0] + 1} of {self.n} (1-based) attends to no token: "
                "attention over an empty set is not defined. Let it attend to itself."
            )
            raise PatternError(msg)
        check_tokens(self.kind, self.n, (int(rows.indices.min()), int(rows.indices.max())))
        same_row = np.ones(len(rows.indices) - 1, dtype=bool)
        same_row[rows.indptr[1:-1] - 1] = False
        if (np.diff(rows.indices)[same_row] <= 0).any():
            raise PatternError(f"{self.kind}: a set is not ascending, or repeats a token.")

    def _make_rows(self) -> Rows:
        return self.listed

    def to_json(self) -> dict[str, Any]:
        """A JSON object: the sets as two lists."""
        indptr, indices = self.listed.indptr.tolist(), self.listed.indices.tolist()
        listed = {"indptr": indptr, "indices": indices}
        return {"kind": self.kind, "n": self.n, "listed": listed}

    @classmethod
    def arguments_of_json(cls, data: dict[str, Any]) -> dict[str, Any]:
        """The sets, read from two lists."""
        indptr = _listed(data["listed"], "indptr").astype(np.int64)
        indices = _listed(data["listed"], "indices").astype(np.int32)
        return {"n": data["n"], "listed": Rows(indptr, indices)}


def _listed(given: object, name: str) -> np.ndarray:
    """Whole numbers below 2^31 in a list of a JSON object.

    Raises:
        PatternError: If there are others: none is rounded in silence.
    """
    numbers = given.get(name) if isinstance(given, dict) else None
    try:
        found = np.array(numbers if isinstance(numbers, list) else [None])
    except ValueError:  # lists of different lengths
        found = np.array([None])
    whole = found.ndim == 1 and (found.dtype == np.int64 or not found.size)
    if not whole or (found < 0).any() or (found >= LARGEST).any():
        msg = f"Listed sets with {name}={shown(numbers)}: a list of whole numbers from 0 to"
        raise PatternError(f"{msg} 2^31 - 1 is needed.")
    return found


@dataclass(frozen=True)
class Union(Part):
    """A_k = the union of the sets of several parts.

    Attributes:
        parts: The parts, at least one, all of n tokens.
    """

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        super().__post_init__()
        lengths = {part.n for part in self.parts}
        if lengths != {self.n}:
            msg = f"{self.kind} with n={self.n} of parts with n in {sorted(lengths)}"
            raise PatternError(f"{msg}: at least one part, and one n, are needed.")

    def _make_rows(self) -> Rows:
        rows = [part.rows() for part in self.parts]
        listeners = np.concatenate([one.listeners() for one in rows])
        heard = np.concatenate([one.indices for one in rows])
        return Rows.of_pairs(self.n, listeners, heard)

    @classmethod
    def arguments_of_json(cls, data: dict[str, Any]) -> dict[str, Any]:
        """The parts, read from theirs."""
        return {"n": data["n"], "parts": Part.all_from_json(data["parts"])}
