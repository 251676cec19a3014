"""The pieces that a pattern is cut into: disjoint sets of pairs (query, key).

A piece says which pairs count in a form that can be walked without a list of pairs,
wherever there is one. The softmax of a row runs over all its pieces: forward passes are
joined by their log-sum-exp, backward passes add up (README.md).
"""

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from jaxtyping import Int

from everyformer.patterns import Rows, Star

Tokens = Int[np.ndarray, " _"]


@dataclass(frozen=True)
class Outside:
    """Pairs that a piece leaves out, because an earlier one has them.

    Attributes:
        gap: Pairs with -gap[0] <= key - query <= gap[1]; None leaves out none.
        segment: Pairs within one segment of this many tokens; None leaves out none.
    """

    gap: tuple[int, int] | None = None
    segment: int | None = None

    def transposed(self) -> "Outside":
        """The same pairs, keys first."""
        gap = None if self.gap is None else (self.gap[1], self.gap[0])
        return Outside(gap, self.segment)


NOTHING = Outside()


@dataclass(frozen=True)
class Band:
    """A window on each of several arithmetic progressions.

    Tokens of class c are shift c + step i for i = 0, 1, .., at most `limit` of them and
    below n. Token i of a class attends to the tokens i - left, .., i + right of it.

    | pattern | classes | shift | step | limit |
    |---|---|---|---|---|
    | all tokens, or a window of them | 1 | 0 | 1 | n |
    | residues mod w (strided, dilated) | w | 1 | w | n |
    | segments of w tokens | ceil(n / w) | w | 1 | w |
    """

    classes: int
    shift: int
    step: int
    limit: int
    left: int
    right: int
    outside: Outside = NOTHING

    def count(self, n: int) -> int:
        """The size of the largest class, which is the first."""
        return min(self.limit, -(-n // self.step))

    def transposed(self) -> "Band":
        """The same pairs, keys first."""
        turned = self.outside.transposed()
        return replace(self, left=self.right, right=self.left, outside=turned)


@dataclass(frozen=True, eq=False)
class Listed:
    """Listed queries attend to listed keys; None lists all tokens.

    Attributes:
        queries: The queries, each once.
        keys: The keys, each once.
        own: Whether every query attends to itself too.
        outside: Pairs that are left out.
    """

    queries: Tokens | None
    keys: Tokens | None
    own: bool = False
    outside: Outside = NOTHING


@dataclass(frozen=True, eq=False)
class BlockLists:
    """Blocks of queries attend to whole blocks of keys; the last block may be shorter.

    Attributes:
        block: Tokens of a block.
        lists: For every block of queries its blocks of keys, ascending.
        past: Whether the own block, then the last of every list, counts up to the query.
    """

    block: int
    lists: Rows
    past: bool = False


@dataclass(frozen=True, eq=False)
class Edges:
    """Any pairs, listed.

    Attributes:
        rows: For every query its keys; there may be none.
    """

    rows: Rows


@dataclass(frozen=True)
class RingAndRelay:
    """The star: a ring of n - 1 tokens with w neighbours on either side, and a relay.

    The relay is the last token; it hears all and is heard by all. 2w + 1 < n - 1, so that
    no neighbour is met twice, and w is small beside a tile.

    Attributes:
        n: Number of tokens.
        width: w.
    """

    n: int
    width: int

    @cached_property
    def rows(self) -> Rows:
        """The same pairs, listed."""
        return Star(self.n, self.width).rows()


@dataclass(frozen=True, eq=False)
class Masked:
    """Any pairs of few tokens, as a mask: in plain torch the fastest for short sequences.

    Attributes:
        rows: For every query its keys.
    """

    rows: Rows


Piece = Band | Listed | BlockLists | Edges | RingAndRelay
"""What kernels walk; plain torch walks these, or one `Masked`."""


def transposed(rows: Rows) -> Rows:
    """The same pairs, keys first: for every key its queries."""
    return Rows.of_pairs(rows.n, rows.indices, rows.listeners())
