"""The softmax partition of unity as a method: docs/constructions/partition.md."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import ClassVar

from everyformer.construct.method import Method, Plan
from everyformer.construct.partition.plan import PartitionPlan, plan_partition
from everyformer.construct.problem import Problem
from everyformer.targets.target import Target


@dataclass(frozen=True)
class Partition(Method):
    """Softmax over anchors, prefix tokens that hold values of f; of second order.

    Attributes:
        decay: D, weights fall as e^(-D r^2) at r steps of the lattice.
        margin: m, steps of the lattice beyond the domain.
    """

    decay: int | float | Fraction | None = field(
        default=None,
        metadata={
            "help": "D: weights fall as e^(-D r^2) at r steps of the grid. By default the "
            "best of a few values."
        },
    )
    margin: int | None = field(
        default=None,
        metadata={
            "help": "Steps of the grid beyond the domain. By default 1 to 4, as is best; 2 "
            "where the grid is given."
        },
    )

    supremum: ClassVar[bool] = True

    @property
    def title(self) -> str:
        """The method in few words."""
        return "partition of unity"

    def plans(self, problem: Problem) -> Iterator[PartitionPlan]:
        """The lattice with the fewest anchors whose bound, proved first, meets tol."""
        yield plan_partition(
            problem.target,
            problem.grid,
            tol=problem.tol,
            p=problem.p,
            decay=self.decay,
            margin=self.margin,
        )

    def is_quick(self, problem: Problem) -> bool:
        """Bounds for a traced f are proved lattice by lattice, which takes seconds."""
        return problem.target.expression is None

    @classmethod
    def compared(cls, target: Target) -> Iterator[Method]:
        """As it is."""
        yield cls()

    def curve(self, problem: Problem, chosen: Plan) -> Iterator[Plan]:
        """K = 2, 4, 8, ... up to the one chosen."""
        K = 2
        while chosen.grid is not None and chosen.grid * 2 > K:
            yield from self.plans(replace(problem, grid=K, tol=None))
            K *= 2
