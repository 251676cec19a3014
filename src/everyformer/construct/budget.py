"""From a tolerance to a grid: the coarsest whose certified bound meets it."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from everyformer.certify.certificate import Certificate
from everyformer.construct.plan import DEFAULT_MAX_MEMORY, Plan, check_feasible
from everyformer.construct.table import Table
from everyformer.errors import (
    CertificateError,
    GridError,
    MemoryLimitError,
    TargetError,
    ToleranceError,
)
from everyformer.model.network import Network
from everyformer.numerics.limits import is_number, is_positive, shown
from everyformer.targets.target import Target
from everyformer.verdict import Verdict

MakePlan = Callable[[int, bool | None], Plan]
"""Plans a network for a grid, with positions, without, or as the target has it."""

Build = Callable[[Plan], tuple[Table, Network]]
"""Evaluates the target, and builds the network of a plan that computes it."""

Certify = Callable[[Network, Plan], Certificate]
"""Proves what a network of a plan is worth."""


def check_exponent(p: int | float | Fraction, method: str = "selective-shift") -> Fraction:
    """p of d_p as a rational.

    Raises:
        ToleranceError: If p is not a number in [1, infinity) with a small denominator.
    """
    try:
        given = p.item() if isinstance(p, np.generic) else p
        exponent = Fraction(given) if is_number(given) else Fraction(0)
    except (TypeError, ValueError, OverflowError):
        exponent = Fraction(0)
    if exponent < 1:
        msg = (
            f"p={shown(p)} is not a number >= 1. The theorems hold for 1 <= p < infinity; "
            "with p = infinity the ramps between cells never vanish. Use for example p=2."
        )
        if method == "averaging":
            msg += (
                " A bound for p = infinity needs a network that varies continuously: the "
                "softmax partition of unity, see docs/constructions/partition.md."
            )
        raise ToleranceError(msg)
    if exponent.denominator > 64 or exponent.numerator > 64 * 64:
        msg = (
            f"p={shown(p)} is not a ratio of small integers. Use for example p=2 or p=2.5."
        )
        raise ToleranceError(msg)
    return exponent


def check_tolerance(target: Target, tol: int | float) -> Fraction:
    """A tolerance as a rational, 0.1 as a tenth.

    Raises:
        ToleranceError: If it is no positive number.
        TargetError: If the target cannot be traced and declares no modulus of continuity.
    """
    if not is_positive(tol):
        msg = f"tol={shown(tol)} is not a positive number. Give one such as tol=0.1."
        raise ToleranceError(msg)
    if target.modulus_of_continuity(Fraction(1)) is None and target.expression is None:
        msg = (
            f"tol={tol:g} was asked for {target.name}, which declares neither lipschitz "
            f"nor modulus, and cannot be traced: {target.untraceable} How fine the grid "
            "must be cannot be known, and is never guessed from samples. Make f traceable, "
            "declare one of the two, or choose the grid yourself (grid=...)."
        )
        raise TargetError(msg)
    return tolerance(tol)


def tolerance(tol: int | float | Fraction) -> Fraction:
    """A number as the rational that its decimal text means: 0.1 is a tenth."""
    return Fraction(tol) if isinstance(tol, Fraction) else Fraction(str(tol))


def grid_for_tolerance(
    target: Target,
    tol: int | float,
    make_plan: MakePlan,
    build: Build,
    certify: Certify,
    *,
    choices: tuple[bool | None, ...],
    max_memory: int | float = DEFAULT_MAX_MEMORY,
) -> tuple[Plan, Table, Network, Certificate]:
    """The network on the coarsest dyadic grid whose certified bound meets the tolerance.

    Args:
        target: The function.
        tol: The distance allowed.
        make_plan: Plans a network for a grid.
        build: Builds the network of a plan.
        certify: Proves what it is worth.
        choices: With positions or without, in the order in which they are tried.
        max_memory: Bytes that building may need.

    Raises:
        TargetError: If the target cannot be traced and declares no modulus of continuity.
        ToleranceError: If no grid that can be built meets the tolerance.
    """
    check_tolerance(target, tol)
    failures: list[str] = []
    for choice in choices:
        found = _Search(make_plan, build, certify, choice, max_memory).coarsest()
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

    make_plan: MakePlan
    build: Build
    certify: Certify
    positional: bool | None
    max_memory: int | float

    def coarsest(self) -> tuple[Plan, Table, Network, Certificate] | str:
        """The first grid that meets the tolerance, or why there is none."""
        best = "none"
        K = 2
        while True:
            plan = self.make_plan(K, self.positional)
            if plan.is_vacuous:
                K *= 2
                continue
            try:
                check_feasible(plan, self.max_memory)
                table, network = self.build(plan)
                certificate = self.certify(network, plan)
            except (CertificateError, GridError, MemoryLimitError) as error:
                return f"{plan.label}: best bound {best}; the next grid fails: {error}"
            if certificate.verdict is Verdict.PROVED:
                return plan, table, network, certificate
            best = f"{describe_bounds(certificate)} at grid={K}"
            K *= 2


def describe_bounds(certificate: Certificate) -> str:
    """The larger of the bounds claimed, or what stands in their way."""
    bounds = [certificate.bound, certificate.float64_bound]
    found = [bound for bound in bounds if bound is not None]
    if not found:
        return f"none ({'; '.join(str(one) for one in certificate.obstacles)})"
    return max(found, key=lambda bound: bound.value).format_value()
