"""The piecewise constant target (Lemma 8), as a table over the grid."""

from dataclasses import dataclass
from itertools import permutations

import numpy as np

from everyformer.errors import TargetError
from everyformer.papers import YUN2020, implements
from everyformer.progress import Progress, no_progress
from everyformer.targets.box import Grid
from everyformer.targets.target import Target

EQUIVARIANCE_BUDGET = 1 << 20
"""Most evaluations of f that the check of a declared equivariance may cost."""

EQUIVARIANCE_TOLERANCE = 1e-9
"""How far f(PX) may lie from P f(X), relative to the size of f: sums round differently."""


@dataclass(frozen=True)
class Table:
    """A_L = f(C_L) for the sequences that the network is to tell apart.

    Attributes:
        columns: Column numbers, shape (count, n). Theorem 2: sets of different columns,
            increasing (permutations follow by equivariance). Theorem 3: all sequences.
        values: A_L, shape (count, n, d).
    """

    columns: np.ndarray
    values: np.ndarray


@implements(YUN2020, "Lemma 8")
def piecewise_constant(
    grid: Grid, target: Target, progress: Progress = no_progress, *, positional: bool
) -> Table:
    """Evaluate f at the centre of every cell that the network tells apart.

    Args:
        grid: The cells.
        target: f.
        progress: Called as progress(what, done, total).
        positional: Whether the network tells the orders of tokens apart.

    Raises:
        TargetError: If f returns something impossible, or is declared equivariant and is
            not, naming the cell.
    """
    columns = grid.all_sequences() if positional else grid.distinct_sets()
    progress("evaluate the target", 0, len(columns))
    values = target(target.centres(grid, columns))
    progress("evaluate the target", len(columns), len(columns))
    table = Table(columns, values)
    if not positional and grid.seq_len > 1:
        check_equivariance(grid, target, table, progress)
    return table


def all_multisets(grid: Grid, target: Target, progress: Progress = no_progress) -> Table:
    """f at the centres of all cells up to permutations, equal columns included.

    Raises:
        TargetError: As `piecewise_constant`.
    """
    columns = np.concatenate([grid.distinct_sets(), grid.repeated_multisets()])
    progress("evaluate the target", 0, len(columns))
    table = Table(columns, target(target.centres(grid, columns)))
    progress("evaluate the target", len(columns), len(columns))
    if grid.seq_len > 1:
        check_equivariance(grid, target, table, progress)
    return table


def check_equivariance(
    grid: Grid, target: Target, table: Table, progress: Progress = no_progress
) -> None:
    """Compare f(P X) with P f(X) on the grid.

    All permutations of all sets of columns are tried where that stays within the budget;
    otherwise the two that generate all others (swap the first two, rotate), on sets spread
    evenly over the grid.

    Raises:
        TargetError: Naming the first cell and permutation where they differ.
    """
    columns, values, n = table.columns, table.values, grid.seq_len
    orders = [list(order) for order in permutations(range(n))][1:] if n <= 6 else []
    if not orders or len(orders) * len(columns) > EQUIVARIANCE_BUDGET:
        orders = [[1, 0, *range(2, n)], [*range(1, n), 0]]
        stride = -(-len(orders) * len(columns) // EQUIVARIANCE_BUDGET)
        columns, values = columns[::stride], values[::stride]
    if len(columns) == 0:
        return
    scale = 1.0 + float(np.abs(values).max())
    for done, order in enumerate(orders):
        progress("check equivariance", done, len(orders))
        moved = target(grid.centres(columns[:, order]))
        gap = np.abs(moved - values[:, order]).max(axis=(-2, -1))
        worst = int(np.argmax(gap))
        if gap[worst] > EQUIVARIANCE_TOLERANCE * scale:
            msg = (
                f"{target.name} is declared equivariant but is not: at "
                f"{grid.describe(columns[worst])} and the token order {order}, f of the "
                f"permuted sequence differs from the permuted f by {gap[worst]:.3g}. "
                "Declare equivariant=False (Theorem 3 then adds positions), or repair f."
            )
            raise TargetError(msg)
    progress("check equivariance", len(orders), len(orders))
