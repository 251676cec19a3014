"""From a tolerance to a lattice: the fewest anchors whose proved bound meets it.

b falls very fast as D shrinks, m2 only grows like 1/(2D), so D is looked for among a few
values; likewise the margin. For each margin the grid is refined until one D meets the
tolerance, then the least such K is looked for by halving. That K is least if the bound
decreases in K, as all formulas do; whether or not, the bound of what is returned is proved.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from everyformer.certify.bound import Bound
from everyformer.certify.lattice import Partition
from everyformer.certify.lattice_field import LatticeField, lattice_field
from everyformer.certify.partition import everywhere, leak, rounding
from everyformer.certify.partition_local import cell_bounds, distance_bound
from everyformer.errors import ToleranceError
from everyformer.numerics.expression import Expression
from everyformer.numerics.rationals import format_up
from everyformer.targets.box import Box, Grid

DECAYS = tuple(Fraction(D) for D in ("3/4", "1", "3/2", "2", "3"))
"""Values of D to try."""

MARGINS = (3, 4)
"""Margins to try."""

MAX_ANCHORS = 2**20
"""Prefix tokens at most; enclosures of f on as many cells take minutes."""

Prove = Callable[[Partition], Bound]
"""A proved bound of d_p(f, g) for a lattice."""


@dataclass(frozen=True)
class Cost:
    """What the network costs.

    Attributes:
        prefix_tokens: P, tokens before the sequence; each is one anchor.
        width: 2d + n + 5N + 3 registers of a token.
        parameters: Numbers in the matrices that are used, zeros included, and in the
            prefix: two attention layers with one head of size N + 1, feed-forward layers
            with N and 2N hidden units.
        scores: n P, the scores of the second attention that are read.
    """

    prefix_tokens: int
    width: int
    parameters: int
    scores: int


def cost(partition: Partition) -> Cost:
    """Count what the network of a lattice needs.

    Example:
        >>> cost(Partition(Grid(16, 2, Box((0.0,), (1.0,))), Fraction(1), 4))
        Cost(prefix_tokens=625, width=17, parameters=11277, scores=1250)
    """
    n, d, N = partition.grid.seq_len, partition.grid.d_model, partition.size
    width = 2 * d + n + 5 * N + 3
    attention = 2 * 4 * (N + 1) * width
    feed_forward = 2 * 3 * N * width + 3 * N + 2 * width
    prefix = partition.anchors * width
    total = attention + feed_forward + prefix
    return Cost(partition.anchors, width, total, n * partition.anchors)


@dataclass(frozen=True)
class Choice:
    """A lattice that meets a tolerance, its bound, and what it costs."""

    partition: Partition
    bound: Bound
    cost: Cost


class TracedBounds:
    """Bounds of d_p(f, g) for a traced f, for one lattice after the other.

    The enclosures of f depend on K and m, not on D; those of the last lattice are kept.

    Args:
        expression: f, defined on the anchors' boxes.
        p: The exponent.
        run: Whether to add what rounding in float64 may do.
    """

    def __init__(self, expression: Expression, p: Fraction, *, run: bool = False) -> None:
        """Keep what was given."""
        self._expression, self._p, self._run = expression, p, run
        self._last: tuple[tuple[Grid, int], LatticeField] | None = None

    def field(self, partition: Partition) -> LatticeField:
        """f, its slopes and curves on the cells of a lattice."""
        key = (partition.grid, partition.margin)
        if self._last is None or self._last[0] != key:
            self._last = key, lattice_field(self._expression, partition)
        return self._last[1]

    def __call__(self, partition: Partition) -> Bound:
        """The bound, as a tree.

        Raises:
            CertificateError: If f or its slopes are not known to be finite.
        """
        field = self.field(partition)
        largest = field.largest
        terms = [
            distance_bound(cell_bounds(field, partition), partition, self._p),
            everywhere(partition, leak(partition, largest, partition.suppression), self._p),
        ]
        if self._run:
            terms.append(everywhere(partition, rounding(partition, largest), self._p))
        return Bound.total(terms, f"d_p(f, g), p = {self._p}")


def choose(
    prove: Prove,
    seq_len: int,
    box: Box,
    tol: int | float | Fraction,
    *,
    decays: Sequence[Fraction] = DECAYS,
    margins: Sequence[int] = MARGINS,
    max_anchors: int = MAX_ANCHORS,
) -> Choice:
    """The lattice with the fewest anchors whose bound meets a tolerance.

    Args:
        prove: The bound of a lattice, such as `TracedBounds`.
        seq_len: n.
        box: The domain of a token.
        tol: Allowed for the bound.
        decays: Values of D to try.
        margins: Margins m to try.
        max_anchors: More are not allowed.

    Raises:
        ToleranceError: If no lattice with so few anchors meets the tolerance.
        CertificateError: If the target has no bound at all.
    """
    search = _Search(prove, seq_len, box, Fraction(tol), decays, max_anchors)
    found: list[tuple[Partition, Bound]] = []
    for m in margins:
        best = search.least(m)
        if best is not None:
            found.append(best)
            search.max_anchors = best[0].anchors  # other margins must do as well
    if not found:
        raise ToleranceError(search.refusal())
    partition, bound = min(found, key=lambda best: (best[0].anchors, best[1].value))
    return Choice(partition, bound, cost(partition))


class _Search:
    """Lattices tried, for one tolerance."""

    def __init__(
        self,
        prove: Prove,
        seq_len: int,
        box: Box,
        tol: Fraction,
        decays: Sequence[Fraction],
        max_anchors: int,
    ) -> None:
        self.prove, self.seq_len, self.box, self.tol = prove, seq_len, box, tol
        self.decays, self.max_anchors = decays, max_anchors
        self.best: tuple[Partition, Bound] | None = None

    def least(self, margin: int) -> tuple[Partition, Bound] | None:
        """The least K for a margin, or None."""
        low, high = 1, 2
        found = self.at(high, margin)
        while found is None:
            low, high = high, self.next_size(high, margin)
            if high == low:
                return None
            found = self.at(high, margin)
        while high - low > 1:
            middle = (low + high) // 2
            better = self.at(middle, margin)
            low, high = (low, middle) if better else (middle, high)
            found = better or found
        return found

    def next_size(self, K: int, margin: int) -> int:
        """Twice as fine, or as fine as allowed."""
        N = self.seq_len * len(self.box.lows)
        finest = K
        while finest < 2 * K and (finest + 2 + 2 * margin) ** N <= self.max_anchors:
            finest += 1
        return finest

    def at(self, K: int, margin: int) -> tuple[Partition, Bound] | None:
        """The best D for a grid and a margin, if it meets the tolerance."""
        grid = Grid(K, self.seq_len, self.box)
        lattices = [Partition(grid, D, margin) for D in self.decays]
        if lattices[0].anchors > self.max_anchors:
            return None
        tried = [(partition, self.prove(partition)) for partition in lattices]
        found = min(tried, key=lambda one: one[1].value)
        if self.best is None or found[1].value < self.best[1].value:
            self.best = found
        return found if found[1] <= self.tol else None

    def refusal(self) -> str:
        """What was asked for, what was found, and what to do."""
        said = "no lattice is that small"
        if self.best is not None:
            partition, bound = self.best
            said = (
                f"the best has {partition.anchors} anchors and the bound "
                f"{format_up(bound.value)}"
            )
        return (
            f"No lattice with at most {self.max_anchors} anchors meets the tolerance "
            f"{float(self.tol):g}: {said}. Allow a larger tolerance, or more anchors."
        )
