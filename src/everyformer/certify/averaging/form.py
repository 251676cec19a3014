"""Averaging attention as a form: registers, and no prefix tokens."""

from everyformer.certify.averaging.reading import read_registers
from everyformer.certify.on_cells.form import CellForm
from everyformer.certify.weights import Weights


def read(weights: Weights) -> CellForm | None:
    """Networks with registers, without prefix tokens."""
    held = weights.registers
    if held is None or held.prefix is not None:
        return None
    return CellForm(weights, read_registers)
