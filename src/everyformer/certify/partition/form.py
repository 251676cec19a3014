"""The partition of unity as a form: prefix tokens that softmax averages over."""

from dataclasses import dataclass
from fractions import Fraction

from everyformer.certify.certificate import current_versions
from everyformer.certify.known import Known
from everyformer.certify.on_cells.cells import Cells
from everyformer.certify.partition.prove import prove_partition
from everyformer.certify.proof import Proof, Work, obstacle_of
from everyformer.certify.undecided import Undecided
from everyformer.certify.weights import Weights
from everyformer.errors import CertificateError
from everyformer.targets.box import Box, Grid


@dataclass(frozen=True)
class PrefixForm:
    """A network with prefix tokens."""

    weights: Weights

    @property
    def symmetric(self) -> bool:
        """Never: its tokens know their positions."""
        return False

    @property
    def by_cells(self) -> bool:
        """No: bounds are for all points of the box at once."""
        return False

    def examined(self, grid: Grid, *, traced: bool) -> Grid:
        """The cells of the claim; for a declared f cells around the points of its grid."""
        return grid if traced else around_points(grid)

    def prove(
        self, grid: Grid, cells: Cells, known: Known, p: Fraction | None, work: Work
    ) -> Proof:
        """The average over anchors against f, cell by cell."""
        weights, computing = self.weights, work.computing
        box = grid.box
        parts = (work.purpose, current_versions(), weights.sha256, known.sha256, grid.cells)
        shards = (computing, repr((*parts, box.lows, box.highs)))
        try:
            return prove_partition(weights, grid, known, p, shards, balls=work.balls)
        except (Undecided, OverflowError) as error:
            return Proof(obstacles=(obstacle_of(error, weights),))


def read(weights: Weights) -> PrefixForm | None:
    """Networks with prefix tokens."""
    held = weights.registers
    return None if held is None or held.prefix is None else PrefixForm(weights)


def around_points(grid: Grid) -> Grid:
    """Cells whose centres are the K + 1 points of each axis that divide it into K.

    Raises:
        CertificateError: If they reach beyond float64.
    """
    steps = [width / grid.cells for width in grid.box.widths]
    ends = zip(grid.box.lows, grid.box.highs, steps, strict=True)
    try:
        pairs = [
            (float(Fraction(a) - h / 2), float(Fraction(b) + h / 2)) for a, b, h in ends
        ]
    except OverflowError as error:
        msg = f"Half a cell beyond {grid.box} float64 has no numbers. Use a smaller domain."
        raise CertificateError(msg) from error
    lows, highs = zip(*pairs, strict=True)
    return Grid(grid.cells + 1, grid.seq_len, Box(tuple(lows), tuple(highs)))
