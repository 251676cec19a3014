"""From a tolerance to a grid: the coarsest whose certified bound meets it."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from everyformer.certify.certificate import Certificate
from everyformer.construct.plan import (
    DEFAULT_MAX_MEMORY,
    Plan,
    check_feasible,
    make_plan,
)
from everyformer.construct.table import Table, piecewise_constant
from everyformer.errors import (
    CertificateError,
    GridError,
    MemoryLimitError,
    TargetError,
    ToleranceError,
)
from everyformer.model.architecture import AttentionKind
from everyformer.model.forward import Progress, no_progress
from everyformer.model.network import Network
from everyformer.targets.target import Target
from everyformer.verdict import Verdict

Build = Callable[[Plan, Table], Network]
"""Builds the network of a plan that computes a table."""

Certify = Callable[[Network, Plan], Certificate]
"""Proves what a network of a plan is worth."""


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


def grid_for_tolerance(
    target: Target,
    tol: int | float,
    build: Build,
    certify: Certify,
    *,
    softened: bool,
    positional: bool | None,
    attention: AttentionKind = "dense",
    max_memory: int = DEFAULT_MAX_MEMORY,
    progress: Progress = no_progress,
) -> tuple[Plan, Table, Network, Certificate]:
    """The network on the coarsest dyadic grid whose certified bound meets the tolerance.

    An equivariant target gets Theorem 2, unless positions are asked for. Theorem 2 gives up
    the cells with equal columns; where no grid within float64 makes them few enough, and
    `positional` leaves the choice, Theorem 3 is taken instead. URPE always has positions.

    Raises:
        TargetError: If the target cannot be traced and declares no modulus of continuity.
        ToleranceError: If no grid that can be built meets the tolerance.
    """
    if not (np.isfinite(tol) and tol > 0):
        msg = f"tol={tol!r} is not a positive number."
        raise ToleranceError(msg)
    if target.modulus_of_continuity(Fraction(1)) is None and target.expression is None:
        msg = (
            f"tol={tol:g} was asked for {target.name}, which declares neither lipschitz "
            f"nor modulus, and cannot be traced: {target.untraceable} How fine the grid "
            "must be cannot be known, and is never guessed from samples. Make f traceable, "
            "declare one of the two, or choose the grid yourself (grid=...)."
        )
        raise TargetError(msg)
    choices = [positional]
    open_choice = positional is None and attention == "dense"
    if open_choice and target.equivariant and target.seq_len > 1:
        choices = [False, True]
    failures: list[str] = []
    for choice in choices:
        search = _Search(
            target, Fraction(tol), build, certify, softened, choice, attention, max_memory
        )
        found = search.coarsest(progress)
        if not isinstance(found, str):
            return found
        failures.append(found)
    msg = (
        f"No grid that can be built brings d_p({target.name}, g) to tol={tol:g}. "
        f"{' '.join(failures)} Raise tol, or allow more memory."
    )
    raise ToleranceError(msg)


@dataclass(frozen=True)
class _Search:
    """Grids of 2, 4, 8, ... cells for one theorem."""

    target: Target
    tol: Fraction
    build: Build
    certify: Certify
    softened: bool
    positional: bool | None
    attention: AttentionKind
    max_memory: int

    def coarsest(
        self, progress: Progress
    ) -> tuple[Plan, Table, Network, Certificate] | str:
        """The first grid that meets the tolerance, or why there is none."""
        best = "none"
        K = 2
        while True:
            plan = make_plan(
                self.target,
                K,
                softened=self.softened,
                positional=self.positional,
                attention=self.attention,
            )
            c = plan.constants
            if not c.positional and c.grid.num_distinct_sets == 0:
                K *= 2
                continue
            try:
                check_feasible(plan, self.max_memory)
                table = piecewise_constant(c, self.target, progress)
                network = self.build(plan, table)
                certificate = self.certify(network, plan)
            except (CertificateError, GridError, MemoryLimitError) as error:
                return f"{c.theorem}: best bound {best}; the next grid fails: {error}"
            if certificate.verdict is Verdict.PROVED:
                return plan, table, network, certificate
            best = f"{_described(certificate)} at grid={K}"
            K *= 2


def _described(certificate: Certificate) -> str:
    """The larger of the bounds claimed, or what stands in their way."""
    bounds = [certificate.bound, certificate.float64_bound]
    found = [bound for bound in bounds if bound is not None]
    if not found:
        return f"none ({'; '.join(certificate.obstacles)})"
    return max(found, key=lambda bound: bound.value).format_value()
