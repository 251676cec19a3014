"""Averaging attention as a form: registers, and no prefix tokens."""

from dataclasses import dataclass
from fractions import Fraction

from everyformer.certify.averaging.reading import read_registers
from everyformer.certify.cell_proof import prove_on_cells
from everyformer.certify.cells import Cells
from everyformer.certify.known import Known
from everyformer.certify.proof import Proof, Work
from everyformer.certify.weights import Weights
from everyformer.targets.box import Grid


@dataclass(frozen=True)
class RegisterForm:
    """A network with registers, without prefix tokens."""

    weights: Weights

    @property
    def symmetric(self) -> bool:
        """Without positions."""
        return not self.weights.positional

    def examined(self, grid: Grid, *, traced: bool) -> Grid:
        """The cells of the claim."""
        return grid

    def prove(
        self, grid: Grid, cells: Cells, known: Known, p: Fraction | None, work: Work
    ) -> Proof:
        """The registers through all stages, on every cell."""
        return prove_on_cells(self.weights, read_registers, cells, known, p, work)


def read(weights: Weights) -> RegisterForm | None:
    """Networks with registers, without prefix tokens."""
    held = weights.registers
    return None if held is None or held.prefix is not None else RegisterForm(weights)
