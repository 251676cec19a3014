"""Selective shifts as a form: blocks as wide as the tokens."""

from everyformer.certify.on_cells.form import CellForm
from everyformer.certify.overflow import check_reach
from everyformer.certify.shifts.reading import read_network
from everyformer.certify.weights import Weights


def read(weights: Weights) -> CellForm | None:
    """Networks without registers: quantiser, ids, windows and clamp."""
    if weights.registers is not None:
        return None
    return CellForm(weights, read_network, check_reach)
