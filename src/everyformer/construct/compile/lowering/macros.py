"""Claims about several registers together: products and normalised tokens."""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from everyformer.construct.compile.lowering.allocate import Allocation
from everyformer.construct.compile.lowering.gadgets import Cell
from everyformer.construct.compile.lowering.schedule import Schedule


@dataclass(frozen=True, eq=False)
class ProductMacro:
    """a b = ((l a + b/l)^2 - (l a - b/l)^2)/4, the squares in cells `plus` and `minus`."""

    plus: Cell
    minus: Cell
    balance: Fraction

    def claim(self, plan: Schedule, places: Allocation) -> dict[str, Any]:
        """The claim about it."""
        return {
            "step": "product",
            "block": plan.starts[self.plus] // 2,
            "registers": [places.register[self.plus], places.register[self.minus]],
            "balance": str(self.balance),
        }


@dataclass(frozen=True, eq=False)
class NormaliseMacro:
    """c_i (delta + mean of c^2)^(-1/2), by squares, a root and products."""

    squares: list[Cell]
    root: Cell
    products: list[ProductMacro]
    delta: Fraction

    def claim(self, plan: Schedule, places: Allocation) -> dict[str, Any]:
        """The claim about it."""

        def at(cell: Cell) -> list[int]:
            return [plan.starts[cell] // 2, places.register[cell]]

        return {
            "step": "normalise",
            "squares": [at(cell) for cell in self.squares],
            "root": at(self.root),
            "products": [[*at(p.plus), places.register[p.minus]] for p in self.products],
            "delta": str(self.delta),
        }
