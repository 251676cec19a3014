"""How far float64 reaches: domains whose weights it holds, and what is refused beyond."""

from collections.abc import Generator
from contextlib import contextmanager
from fractions import Fraction

from everyformer.construct.problem import Problem
from everyformer.errors import TargetError, ToleranceError
from everyformer.numerics.rationals import format_up
from everyformer.targets.target import Target

NARROWEST, FARTHEST = Fraction(1, 2**1000), 2.0**1000
"""The least width of a domain, and how far from 0 it may reach."""


def check_widths(target: Target) -> None:
    """Refuse intervals so wide, far away or narrow that 1/width or their ends are lost.

    Raises:
        TargetError: With the interval.
    """
    box = target.domain
    for low, high, width in zip(box.lows, box.highs, box.widths, strict=True):
        if width < NARROWEST or not max(abs(low), abs(high)) <= FARTHEST:
            msg = (
                f"{target.name} has the domain [{low:g}, {high:g}] of width "
                f"{format_up(width)}. Weights hold 1/width and the ends in float64: no end "
                f"may be farther from 0 than {FARTHEST:.4g}, no width less than "
                f"{float(NARROWEST):.4g}. Write f in other units."
            )
            raise TargetError(msg)


@contextmanager
def numbers_of_float64(problem: Problem) -> Generator[None]:
    """Refuse what needs numbers that float64 does not have, whichever step finds out.

    Raises:
        ToleranceError: With the domain, and what was too large.
    """
    try:
        yield
    except OverflowError as error:
        target, tol = problem.target, problem.tol
        asked = f"grid={problem.grid}" if tol is None else f"tol={float(tol):g}"
        msg = (
            f"{target.name} on {target.domain}, {asked}: the network or its bound needs a "
            f"number beyond 1.8e308, float64's largest ({error}). Use a domain whose "
            "width is nearer to 1, or another method."
        )
        raise ToleranceError(msg) from error
