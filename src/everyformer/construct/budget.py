"""How far the network can be from f, from a declared modulus of continuity; tol to grid."""

from fractions import Fraction

import numpy as np

from everyformer.certify.bound import Bound
from everyformer.construct.constants import RAMP_WIDTH, Constants
from everyformer.construct.plan import (
    DEFAULT_MAX_MEMORY,
    Plan,
    check_feasible,
    make_plan,
)
from everyformer.construct.step import OWN, cite
from everyformer.construct.table import Table, piecewise_constant
from everyformer.errors import GridError, MemoryLimitError, TargetError, ToleranceError
from everyformer.model.forward import Progress, no_progress
from everyformer.numerics.rationals import power_up
from everyformer.papers import YUN2020, implements
from everyformer.targets.target import Target

SUMMATION_SLACK = Fraction(1, 10**6)
"""Relative allowance for a float64 sum of up to 2^30 positive terms: far above 2^-22."""


def check_exponent(p: int | float | Fraction) -> Fraction:
    """p of d_p as a rational.

    Raises:
        ToleranceError: If p is not a number in [1, infinity) with a small denominator.
    """
    try:
        exponent = Fraction(p)
    except (TypeError, ValueError, OverflowError):
        exponent = Fraction(0)
    if exponent < 1:
        msg = (
            f"p={p!r} is not a number >= 1. The theorems hold for 1 <= p < infinity; with "
            "p = infinity the ramps between cells never vanish. Use for example p=2."
        )
        raise ToleranceError(msg)
    if exponent.denominator > 64 or exponent.numerator > 64 * 64:
        msg = f"p={p!r} is not a ratio of small integers. Use for example p=2 or p=2.5."
        raise ToleranceError(msg)
    return exponent


@implements(YUN2020, "Lemma 8", "Proposition 4", "Lemma 9")
def distance_bound(c: Constants, target: Target, table: Table, p: Fraction) -> Bound | None:
    """An upper bound on d_p(f, g), with g taken as the network is meant.

    It holds if the modulus of continuity declared for f is true. It takes three things for
    granted that only a certificate can prove of given weights: attention is one-hot
    (softmax is hardmax), values are written without rounding, and f(C_L) is what was
    computed for it. The domain splits into three parts:

        cells        |f - A_L| <= omega(delta/2) in every entry, by Lemma 8
        duplicates   cells with repeated columns (Theorem 2): there g = 0 (Proposition 4)
        ramps        measure <= n d K rho; f and g lie in the range of f, by the clamp

    and the p-th powers of the parts add.

    Returns:
        The bound with its parts, or None when the target declares no modulus.
    """
    grid, N = c.grid, c.n * c.d
    radius = max(grid.box.widths) / (2 * c.K)
    omega = target.modulus_of_continuity(radius)
    if omega is None:
        return None
    volume = grid.box.volume(c.n)
    cells = Bound(
        power_up(volume * N * power_up(omega, p), 1 / p),
        f"cells: omega({float(radius):.4g}) <= {float(omega):.4g} in {N} entries, "
        f"declared for {target.name}",
        cite("Lemma 8"),
    )
    parts = [cells]
    extremes = [table.values]
    if not c.positional and c.n > 1:
        multisets = grid.repeated_multisets()
        values = target(grid.centres(multisets))
        extremes.append(values)
        parts.append(_duplicates(c, multisets, values, omega, p))
    if c.softened:
        low = min(float(v.min()) for v in extremes if v.size)
        high = max(float(v.max()) for v in extremes if v.size)
        parts.append(_ramps(c, Fraction(low), Fraction(high), omega, p))
    return Bound.p_norm(
        parts, p, f"d_p(f, g) with p = {p}, attention one-hot, values unrounded"
    )


def _duplicates(
    c: Constants,
    multisets: np.ndarray,
    values: np.ndarray,
    omega: Fraction,
    p: Fraction,
) -> Bound:
    """The p-norm of f over cells with repeated columns, where the network gives 0."""
    sizes = (np.abs(values) + float(omega)) ** float(p)
    orbits = c.grid.orbit_sizes(multisets)
    total = Fraction(float((sizes.sum(axis=(-2, -1)) * orbits).sum()))
    cell = c.grid.box.volume(c.n) / c.grid.sequences
    count = int(orbits.sum())
    return Bound(
        power_up(cell * total * (1 + SUMMATION_SLACK), 1 / p),
        f"duplicates: {count:,} of {c.grid.sequences:,} cells have equal columns, g = 0",
        cite("Proposition 4"),
    )


def _ramps(
    c: Constants, low: Fraction, high: Fraction, omega: Fraction, p: Fraction
) -> Bound:
    """Measure of the ramps times the range of f, to which the clamp keeps g."""
    N = c.n * c.d
    spread = max(high, Fraction(0)) - min(low, Fraction(0)) + 2 * omega
    measure = N * c.K * (RAMP_WIDTH + 2 * c.guard)
    volume = c.grid.box.volume(c.n)
    return Bound(
        power_up(volume * measure * N * power_up(spread, p), 1 / p),
        f"ramps: share <= {float(measure):.3g} of the domain, "
        f"range of f <= {float(spread):.4g}",
        OWN,
    )


def grid_for_tolerance(
    target: Target,
    tol: int | float,
    p: Fraction,
    *,
    softened: bool,
    positional: bool | None,
    max_memory: int = DEFAULT_MAX_MEMORY,
    progress: Progress = no_progress,
) -> tuple[Plan, Table, Bound]:
    """The coarsest dyadic grid whose bound on d_p meets the tolerance.

    An equivariant target gets Theorem 2, unless positions are asked for. Theorem 2 gives up
    the cells with equal columns; where no grid within float64 makes them few enough, and
    `positional` leaves the choice, Theorem 3 is taken instead.

    Returns:
        The plan for that grid, the table of f on it, and the bound.

    Raises:
        TargetError: If the target declares no modulus of continuity.
        ToleranceError: If no grid that can be built meets the tolerance.
    """
    if not (np.isfinite(tol) and tol > 0):
        msg = f"tol={tol!r} is not a positive number."
        raise ToleranceError(msg)
    if target.modulus_of_continuity(Fraction(1)) is None:
        msg = (
            f"tol={tol:g} was asked for {target.name}, which declares neither lipschitz "
            "nor modulus: how fine the grid must be cannot be known, and is never guessed "
            "from samples. Declare one of them, or choose the grid yourself (grid=...)."
        )
        raise TargetError(msg)
    choices = [positional]
    if positional is None and target.equivariant and target.seq_len > 1:
        choices = [False, True]
    failures: list[str] = []
    for choice in choices:
        found = _coarsest(target, tol, p, softened, choice, max_memory, progress)
        if not isinstance(found, str):
            return found
        failures.append(found)
    msg = (
        f"No grid that can be built brings d_p({target.name}, g) to tol={tol:g}. "
        f"{' '.join(failures)} Raise tol, or allow more memory."
    )
    raise ToleranceError(msg)


def _coarsest(
    target: Target,
    tol: int | float,
    p: Fraction,
    softened: bool,
    positional: bool | None,
    max_memory: int,
    progress: Progress,
) -> tuple[Plan, Table, Bound] | str:
    """The first grid of 2, 4, 8, ... that meets the tolerance, or why there is none."""
    best = "none"
    K = 2
    while True:
        plan = make_plan(target, K, softened=softened, positional=positional)
        c = plan.constants
        if not c.positional and c.grid.num_distinct_sets == 0:
            K *= 2
            continue
        try:
            check_feasible(plan, max_memory)
        except (GridError, MemoryLimitError) as error:
            return f"{c.theorem}: the best bound was {best}; the next grid fails: {error}"
        table = piecewise_constant(c, target, progress)
        bound = distance_bound(c, target, table, p)
        assert bound is not None, "a modulus is declared"  # noqa: S101
        if bound.value <= Fraction(tol):
            return plan, table, bound
        best = f"{bound.format_value()} at grid={K}"
        K *= 2
