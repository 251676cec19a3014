"""The lattice of anchors, the temperature, and what follows from both alone."""

from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from everyformer.certify.partition.lattice_constants import (
    LatticeConstants,
    lattice_constants,
)
from everyformer.numerics.entropy import with_entropies
from everyformer.numerics.expression import Expression, Node
from everyformer.numerics.rationals import power_up
from everyformer.numerics.rewriting import moved
from everyformer.targets.box import Box, Grid

SOURCE = "docs/constructions/partition.md"

HIDDEN = 800
"""Data tokens are this far below the best anchor, so that e^-800 of it leaks to each."""


@dataclass(frozen=True)
class Lattice:
    """The lattice of anchors and the temperature.

    Attributes:
        grid: K, n and the box.
        D: The weights are e^(-D delta^2), delta in spacings.
        margin: m, the steps that the lattice goes beyond the box.

    Example:
        >>> lattice = Lattice(Grid(16, 2, Box((0.0,), (1.0,))), Fraction(1), 4)
        >>> lattice.anchors, lattice.size, lattice.logit_size
        (625, 2, Fraction(800, 1))
    """

    grid: Grid
    D: Fraction
    margin: int

    @property
    def size(self) -> int:
        """N = n d."""
        return self.grid.seq_len * self.grid.d_model

    @property
    def anchors(self) -> int:
        """P = (K + 1 + 2m)^N."""
        return (self.grid.cells + 1 + 2 * self.margin) ** self.size

    @cached_property
    def steps(self) -> tuple[Fraction, ...]:
        """h_k = w_k / K for each of the N entries."""
        widths = self.grid.box.widths * self.grid.seq_len
        return tuple(width / self.grid.cells for width in widths)

    @property
    def lows(self) -> tuple[Fraction, ...]:
        """Where the anchors begin, for each entry."""
        starts = [Fraction(a) for a in self.grid.box.lows] * self.grid.seq_len
        return tuple(a - self.margin * h for a, h in zip(starts, self.steps, strict=True))

    @property
    def highs(self) -> tuple[Fraction, ...]:
        """Where they end."""
        ends = [Fraction(b) for b in self.grid.box.highs] * self.grid.seq_len
        return tuple(b + self.margin * h for b, h in zip(ends, self.steps, strict=True))

    @property
    def constants(self) -> LatticeConstants:
        """b, m1, m2 and the tails, for this margin."""
        return lattice_constants(self.D, self.margin)

    @property
    def volume(self) -> Fraction:
        """Volume of the box of sequences."""
        return self.grid.box.volume(self.grid.seq_len)

    @property
    def radius(self) -> Fraction:
        """A bound on E max_k|Y_k - x_k|: (m2 sum_k h_k^2)^(1/2)."""
        squares = sum((h * h for h in self.steps), start=Fraction(0))
        return power_up(self.constants.m2 * squares, Fraction(1, 2))

    @property
    def logit_size(self) -> Fraction:
        """A bound on |2 beta u.v - beta |v|^2|: D K^2 N (1 + m/K)^2.

        With the common term: beta |u|^2 - beta |u-v|^2, and both squares are at most that.
        """
        far = 1 + Fraction(self.margin, self.grid.cells)
        return self.D * self.grid.cells**2 * self.size * far**2

    @property
    def suppression(self) -> Fraction:
        """B = 800 + D N / 4: data tokens have the logit -B, the best anchor >= -D N / 4."""
        return HIDDEN + self.D * self.size / 4


def extensions(f: Expression, box: Box, *, almost: bool) -> list[Expression]:
    """Programs that agree with f on the box, the first choice first.

    f itself, beyond the box too; f after clipping; and, for integrals, f after clipping
    with a value where u log u has none, which is a set of measure 0.

    Args:
        f: The function.
        box: The domain of a token.
        almost: Whether a set of measure 0 does not count.
    """
    ways = [f, clipped(f, box)]
    other = with_entropies(f) if almost else f
    return ways if other == f else [*ways, clipped(other, box)]


def clipped(expression: Expression, box: Box) -> Expression:
    """f after clipping every entry to the box, an expression that is known everywhere.

    Example:
        >>> identity = Expression(1, 1, (Node("x", (0, 0)),), ((0,),))
        >>> import numpy as np
        >>> clipped(identity, Box((0.0,), (1.0,)))(np.array([[1.5]])).tolist()
        [[1.0]]
    """
    lines: list[Node] = []
    place: list[int] = []
    for node in expression.nodes:
        if node.op == "x":
            low, high = box.lows[node.args[1]], box.highs[node.args[1]]
            start = len(lines)
            lines += [node, Node("const", value=Fraction(low))]
            lines += [Node("max", (start, start + 1)), Node("const", value=Fraction(high))]
            lines.append(Node("min", (start + 2, start + 3)))
        else:
            lines.append(moved(node, place))
        place.append(len(lines) - 1)
    outputs = tuple(tuple(place[k] for k in row) for row in expression.outputs)
    return Expression(expression.seq_len, expression.d_model, tuple(lines), outputs)
