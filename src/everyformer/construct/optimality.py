"""Parameters over the lower bound, against K: "optimal in order" (Section 5.4)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from rich.table import Table as RichTable
from rich.text import Text

from everyformer.construct.residual import ResidualPlan
from everyformer.construct.shifts.plan import plan_shifts
from everyformer.papers import YUN2020, implements
from everyformer.targets.target import Target

GRIDS = tuple(2**k for k in range(1, 9))
LARGEST = 10**300


@dataclass(frozen=True)
class Ratio:
    """Parameters over what any table of the function must store, on one grid.

    Attributes:
        grid: K.
        lower_bound: (output dimension) x (cubes), over n! for an equivariant function.
        transformer: Parameters of Theorem 2 or 3 over it.
        residual: Those of the residual network with one neuron a layer over it.
    """

    grid: int
    lower_bound: Fraction
    transformer: Fraction
    residual: Fraction

    @property
    def numbers(self) -> tuple[float, float]:
        """Both ratios in float64; infinity where n! is beyond it."""
        both = (self.transformer, self.residual)
        one, other = (float(r) if r < LARGEST else math.inf for r in both)
        return one, other

    def to_json(self) -> dict[str, int | float | None]:
        """A JSON object; None for what float64 does not hold."""
        one, other = (r if math.isfinite(r) else None for r in self.numbers)
        return {
            "grid": self.grid,
            "transformer_over_lower_bound": one,
            "residual_over_lower_bound": other,
        }


@implements(YUN2020, "Section 5.4")
def ratios(target: Target) -> list[Ratio]:
    """Both networks on K = 2, 4, .., 256, by formula; nothing is built.

    With K the ratios tend to constants: the Transformer's to about 2 (17 d + 6)/d, since
    every table entry takes two blocks, and the residual network's to (2 n d + 1)/(n d),
    times n! for an equivariant function, whose symmetry it does not use.
    """
    found: list[Ratio] = []
    for K in GRIDS:
        plan = plan_shifts(target, K)
        if plan.is_vacuous:
            continue
        bound = plan.lower_bound
        residual = ResidualPlan(plan.shape).parameters
        found.append(Ratio(K, bound, plan.parameters / bound, residual / bound))
    return found


def ratio_table(rows: Sequence[Ratio]) -> RichTable:
    """The ratios for the terminal."""
    title = "Parameters / lower bound of Section 5.4 (a constant: optimal in order)"
    table = RichTable(title=Text(title), title_justify="left", box=None)
    table.add_column("K", justify="right")
    table.add_column("Yun et al.", justify="right")
    table.add_column("residual network*", justify="right")
    for row in rows:
        shown = (f"{r:.1f}" if r < 1e6 else f"{r:.1e}" for r in row.numbers)
        table.add_row(str(row.grid), *shown)
    return table
