"""Averaging attention as a method: docs/constructions/averaging.md."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar

from everyformer.construct.averaging.layers import Variant
from everyformer.construct.averaging.plan import plan_averaging
from everyformer.construct.grid_plan import (
    Choice,
    GridPlan,
    over_grids,
    with_or_without_positions,
)
from everyformer.construct.method import Method
from everyformer.construct.problem import Problem
from everyformer.targets.target import Target


@dataclass(frozen=True)
class Averaging(Method):
    """A single attention layer, a plain mean, that names the whole sequence.

    Attributes:
        variant: How hidden units are spread over blocks.
        positional: Whether tokens know their position.
    """

    variant: Variant = field(
        default="wide",
        metadata={
            "help": "wide: two or three blocks with many hidden units; narrow: two hidden "
            "units a block; two-step: wide, and digits in two steps, for narrow ramps."
        },
    )
    positional: bool | None = field(
        default=None,
        metadata={
            "help": "With positions. By default only if the target is not equivariant, or "
            "if the equivariant codes end before the tolerance is met."
        },
    )

    any_grid: ClassVar[bool] = True

    @property
    def family(self) -> str:
        """The variant."""
        return f"averaging, {self.variant}"

    @property
    def title(self) -> str:
        """The method in few words."""
        return f"{self.family}{', equiv.' if self.positional is False else ''}"

    def plans(self, problem: Problem) -> Iterator[GridPlan]:
        """K = 2, 4, 8, ...; without positions first where both apply."""
        target, p = problem.target, problem.p
        assert p is not None, "there is no bound for the supremum"  # noqa: S101

        def planned(K: int, positional: Choice) -> GridPlan:
            plan = plan_averaging(
                target, K, p=p, positional=positional, variant=self.variant
            )
            if positional and self.positional is None:
                return replace(plan, remark=WITH_POSITIONS)
            return plan

        choices = with_or_without_positions(target, self.positional)
        return over_grids(problem, choices, planned)

    @classmethod
    def compared(cls, target: Target) -> Iterator[Method]:
        """All variants; for equivariant targets with and without positions."""
        choices = with_or_without_positions(target, None)
        for choice in choices:
            with_positions = choice is None or choice
            yield cls("wide", with_positions)
            yield cls("narrow", with_positions)
        yield cls("two-step", positional=True)

    @classmethod
    def studied(cls) -> Iterator[tuple[str, Method]]:
        """With positions, of first order."""
        yield "averaging, wide", cls()


WITH_POSITIONS = (
    "Positions were added: within float64, the equivariant codes end before the tolerance "
    "is met."
)
