"""All methods side by side: what each needs to meet a tolerance, before any is built.

A piecewise constant method starts from the distance of f from its table (`table_error`),
which all of them share, and adds its own ramps and the cells it gives up. The partition of
unity has bounds of its own. The bounds here hold in real arithmetic for networks that do as
planned; whether a network does is proved when it is built.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from everyformer.certify.bound import Bound
from everyformer.certify.cells import Cells
from everyformer.certify.shards import Progress, no_progress
from everyformer.certify.table_error import TableError, table_error
from everyformer.certify.verify import declare, known_of
from everyformer.construct.averaging import Variant
from everyformer.construct.budget import check_tolerance
from everyformer.construct.certificates import Knowledge, check_knowledge
from everyformer.construct.partition_plan import PartitionPlan, plan_partition
from everyformer.construct.plan import (
    DEFAULT_MAX_MEMORY,
    Plan,
    check_feasible,
    format_bytes,
    format_count,
)
from everyformer.construct.planning import Method, exponent_of, make_any_plan
from everyformer.errors import EveryformerError, ToleranceError
from everyformer.model.architecture import AttentionKind
from everyformer.numerics.limits import check_limit
from everyformer.numerics.symmetry import is_equivariant
from everyformer.patterns.pattern import Pattern
from everyformer.targets.box import Grid
from everyformer.targets.target import Target

MAX_CELLS = 2**20
"""Cells that a comparison looks at; a core does about 50,000 in a second."""

ROOM = 1 - Fraction(1, 128)
"""Share of a tolerance that a grid may use; the rest is for softmax and rounding."""

MULTIPLY_ADDS_PER_SECOND = 5e8
"""Of one core, about: benchmarks/results has measurements."""


@dataclass(frozen=True)
class Settings:
    """What `construct` is called with for a candidate, besides the grid."""

    method: Method
    variant: Variant = "wide"
    positional: bool | None = None
    attention: AttentionKind = "dense"
    pattern: Pattern | None = None
    gamma: tuple[int, ...] | None = None

    @property
    def name(self) -> str:
        """The method in few words."""
        if self.pattern is not None:
            return f"sparse, {self.pattern.name}"
        if self.method == "selective-shift":
            if self.attention == "urpe":
                return "URPE, Luo et al."
            return f"Yun et al., Theorem {3 if self.positional else 2}"
        if self.method == "partition":
            return "partition of unity"
        return f"averaging, {self.variant}{'' if self.positional else ', equiv.'}"


@dataclass(frozen=True)
class Point:
    """A grid that was planned, and the bound of d_p(f, g) that its network has."""

    plan: Plan
    bound: Bound


@dataclass(frozen=True)
class Candidate:
    """A method, the grids that were planned for it, and the one that meets the tolerance.

    Attributes:
        settings: How to build it.
        curve: All grids planned, coarse to fine.
        chosen: The cheapest that meets the tolerance, or None.
        refusal: Why there is none.
    """

    settings: Settings
    curve: tuple[Point, ...]
    chosen: Point | None
    refusal: str | None = None

    def arguments(self) -> dict[str, Any]:
        """What `construct` is called with to build the one that was chosen."""
        assert self.chosen is not None, "else there is nothing to build"  # noqa: S101
        given: dict[str, Any] = {"grid": self.chosen.plan.grid, **vars(self.settings)}
        if isinstance(self.chosen.plan, PartitionPlan):
            lattice = self.chosen.plan.partition
            given |= {"decay": lattice.D, "margin": lattice.margin}
        return given

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "name": self.settings.name,
            "method": self.settings.method,
            "variant": self.settings.variant,
            "plan": None if self.chosen is None else self.chosen.plan.to_json(),
            "planned_bound": self.chosen and self.chosen.bound.format_value(),
            "refusal": self.refusal,
            "curve": [
                {
                    "grid": point.plan.grid,
                    "parameters": point.plan.parameters,
                    "planned_bound": float(point.bound.value),
                }
                for point in self.curve
            ],
        }


@dataclass(frozen=True)
class Comparison:
    """What each method needs to bring d_p(f, g) below a tolerance.

    Attributes:
        target: Name of the target.
        tol: The tolerance.
        p: The exponent; None for the supremum.
        candidates: The methods.
    """

    target: str
    tol: Fraction
    p: Fraction | None
    candidates: tuple[Candidate, ...]

    @property
    def exponent(self) -> str:
        """p in print."""
        return "inf" if self.p is None else str(self.p)

    def by_cost(self) -> list[tuple[Candidate, Point]]:
        """Those that meet the tolerance, the one with the fewest parameters first."""
        found = [(c, c.chosen) for c in self.candidates if c.chosen is not None]
        return sorted(found, key=lambda one: one[1].plan.parameters)

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        order = self.by_cost()
        return {
            "target": self.target,
            "tol": float(self.tol),
            "p": self.exponent,
            "cheapest": order[0][0].settings.name if order else None,
            "candidates": [candidate.to_json() for candidate in self.candidates],
        }

    def table(self) -> RichTable:
        """The comparison for the terminal, the cheapest first."""
        title = f"{self.target}: d_{self.exponent}(f, g) <= {float(self.tol):g}, by method"
        table = RichTable(title=Text(title), title_justify="left", box=None)
        table.pad_edge, table.padding = False, (0, 0, 0, 1)
        table.add_column("method", min_width=14)
        for heading in HEADINGS:
            table.add_column(heading, justify="right", no_wrap=True)
        for candidate, point in self.by_cost():
            table.add_row(candidate.settings.name, *_cells(point))
        for candidate in self.candidates:
            if candidate.chosen is None:
                table.add_row(candidate.settings.name, "no", *[""] * (len(HEADINGS) - 1))
        return table

    def remarks(self) -> list[str]:
        """Why methods do not meet the tolerance, one line each."""
        return [
            f"{c.settings.name}: {c.refusal}"
            for c in self.candidates
            if c.refusal is not None
        ]

    def __str__(self) -> str:
        """The table and the remarks as text."""
        console = Console(width=140, no_color=True)
        with console.capture() as capture:
            console.print(self.table())
        lines = [line.rstrip() for line in capture.get().splitlines()]
        return "\n".join([*lines, *self.remarks()])


HEADINGS = (
    "K",
    "blocks",
    "atten-\ntion",
    "para-\nmeters",
    "non-\nzeros <=",
    "bits",
    "planned\nbound",
    "a run,\nabout",
    "memory,\nabout",
)
"""Attention layers; bits of the largest id; about the time of a run of one sequence on one
core, and about the memory while building."""


def _cells(point: Point) -> list[str]:
    plan = point.plan
    return [
        str(plan.grid),
        format_count(plan.blocks),
        format_count(plan.attention_layers),
        format_count(plan.parameters),
        format_count(plan.nonzeros_limit),
        str(plan.id_bits),
        point.bound.format_value(),
        _format_seconds(plan.multiply_adds / MULTIPLY_ADDS_PER_SECOND),
        format_bytes(plan.peak_bytes),
    ]


def _format_seconds(seconds: float) -> str:
    """Seconds to two digits, in a unit that suits.

    Example:
        >>> _format_seconds(0.00123), _format_seconds(75.0)
        ('1.2 ms', '75 s')
    """
    units = (("s", 1.0), ("ms", 1e-3), ("us", 1e-6))
    unit, size = next((u for u in units if seconds >= u[1]), units[-1])
    return f"{float(f'{seconds / size:.2g}'):g} {unit}"


def compare(
    target: Target,
    tol: int | float,
    *,
    p: int | float | Fraction = 2,
    positional: bool | None = None,
    attention: AttentionKind = "dense",
    pattern: Pattern | None = None,
    gamma: Sequence[int] | None = None,
    max_memory: int | float = DEFAULT_MAX_MEMORY,
    knowledge: Knowledge = "auto",
    workers: int | None = 1,
    progress: Progress = no_progress,
) -> Comparison:
    """Plan every method that applies to a target; nothing is built.

    Args:
        target: The function.
        tol: The distance d_p(f, g) allowed.
        p: The exponent of d_p; math.inf for the supremum, which only the partition of
            unity can bound.
        positional: With positions, without, or both where the target is equivariant.
        attention: "urpe" adds the construction of Luo et al. 2022 to the candidates.
        pattern: Adds the sparse construction of Yun et al. 2020b with this pattern.
        gamma: With a pattern: a Hamiltonian path, 0-based.
        max_memory: Bytes that building may need.
        knowledge: f by its expression, by its declared modulus, or whichever there is.
        workers: Processes on this machine.
        progress: Called as progress(what, done, total).

    Raises:
        EveryformerError: If the tolerance or the exponent is none, or f is not known.
    """
    check_limit("max_memory", max_memory, "bytes")
    exponent = exponent_of(p, "partition")
    allowed = check_tolerance(target, tol)
    check_knowledge(target, knowledge)
    found = [_lattices(target, allowed, exponent, max_memory, knowledge, progress)]
    if exponent is not None:
        errors = _TableErrors(target, exponent, knowledge, workers, progress)
        found += [
            _grids(errors, settings, allowed, max_memory)
            for settings in _piecewise_constant(target, positional, attention)
        ]
        if pattern is not None:
            path = None if gamma is None else tuple(gamma)
            sparse = Settings("selective-shift", pattern=pattern, gamma=path)
            found.append(_grids(errors, sparse, allowed, max_memory))
    return Comparison(target.name, allowed, exponent, tuple(found))


def _piecewise_constant(
    target: Target, positional: bool | None, attention: AttentionKind
) -> Iterator[Settings]:
    """Every method with a table, the paper's first. None has a bound for p = infinity."""
    choices = [positional]
    if positional is None:
        equivariant = target.equivariant and target.seq_len > 1
        choices = [False, True] if equivariant else [True]
    for choice in choices:
        yield Settings("selective-shift", positional=choice)
    if attention == "urpe":
        yield Settings("selective-shift", attention="urpe")
    for choice in choices:
        yield Settings("averaging", "wide", choice)
        yield Settings("averaging", "narrow", choice)
    if True in choices:
        yield Settings("averaging", "two-step", True)


class _TableErrors:
    """The distance of one target from its table, for one grid after the other."""

    def __init__(
        self,
        target: Target,
        p: Fraction,
        knowledge: Knowledge,
        workers: int | None,
        progress: Progress,
    ) -> None:
        self.target, self.p, self._progress = target, p, progress
        self._workers = workers
        self._traced = None if knowledge == "modulus" else target.expression
        self._found: dict[int, TableError] = {}

    def at(self, K: int) -> TableError:
        """The distance for K cells per axis.

        Raises:
            ToleranceError: If there are too many cells to look at.
            CertificateError: If f has no finite bound on one of them.
        """
        if K not in self._found:
            self._found[K] = self._measure(K)
        return self._found[K]

    def _measure(self, K: int) -> TableError:
        grid = Grid(K, self.target.seq_len, self.target.domain)
        same = self.target.equivariant
        if self._traced is not None:
            same = is_equivariant(self._traced)
        count = grid.num_multisets if same else grid.sequences
        if count > MAX_CELLS:
            msg = (
                f"grid={K} has {count:,} cells, and a comparison looks at {MAX_CELLS:,} "
                "at most. To go on, construct with this method alone"
            )
            raise ToleranceError(msg)
        cells = Cells.of(grid, symmetric=same)
        known = self._traced
        if known is None:
            known = known_of(declare(self.target, cells), cells)
        return table_error(
            cells, known, self.p, workers=self._workers, progress=self._progress
        )


def _lattices(
    target: Target,
    tol: Fraction,
    p: Fraction | None,
    max_memory: int | float,
    knowledge: Knowledge,
    progress: Progress,
) -> Candidate:
    """The lattices of the partition of unity, up to the coarsest that is fine enough."""
    settings = Settings("partition")
    curve: list[Point] = []

    def planned(K: int | None) -> Point:
        progress(f"partition of unity: {len(curve)} lattices", len(curve), len(curve) + 1)
        given = None if K is not None else tol
        plan = plan_partition(target, K, tol=given, p=p, knowledge=knowledge)
        check_feasible(plan, max_memory)
        if plan.bound is None:
            raise ToleranceError("f has no bound around the domain")
        return Point(plan, plan.bound)

    try:
        chosen = planned(None)
        K = 2
        while chosen.plan.grid * 2 > K:
            curve.append(planned(K))
            K *= 2
    except EveryformerError as error:
        return Candidate(settings, tuple(curve), None, str(error))
    return Candidate(settings, tuple(curve), chosen)


def _grids(
    errors: _TableErrors, settings: Settings, tol: Fraction, max_memory: int | float
) -> Candidate:
    """Refine the grid of one method until it meets the tolerance."""

    def planned(K: int) -> Point | None:
        plan = make_any_plan(
            errors.target,
            K,
            p=errors.p,
            softened=True,
            positional=settings.positional,
            spacing=None,
            attention=settings.attention,
            method=settings.method,
            variant=settings.variant,
            pattern=settings.pattern,
            gamma=settings.gamma,
        )
        if plan.is_vacuous:
            return None
        check_feasible(plan, max_memory)
        bound = errors.at(K).bound(
            ramps=plan.ramp_share, gives_up_repeated=plan.gives_up_repeated
        )
        return Point(plan, bound)

    curve: list[Point] = []
    K = 2
    try:
        while True:
            point = planned(K)
            if point is not None:
                curve.append(point)
                if point.bound <= tol * ROOM:
                    break
            K *= 2
    except EveryformerError as error:
        best = min((point.bound.value for point in curve), default=None)
        said = "no grid works" if best is None else f"best bound {float(best):.3g}"
        why = f"{said}; the next grid fails: {error}"
        return Candidate(settings, tuple(curve), None, why)
    chosen = curve[-1]
    if settings.method == "averaging":  # K need not be a power of two
        low, high = chosen.plan.grid // 2, chosen.plan.grid
        while high - low > 1:
            K = (low + high) // 2
            point = planned(K)
            if point is not None and point.bound <= tol * ROOM:
                chosen, high = point, K
            else:
                low = K
    return Candidate(settings, tuple(curve), chosen)
