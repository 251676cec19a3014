"""Selective shifts as methods: Yun et al. 2020, Luo et al. 2022, Yun et al. 2020b."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from everyformer.construct.grid_plan import (
    GridPlan,
    over_grids,
    over_positions,
    ways_to_place,
)
from everyformer.construct.method import Method
from everyformer.construct.problem import Problem
from everyformer.construct.shifts.plan import plan_shifts
from everyformer.construct.shifts.sparse_constants import SparseVariant
from everyformer.construct.shifts.sparse_plan import plan_sparse
from everyformer.patterns.pattern import Pattern
from everyformer.targets.target import Target

SOFTENED = (
    "true: the real network (softmax, ReLU, float64); false: the modified one of the proof "
    "(hardmax, three-piece activations, exact rationals), for any grid."
)
SPACING = (
    "Distance of positions in units of delta. By default K + 1, with an empty cell between "
    "them; K gives the paper's E."
)


@dataclass(frozen=True)
class SelectiveShifts(Method):
    """Theorems 2 and 3 of Yun et al. 2020: one selective shift for each id of a column.

    Attributes:
        positional: Theorem 3 (with positions) instead of Theorem 2.
        softened: The real network, or the modified one.
        spacing: Distance of positions in units of delta.
    """

    positional: bool | None = field(
        default=None,
        metadata={
            "help": "Theorem 3 (with positions) instead of Theorem 2. By default only if "
            "the target is not equivariant, or if Theorem 2 cannot meet the tolerance."
        },
    )
    softened: bool = field(default=True, metadata={"help": SOFTENED})
    spacing: int | None = field(default=None, metadata={"help": SPACING})

    by_cells: ClassVar[bool] = True

    @property
    def family(self) -> str:
        """Whose construction it is."""
        return "Yun et al."

    @property
    def title(self) -> str:
        """The method in few words."""
        if self.positional is None:
            return self.family
        return f"{self.family}, Theorem {3 if self.positional else 2}"

    def plans(self, problem: Problem) -> Iterator[GridPlan]:
        """K = 2, 4, 8, ...; Theorem 2 before Theorem 3 where both apply."""
        planned = partial(
            plan_shifts, problem.target, softened=self.softened, spacing=self.spacing
        )
        return over_positions(problem, self.positional, planned, WITH_POSITIONS)

    @classmethod
    def compared(cls, target: Target) -> Iterator[Method]:
        """Theorem 2 for equivariant targets, and Theorem 3."""
        for choice in ways_to_place(target):
            yield cls(positional=choice)


WITH_POSITIONS = (
    "Positions were added (Theorem 3): within float64, Theorem 2 loses too many cells with "
    "equal columns to meet the tolerance."
)


@dataclass(frozen=True)
class UrpeShifts(Method):
    """Theorem 3 of Luo et al. 2022: no E, one attention layer with a gain makes positions.

    Attributes:
        softened: The real network, or the modified one.
        spacing: Distance of positions in units of delta.
    """

    softened: bool = field(default=True, metadata={"help": SOFTENED})
    spacing: int | None = field(default=None, metadata={"help": SPACING})

    by_cells: ClassVar[bool] = True

    @property
    def title(self) -> str:
        """The method in few words."""
        return "URPE, Luo et al."

    def plans(self, problem: Problem) -> Iterator[GridPlan]:
        """K = 2, 4, 8, ..."""
        planned = partial(
            plan_shifts,
            problem.target,
            softened=self.softened,
            spacing=self.spacing,
            attention="urpe",
        )
        return over_grids(problem, planned)

    @classmethod
    def compared(cls, target: Target) -> Iterator[Method]:
        """As it is."""
        yield cls()


@dataclass(frozen=True)
class SparseShifts(Method):
    """Theorem 1 of Yun et al. 2020b: sparse attention in ST^{2,1,4}.

    Attributes:
        pattern: Patterns that satisfy Assumption 1.
        gamma: A Hamiltonian path, 0-based.
        variant: How Stage A finds its token.
        softened: The real network, or the modified one.
        spacing: Distance of positions in units of delta.
    """

    pattern: Pattern = field(
        metadata={
            "help": "Patterns that satisfy Assumption 1: star, strided, fixed, window, "
            "ring, axial and the others of `check-pattern`, by name or from a file. "
            "Their parameters are settings beside it: pattern=window, half_width=1."
        }
    )
    gamma: Sequence[int] | None = field(
        default=None,
        metadata={
            "help": "A Hamiltonian path through the pattern, such as 2,1,3. By default one "
            "is looked for."
        },
    )
    variant: SparseVariant = field(
        default="wide",
        metadata={
            "help": "wide: one window for each token of the path; sweep: one for each "
            "token and column."
        },
    )
    softened: bool = field(default=True, metadata={"help": SOFTENED})
    spacing: int | None = field(default=None, metadata={"help": SPACING})

    by_cells: ClassVar[bool] = True

    @property
    def title(self) -> str:
        """The method in few words."""
        return f"sparse, {self.pattern.name}"

    def plans(self, problem: Problem) -> Iterator[GridPlan]:
        """K = 2, 4, 8, ..."""
        planned = partial(
            plan_sparse,
            problem.target,
            pattern=self.pattern,
            gamma=None if self.gamma is None else tuple(self.gamma),
            variant=self.variant,
            softened=self.softened,
            spacing=self.spacing,
        )
        return over_grids(problem, planned)
