"""What is to be approximated, how well, and what was tried so far."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np

from everyformer.certify.certificate import LARGEST, SMALLEST
from everyformer.construct.table_error import TableErrors
from everyformer.errors import EveryformerError, GridError, TargetError, ToleranceError
from everyformer.numerics.limits import format_count, is_number, is_positive, shown
from everyformer.progress import Progress, no_progress
from everyformer.targets.target import Target

DEFAULT_MAX_MEMORY = 4 * 2**30
"""Bytes a construction may need unless the caller allows more."""


@dataclass(frozen=True)
class Trial:
    """A plan that was tried, or a method that had none.

    Attributes:
        label: The construction in few words.
        grid: K, if it has one.
        parameters: Numbers in its weights.
        outcome: The bound that was proved, or what stopped it.
        final: Whether finer plans of this label are not worth trying.
    """

    label: str
    grid: int | None
    parameters: int | None
    outcome: str
    final: bool = False

    def __str__(self) -> str:
        size = "" if self.grid is None else f", grid={self.grid}"
        if self.parameters is not None:
            size += f", {format_count(self.parameters)} parameters"
        return f"{self.label}{size}: {self.outcome}"


@dataclass(frozen=True)
class Problem:
    """A target and what is asked for: a grid, or a distance.

    Attributes:
        target: f.
        p: The exponent of d_p; None for the supremum.
        grid: K, cells per axis; or
        tol: the distance d_p(f, g) allowed.
        max_memory: Bytes that building may need.
        workers: Processes on this machine, for bounds that plans need.
        progress: Called as progress(what, done, total).
        tried: What was tried in vain, in order.
    """

    target: Target
    p: Fraction | None
    grid: int | None = None
    tol: Fraction | None = None
    max_memory: int | float = DEFAULT_MAX_MEMORY
    workers: int | None = 1
    progress: Progress = no_progress
    tried: list[Trial] = field(default_factory=list[Trial], compare=False)

    @cached_property
    def errors(self) -> TableErrors | None:
        """How far f is from tables of its values; None for the supremum or a region.

        They are measured on the whole box, of which a region may be a small part.
        """
        if self.p is None or self.target.region is not None:
            return None
        return TableErrors(self.target, self.p, self.workers, self.progress)


def exponent(p: int | float | Fraction, *, supremum: bool) -> Fraction | None:
    """p of d_p as a rational; None for the supremum, where a method has bounds for it.

    Raises:
        ToleranceError: If p is not a number in [1, infinity) with a small denominator.
    """
    if supremum and p == math.inf:
        return None
    try:
        given = p.item() if isinstance(p, np.generic) else p
        found = Fraction(given) if is_number(given) else Fraction(0)
    except (TypeError, ValueError, OverflowError):
        found = Fraction(0)
    if found < 1 and supremum:
        msg = f"p={shown(p)} is not a number >= 1. Use for example p=2, or p=math.inf."
        raise ToleranceError(msg)
    if found < 1:
        msg = (
            f"p={shown(p)} is not a number >= 1. The theorems hold for 1 <= p < infinity; "
            "with p = infinity the ramps between cells never vanish, and a bound needs a "
            "network that varies continuously (docs/constructions/partition.md). Use for "
            "example p=2."
        )
        raise ToleranceError(msg)
    if found.denominator > 64 or found.numerator > 64 * 64:
        msg = (
            f"p={shown(p)} is not a ratio of small integers. Use for example p=2 or p=2.5."
        )
        raise ToleranceError(msg)
    return found


def check_tolerance(target: Target, tol: int | float) -> Fraction:
    """A tolerance as a rational, 0.1 as a tenth.

    Raises:
        ToleranceError: If it is not a positive number.
        TargetError: If the target cannot be traced and declares no modulus of continuity.
    """
    if not is_positive(tol):
        msg = f"tol={shown(tol)} is not a positive number. {_meant(tol)}."
        raise ToleranceError(msg)
    found = tol if isinstance(tol, Fraction) else Fraction(str(tol))
    if not SMALLEST <= found <= LARGEST:
        msg = (
            f"tol={shown(tol)} is not a distance that a certificate claims: it must be "
            f"from {float(SMALLEST)} to 2^1000. {_meant(tol)}."
        )
        raise ToleranceError(msg)
    if target.modulus_of_continuity(Fraction(1)) is None and target.expression is None:
        target.check()
        msg = (
            f"tol={tol:g} was asked for {target.name}, which declares neither lipschitz "
            f"nor modulus, and cannot be traced: {target.untraceable} How fine the grid "
            "must be cannot be known, and is never guessed from samples. Make f traceable, "
            "declare one of the two, or choose the grid yourself (grid=...)."
        )
        raise TargetError(msg)
    return found


def check_grid(grid: object) -> None:
    """Refuse what is not a number of cells, where it is plain what was meant.

    Raises:
        GridError: With what to write.
    """
    if grid is None or isinstance(grid, int | np.integer):
        return
    try:
        number = float(str(grid).strip())
    except ValueError:
        return
    if number >= 2 and number.is_integer():
        said = f"is not an integer: write grid={int(number)}"
    elif 0 < number < 1:
        said = f"is less than one cell per axis. A distance is given as tol={number:g}"
    else:
        return
    raise GridError(f"grid={shown(grid)} {said}.")


def _meant(tol: object) -> str:
    """What a tolerance should be written as."""
    try:
        text = str(tol).strip()
        number = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        number = math.nan
    if isinstance(tol, str) and 0 < number < math.inf:
        return f"It is text: write tol={number:g}"
    return "Give one such as tol=0.1"


def out_of_reach(
    problem: Problem, could: Sequence[str] = (), unseen: Sequence[str] = ()
) -> EveryformerError:
    """No plan meets the tolerance: what was tried, and what to do.

    Args:
        problem: With what was tried.
        could: Methods that meet the tolerance as planned, one line each.
        unseen: Names of methods that were not planned.
    """
    if problem.tol is None:
        msg = f"The method has no plan for {problem.target.name} at grid={problem.grid}."
        return GridError(f"{msg} Use another grid, or another method.")
    norm = "inf" if problem.p is None else problem.p
    lines = [
        f"No network that can be built brings d_{norm}({problem.target.name}, g) to "
        f"tol={float(problem.tol):g}. Tried:",
        *trial_table(problem.tried),
    ]
    if could:
        lines += ["Methods that could, as planned:", *(f"  {one}" for one in could)]
    else:
        lines.append("Of the methods that are planned in a moment none other could.")
    if unseen:
        names = ", ".join(unseen)
        lines.append(f"Not planned: {names}; `everyformer plan --compare` plans them all.")
    lines.append("Raise tol, allow more memory, or use another method.")
    return ToleranceError("\n".join(lines))


def trial_table(tried: Sequence[Trial]) -> list[str]:
    """What was tried as a table, a line for each.

    Example:
        >>> for line in trial_table([Trial("Theorem 3", 2, 900, "bound 2.5e-01")]):
        ...     print(line)
          construction  grid  parameters  outcome
          Theorem 3        2         900  bound 2.5e-01
    """
    rows = [("construction", "grid", "parameters", "outcome")]
    for one in tried:
        grid = "" if one.grid is None else str(one.grid)
        numbers = "" if one.parameters is None else format_count(one.parameters)
        rows.append((one.label, grid, numbers, one.outcome))
    wide = [max(len(row[i]) for row in rows) for i in range(3)]
    return [f"  {a:<{wide[0]}}  {b:>{wide[1]}}  {c:>{wide[2]}}  {d}" for a, b, c, d in rows]
