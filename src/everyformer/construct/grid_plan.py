"""Plans of methods that divide the domain into K cells per axis; and their search."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from functools import partial
from math import factorial
from typing import Any, ClassVar, Literal

from everyformer.certify.bound import Bound
from everyformer.construct.method import (
    Count,
    Plan,
    as_text,
    plan_table,
    refusal,
)
from everyformer.construct.problem import Problem
from everyformer.construct.table import Table
from everyformer.construct.table_error import TableErrors
from everyformer.errors import GridError
from everyformer.model.architecture import ArchitectureSpec
from everyformer.model.network import Network
from everyformer.numerics.limits import format_count, writable
from everyformer.numerics.rationals import format_up
from everyformer.papers import YUN2020, implements
from everyformer.progress import Progress, no_progress
from everyformer.targets.box import Grid
from everyformer.targets.target import Target

LayerKind = Literal["feed-forward", "attention", "positions"]
"""A feed-forward layer, a plain attention layer, or one that makes positions."""

CLOSES_A_GAP = (
    "closes a gap: layers that the printed proof leaves out and that a network needs, for "
    "example because float64 rounds."
)


@dataclass(frozen=True)
class StageCount:
    """Layers of one stage.

    Attributes:
        name: The stage.
        layers: How many.
        in_paper: True for stages of the paper, False for those that close its gaps.
        nonzeros: Numbers that are not zero in one layer, at most.
        kind: What its layers are.
    """

    name: str
    layers: int
    in_paper: bool
    nonzeros: int
    kind: LayerKind = "feed-forward"


@dataclass(frozen=True, repr=False)
class GridPlan(Plan, ABC):
    """The cost of a construction on a grid, by formula.

    Attributes:
        target: Name of the target.
        shape: n, d, K and the box.
        architecture: The class of the network.
        stages: Layers of each stage.
        remark: What a reader should know of how this plan came about.
    """

    target: str
    shape: Grid
    architecture: ArchitectureSpec
    stages: tuple[StageCount, ...]
    remark: str | None

    id_bits_limit: ClassVar[int]

    @property
    def grid(self) -> int:
        """K, the number of cells along each axis."""
        return self.shape.cells

    @property
    def note(self) -> str | None:
        """What a reader should know of how this plan came about."""
        return self.remark

    @property
    @abstractmethod
    def positional(self) -> bool:
        """Whether tokens know their position."""

    @property
    def blocks(self) -> int:
        """Depth: every layer of the construction is a block of its own."""
        return sum(stage.layers for stage in self.stages)

    @property
    def paper_layers(self) -> int:
        """Layers that the paper's own construction has."""
        return sum(stage.layers for stage in self.stages if stage.in_paper)

    @property
    def attention_layers(self) -> int:
        """Blocks whose attention half is used."""
        return sum(stage.layers for stage in self.stages if stage.kind != "feed-forward")

    @property
    def is_vacuous(self) -> bool:
        """Whether the grid is so coarse that every cell is given up."""
        return False

    @property
    @abstractmethod
    def parameters(self) -> int:
        """Numbers in all weights."""

    @property
    @abstractmethod
    def nonzeros_limit(self) -> int:
        """Numbers that the construction may set; more are zero if f has zeros."""

    @property
    def stored_bytes(self) -> int:
        """Bytes of the stored float64 weights."""
        return 8 * self.parameters

    @property
    @abstractmethod
    def peak_bytes(self) -> int:
        """About what building needs."""

    @property
    @abstractmethod
    def id_bits(self) -> int:
        """Bits of the largest id."""

    @property
    def multiply_adds(self) -> int:
        """Multiplications with a following addition in a run of one sequence, about."""
        return self.shape.seq_len * self.stored_bytes // 8

    @property
    @implements(YUN2020, "Section 5.4")
    def lower_bound(self) -> Fraction:
        """(output dimension) x (number of cubes) / n!, or without n! with positions.

        What any scheme that stores a constant for each cube must store.
        """
        n, d = self.shape.seq_len, self.shape.d_model
        orders = 1 if self.positional else factorial(n)
        return Fraction(n * d * self.shape.sequences, orders)

    def count(self) -> Count:
        """What the network costs: a property of the plan for each number."""
        return Count(*(getattr(self, one.name) for one in fields(Count)))

    @abstractmethod
    def tabulate(self, target: Target, progress: Progress = no_progress) -> Table:
        """The target at every point that the network tells apart."""

    @abstractmethod
    def network(self, table: Table, progress: Progress = no_progress) -> Network:
        """The network that computes a table."""

    def build(self, target: Target, progress: Progress = no_progress) -> Network:
        """The network that computes the table of the target."""
        return self.network(self.tabulate(target, progress), progress)

    def rows(self) -> Iterator[tuple[str, str]]:
        """The layers of each stage, and the bits of ids, as `plan` prints them."""
        for stage in self.stages:
            mark = "" if stage.in_paper or not self.paper_layers else " (closes a gap)"
            yield f"layers: {stage.name}{mark}", format_count(stage.layers)
        yield f"id bits (float64 allows {self.id_bits_limit})", str(self.id_bits)

    @property
    def heading(self) -> str:
        """The construction, the class of the network and the sizes."""
        n, d, K = self.shape.seq_len, self.shape.d_model, self.grid
        return f"{self.source}, {self.architecture.class_name}\nn = {n}, d = {d}, K = {K}"

    @property
    def legend(self) -> str | None:
        """The class of the network in words, and which layers the paper does not have."""
        spec = self.architecture
        lines = [f"{spec.class_name}: {spec.class_in_words}."]
        if self.paper_layers and not all(stage.in_paper for stage in self.stages):
            lines.append(CLOSES_A_GAP)
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "target": self.target,
            "construction": self.label,
            "class": self.architecture.class_name,
            "seq_len": self.shape.seq_len,
            "d_model": self.shape.d_model,
            "grid": self.grid,
            "stages": {stage.name: writable(stage.layers) for stage in self.stages},
            "paper_layers": writable(self.paper_layers),
            **self.count().to_json(),
        }

    def __str__(self) -> str:
        return as_text(plan_table(self, self.target))


class CellPlan(GridPlan, ABC):
    """A plan whose network is constant on cells, off the ramps between them."""

    @property
    @abstractmethod
    def ramp_share(self) -> Fraction:
        """Share of the domain on which the network is between two cells."""

    @property
    def gives_up_repeated(self) -> bool:
        """Whether nothing is promised in cells with equal columns (Proposition 4)."""
        return False

    def planned_bound(self, errors: TableErrors | None) -> Bound | None:
        """The distance of f from its table, with ramps and the cells that are given up."""
        if errors is None:
            return None
        return errors.at(self.grid).bound(
            ramps=self.ramp_share, gives_up_repeated=self.gives_up_repeated
        )

    def too_coarse(self, errors: TableErrors | None, tol: Fraction) -> str | None:
        """What f's distance from its table leaves to prove, if that is too much."""
        if errors is None:
            return None
        about = errors.beyond(self.grid, tol, gives_up_repeated=self.gives_up_repeated)
        return None if about is None else f"bound about {format_up(about)}, planned"


def over_grids(problem: Problem, make: Callable[[int], GridPlan]) -> Iterator[GridPlan]:
    """The plan for the grid given; for a tolerance those of K = 2, 4, 8, ...

    They end with the first that cannot be built.
    """
    if problem.grid is not None:
        yield make(problem.grid)
        return
    K = 2
    while True:
        plan = make(K)
        if not plan.is_vacuous:
            yield plan
            if refusal(plan, problem.max_memory) is not None:
                return
        K *= 2


def over_positions(
    problem: Problem,
    positional: bool | None,
    make: Callable[..., GridPlan],
    remark: str,
) -> Iterator[GridPlan]:
    """Grids with positions or without; for a tolerance both where that is left open.

    Args:
        problem: What is asked for.
        positional: With positions, without, or as the target has it.
        make: The plan with positions, without, or as the target has it, of a grid.
        remark: Why positions were added after all.
    """
    ways = ways_to_place(problem.target)
    if problem.grid is not None or positional is not None or len(ways) == 1:
        yield from over_grids(problem, partial(make, positional=positional))
        return
    for choice in ways:
        for plan in over_grids(problem, partial(make, positional=choice)):
            yield replace(plan, remark=remark) if choice else plan


def ways_to_place(target: Target) -> tuple[bool, ...]:
    """Without positions and with, in the order in which a tolerance tries them.

    An equivariant target gets none; where that is not good enough within float64, positions
    are tried after that.
    """
    both = target.equivariant and target.seq_len > 1 and target.region is None
    return (False, True) if both else (True,)


def has_positions(target: Target, positional: bool | None) -> bool:
    """What was asked for; by default positions, unless the target is equivariant.

    Raises:
        GridError: If the target needs positions, and none are wanted.
    """
    if positional is False and not target.equivariant and target.seq_len > 1:
        msg = (
            f"positional=False, but {target.name} is not declared equivariant: without "
            "positions a Transformer is permutation equivariant (Claim 1) and cannot "
            "approximate it. Leave positional out, or declare equivariant=True."
        )
        raise GridError(msg)
    if target.region is not None and target.seq_len > 1:
        if positional is False:
            msg = (
                "positional=False, but the domain is a region, which permutations of the "
                "tokens may leave. Leave positional out."
            )
            raise GridError(msg)
        return True
    return not target.equivariant if positional is None else positional
