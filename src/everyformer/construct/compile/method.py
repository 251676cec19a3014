"""Compiling as a method: docs/constructions/compile.md."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import ClassVar, Literal

from everyformer.certify.compile.algebra.sorting import batcher, odd_even
from everyformer.certify.compile.rounded import LARGEST
from everyformer.construct.compile.lifting.extremes import SortingNetwork
from everyformer.construct.compile.lifting.lift import lift, program_of
from everyformer.construct.compile.plan import CompilePlan, plans_for
from everyformer.construct.method import Method
from everyformer.construct.problem import Problem
from everyformer.errors import DomainError, GridError, InputError
from everyformer.targets.target import Target

Variant = Literal["odd-even", "log-depth"]

QUICK_NODES = 2**10
"""Operations of a program that is compiled in a moment."""

NETWORKS: dict[Variant, SortingNetwork] = {"odd-even": odd_even, "log-depth": batcher}


@dataclass(frozen=True)
class Compile(Method):
    """f's own numpy program, operation by operation; no grid, bounds in the supremum.

    Attributes:
        variant: How tokens are sorted.
    """

    variant: Variant = field(
        default="odd-even",
        metadata={
            "help": "How tokens are sorted: odd-even: n rounds; log-depth: O(log^2 n) "
            "rounds, with more registers."
        },
    )

    def __post_init__(self) -> None:
        """Refuse an unknown variant.

        Raises:
            InputError: With those that there are.
        """
        if self.variant not in NETWORKS:
            known = " or ".join(map(repr, NETWORKS))
            msg = f"variant={self.variant!r} is not a way to sort. Give {known}."
            raise InputError(msg)

    supremum: ClassVar[bool] = True
    default_p: ClassVar[int | float] = inf
    takes_grid: ClassVar[bool] = False

    @property
    def title(self) -> str:
        """The method in few words."""
        return "compiled program"

    def check(self, target: Target) -> None:
        """Refuse a function that is not known by its operations.

        Raises:
            TargetError: If it is not finite somewhere.
            ExpressionError: With the operation that was in the way.
            DomainError: If the domain reaches beyond what a proof follows.
        """
        _check_domain(target)
        if target.expression is None:
            target.check()
        program_of(target)

    def plans(self, problem: Problem) -> Iterator[CompilePlan]:
        """The coarsest gadgets that meet the tolerance.

        Raises:
            GridError: If a grid is given.
            ExpressionError: If f is not known by its operations.
            TargetError: If f does not fit into registers, or may not be defined.
            DomainError: If the domain reaches beyond what a proof follows.
        """
        if problem.tol is None:
            raise GridError("method='compile' has no grid. Give tol.")
        _check_domain(problem.target)
        yield from plans_for(lift(problem.target, NETWORKS[self.variant]), problem)

    def is_quick(self, problem: Problem) -> bool:
        """Long programs take as long to plan as to compile."""
        known = problem.target.expression
        return known is not None and len(known.nodes) <= QUICK_NODES

    @classmethod
    def compared(cls, target: Target) -> Iterator[Method]:
        """As it is, for a function that is known by its operations."""
        if target.expression is not None:
            yield cls()


def _check_domain(target: Target) -> None:
    """Refuse numbers that the verifier refuses, before anything is built."""
    low, high = min(target.domain.lows), max(target.domain.highs)
    if not max(-low, high) <= LARGEST:
        msg = (
            f"method='compile' follows numbers of at most 2^200 = 1.6e+60 in size, and the "
            f"domain of {target.name} is [{low:g}, {high:g}]. Scale the input: compile "
            "x -> f(c x) on a smaller domain."
        )
        raise DomainError(msg)
