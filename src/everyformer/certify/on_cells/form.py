"""Networks that are constant on cells, as a form of which there are two kinds."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from everyformer.certify.known import Known
from everyformer.certify.on_cells.cells import Cells
from everyformer.certify.on_cells.proof import Read, prove_on_cells
from everyformer.certify.proof import Proof, Work
from everyformer.certify.weights import Weights
from everyformer.targets.box import Box, Grid


@dataclass(frozen=True)
class CellForm:
    """A network that is read on the cells of the claim.

    Attributes:
        weights: The network.
        read: Reads it.
        check_run: Raises Undecided where a float64 run may overflow.
    """

    weights: Weights
    read: Read
    check_run: Callable[[Weights, Box], None] | None = None

    @property
    def symmetric(self) -> bool:
        """Without positions and gains."""
        return not self.weights.positional

    @property
    def by_cells(self) -> bool:
        """Such a network is a constant on each cell, so it is compared cell by cell."""
        return True

    def examined(self, grid: Grid, *, traced: bool) -> Grid:
        """The cells of the claim."""
        return grid

    def prove(
        self, grid: Grid, cells: Cells, known: Known, p: Fraction | None, work: Work
    ) -> Proof:
        """What the network does on every cell."""
        return prove_on_cells(
            self.weights, self.read, cells, known, p, work, check_run=self.check_run
        )
