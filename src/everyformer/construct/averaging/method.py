"""Averaging attention as a method: docs/constructions/averaging.md."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from everyformer.construct.averaging.layers import Mixing, Variant
from everyformer.construct.averaging.plan import plan_averaging
from everyformer.construct.grid_plan import GridPlan, over_positions, ways_to_place
from everyformer.construct.method import Method
from everyformer.construct.problem import Problem
from everyformer.targets.target import Target


@dataclass(frozen=True)
class Averaging(Method):
    """A single attention layer, a plain mean, that names the whole sequence.

    Attributes:
        variant: How hidden units are spread over blocks.
        positional: Whether tokens know their position.
        mixer: Which layer takes the sum, in the module that `without_attention` makes.
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

    mixer: Mixing = field(
        default="attention",
        metadata={
            "help": "Which layer is to take the sum: a head with a plain mean, or, in "
            "everyformer.layers.without_attention, average attention, a bi-linear "
            "projection or a separable convolution. The function is the same."
        },
    )

    any_grid: ClassVar[bool] = True
    by_cells: ClassVar[bool] = True
    compact_support: ClassVar[bool] = True

    @property
    def family(self) -> str:
        """The variant, and the mixer if it is not attention."""
        by = "" if self.mixer == "attention" else f", {self.mixer}"
        return f"averaging, {self.variant}{by}"

    @property
    def title(self) -> str:
        """The method in few words."""
        return f"{self.family}{', equiv.' if self.positional is False else ''}"

    def plans(self, problem: Problem) -> Iterator[GridPlan]:
        """K = 2, 4, 8, ...; without positions first where both apply."""
        p = problem.p
        assert p is not None, "there is no bound for the supremum"  # noqa: S101
        settings = {"p": p, "variant": self.variant, "mixer": self.mixer}
        planned = partial(plan_averaging, problem.target, **settings)
        return over_positions(problem, self.positional, planned, WITH_POSITIONS)

    @classmethod
    def compared(cls, target: Target) -> Iterator[Method]:
        """All variants; for equivariant targets with and without positions."""
        for choice in ways_to_place(target):
            yield cls("wide", choice)
            yield cls("narrow", choice)
        yield cls("two-step", positional=True)


WITH_POSITIONS = (
    "Positions were added: within float64, the equivariant codes end before the tolerance "
    "is met."
)
