"""Selective shifts as a form: blocks as wide as the tokens."""

from dataclasses import dataclass
from fractions import Fraction

from everyformer.certify.cell_proof import prove_on_cells
from everyformer.certify.cells import Cells
from everyformer.certify.known import Known
from everyformer.certify.overflow import check_reach
from everyformer.certify.proof import Proof, Work
from everyformer.certify.shifts.reading import read_network
from everyformer.certify.weights import Weights
from everyformer.targets.box import Grid


@dataclass(frozen=True)
class ShiftForm:
    """A network without registers."""

    weights: Weights

    @property
    def symmetric(self) -> bool:
        """Without positions and gains."""
        return not self.weights.positional

    def examined(self, grid: Grid, *, traced: bool) -> Grid:
        """The cells of the claim."""
        return grid

    def prove(
        self, grid: Grid, cells: Cells, known: Known, p: Fraction | None, work: Work
    ) -> Proof:
        """Quantiser, ids, windows and clamp, on every cell."""
        return prove_on_cells(
            self.weights, read_network, cells, known, p, work, check_run=check_reach
        )


def read(weights: Weights) -> ShiftForm | None:
    """Networks without registers."""
    return ShiftForm(weights) if weights.registers is None else None
