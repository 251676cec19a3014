"""How exact each kind of gadget is to be.

One number for all makes some gadgets finer than their part of the error needs. What costs
is the finest one of each grid of knots, since grids share prefix tokens. So the kinds have
factors of their own, which are raised one after the other, as long as the bound that the
verifier finds meets the tolerance and the network becomes smaller (`plan.py`).
"""

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal

from everyformer.construct.compile.program import (
    ExponentialSum,
    Normalise,
    Product,
    Program,
    Unary,
)

Kind = Literal["function", "product", "square", "root"]


@dataclass(frozen=True)
class Precision:
    """The wanted error of gadgets: the base, times the factor of their kind.

    Attributes:
        base: The wanted error of all that has no factor.
        function: Of functions of one number.
        product: Of products.
        square: Of squares under a root.
        root: Of 1/sqrt in normalised values.
    """

    base: Fraction
    function: int = 1
    product: int = 1
    square: int = 1
    root: int = 1

    def of(self, kind: Kind) -> Fraction:
        """The wanted error of a kind."""
        return self.base * getattr(self, kind)

    @property
    def largest(self) -> Fraction:
        """The wanted error of the coarsest kind."""
        return self.base * max(self.function, self.product, self.square, self.root)

    def coarser(self, kinds: tuple[Kind, ...], by: int) -> "Precision":
        """The same with larger errors of some kinds."""
        return replace(self, **{kind: getattr(self, kind) * by for kind in kinds})


def kinds_of(program: Program) -> list[tuple[Kind, ...]]:
    """The kinds of gadgets that a program has: all at once, then one by one."""
    steps = program.steps()
    present: list[Kind] = []
    if any(isinstance(step, Unary | ExponentialSum) for step in steps):
        present.append("function")
    if any(isinstance(step, Product | Normalise) for step in steps):
        present.append("product")
    if any(isinstance(step, Normalise) for step in steps):
        present.extend(("square", "root"))
    alone: list[tuple[Kind, ...]] = [(kind,) for kind in present]
    return [tuple(present), *alone] if len(present) > 1 else alone
