"""All methods side by side: what each needs to meet a tolerance, before any is built.

A piecewise constant method starts from the distance of f from its table (`TableErrors`),
which all of them share, and adds its own ramps and the cells it gives up; others have
bounds of their own. The bounds here are those of networks that do as planned; whether a
network does is proved when it is built.
"""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as RichTable
from rich.text import Text

from everyformer.certify.bound import Bound
from everyformer.construct.method import (
    Method,
    Plan,
    as_text,
    check_feasible,
    format_bytes,
)
from everyformer.construct.optimality import Ratio, ratios
from everyformer.construct.problem import Problem, Trial
from everyformer.construct.residual import ResidualPlan
from everyformer.construct.table_error import TableErrors
from everyformer.errors import EveryformerError, ToleranceError
from everyformer.notebook import html_lines, html_table, short
from everyformer.numerics.curvature import round_up
from everyformer.numerics.limits import format_count
from everyformer.numerics.rationals import format_up

MULTIPLY_ADDS_PER_SECOND = 5e8
"""Of one core, about: benchmarks/results has measurements."""


@dataclass(frozen=True)
class Point:
    """A grid that was planned, and the bound of d_p(f, g) that its network has."""

    plan: Plan
    bound: Bound


@dataclass(frozen=True)
class Candidate:
    """A method, the grids that were planned for it, and the one that meets the tolerance.

    Attributes:
        method: How to build it.
        curve: All grids planned, coarse to fine.
        chosen: The cheapest that meets the tolerance, or None.
        refusal: Why there is no such plan.
    """

    method: Method
    curve: tuple[Point, ...]
    chosen: Point | None
    refusal: str | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "name": self.method.title,
            "plan": None if self.chosen is None else self.chosen.plan.to_json(),
            "planned_bound": self.chosen and self.chosen.bound.format_value(),
            "refusal": self.refusal,
            "curve": [
                {
                    "grid": point.plan.grid,
                    "parameters": point.plan.count().parameters,
                    "planned_bound": round_up(point.bound.value),
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
        residual: A residual network on the flattened sequence, on the coarsest grid whose
            planned bound meets the tolerance; it is not a candidate.
        residual_bound: That bound.
        ratios: Parameters over the lower bound of Section 5.4, for several K.
    """

    target: str
    tol: Fraction
    p: Fraction | None
    candidates: tuple[Candidate, ...]
    residual: ResidualPlan | None = None
    residual_bound: Bound | None = None
    ratios: tuple[Ratio, ...] = ()

    @property
    def exponent(self) -> str:
        """p in print."""
        return "inf" if self.p is None else str(self.p)

    def by_cost(self) -> list[tuple[Candidate, Point]]:
        """Those that meet the tolerance, the one with the fewest parameters first."""
        found = [(c, c.chosen) for c in self.candidates if c.chosen is not None]
        return sorted(found, key=lambda one: one[1].plan.count().parameters)

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        order = self.by_cost()
        return {
            "target": self.target,
            "tol": float(self.tol),
            "p": self.exponent,
            "cheapest": order[0][0].method.title if order else None,
            "candidates": [candidate.to_json() for candidate in self.candidates],
            "residual_network": self._residual_json(),
            "optimality": [row.to_json() for row in self.ratios],
        }

    def _residual_json(self) -> dict[str, Any] | None:
        if self.residual is None or self.residual_bound is None:
            return None
        planned = round_up(self.residual_bound.value)
        return {**self.residual.to_json(), "planned_bound": planned}

    def table(self, width: int | None = None) -> RichTable:
        """The comparison for the terminal, the cheapest first.

        Args:
            width: Columns of the terminal: what it has no room for is left out, the least
                important first, and the caption says so.
        """
        left_out: list[str] = []
        table = self._table(left_out)
        while width is not None and len(left_out) < len(DISPENSABLE):
            console = Console(width=10 * width)
            if Measurement.get(console, console.options, table).minimum <= width:
                break
            left_out.append(DISPENSABLE[len(left_out)])
            table = self._table(left_out)
        if left_out:
            names = ", ".join(_on_one_line(one).removesuffix(", about") for one in left_out)
            said = f"{width} columns are too few for: {names}. --json has all of it."
            table.caption, table.caption_justify = Text(said), "left"
        return table

    def _table(self, left_out: Collection[str]) -> RichTable:
        """All but some columns, by their headings."""
        title = f"{self.target}: d_{self.exponent}(f, g) <= {float(self.tol):g}, by method"
        table = RichTable(title=Text(title), title_justify="left", box=None)
        table.pad_edge, table.padding = False, (0, 0, 0, 1)
        table.add_column("method", min_width=14)
        rows = [[c.method.title, *_cells(point)] for c, point in self.by_cost()]
        rows += [[c.method.title, "no"] for c in self.candidates if c.chosen is None]
        if self.residual is not None and self.residual_bound is not None:
            plan = self.residual
            sizes = (plan.grid.cells, plan.blocks, 0, plan.parameters)
            planned = self.residual_bound.format_value()
            rows.append([RESIDUAL, *map(format_count, sizes), "", "", planned])
        rows = [[*row, *[""] * (1 + len(HEADINGS) - len(row))] for row in rows]
        shown = [k for k, heading in enumerate(HEADINGS, 1) if heading not in left_out]
        for k in shown:
            heading = HEADINGS[k - 1]
            widest = max(map(len, [*heading.split("\n"), *(row[k] for row in rows)]))
            table.add_column(heading, justify="right", no_wrap=True, min_width=widest)
        for row in rows:
            table.add_row(row[0], *(row[k] for k in shown))
        return table

    def __repr__(self) -> str:
        """One line; `print` shows the table."""
        order = self.by_cost()
        found = "no method meets it"
        if order:
            cheapest, point = order[0]
            cost = format_count(point.plan.count().parameters)
            found = f"cheapest {cheapest.method.title}, {cost} parameters; {len(order)} of "
            found += f"{len(self.candidates)} methods meet it"
        wanted = f"d_{self.exponent}(f, g) <= {float(self.tol):g}"
        return f"Comparison({short(self.target)}, {wanted}: {found})"

    def _repr_html_(self) -> str:
        """The table, the cheapest first, for notebooks."""
        rows = [[c.method.title, *_cells(point)] for c, point in self.by_cost()]
        rows += [[c.method.title, "no"] for c in self.candidates if c.chosen is None]
        caption = (
            f"{self.target}: d_{self.exponent}(f, g) <= {float(self.tol):g}, by method"
        )
        headings = ("method", *map(_on_one_line, HEADINGS))
        refusals = [remark for remark in self.remarks() if remark != RESIDUAL_REMARK]
        return html_table(caption, rows, headings) + html_lines(refusals)

    def remarks(self) -> list[str]:
        """Why methods do not meet the tolerance, one line each; what the star means."""
        refusals = [
            f"{c.method.title}: {c.refusal}"
            for c in self.candidates
            if c.refusal is not None
        ]
        return refusals if self.residual is None else [*refusals, RESIDUAL_REMARK]

    def __str__(self) -> str:
        return "\n".join([as_text(self.table(), 140), *self.remarks()])


RESIDUAL = "residual network*"
RESIDUAL_REMARK = (
    "* One neuron in each hidden layer, on the flattened sequence (Section 5.4), on the "
    "coarsest grid whose planned bound meets the tolerance. It is not a Transformer; "
    "`everyformer bench residual` builds and certifies it for n d <= 4."
)

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

DISPENSABLE = ("memory,\nabout", "a run,\nabout", "non-\nzeros <=", "bits", "atten-\ntion")
"""Columns that a narrow terminal leaves out, in this order."""


def _on_one_line(heading: str) -> str:
    """A heading without its break."""
    return heading.replace("-\n", "").replace("\n", " ")


def _cells(point: Point) -> list[str]:
    plan, count = point.plan, point.plan.count()
    return [
        "" if plan.grid is None else str(plan.grid),
        format_count(count.blocks),
        format_count(count.attention_layers),
        format_count(count.parameters),
        format_count(count.nonzeros_limit),
        "" if count.id_bits is None else str(count.id_bits),
        point.bound.format_value(),
        _format_seconds(count.multiply_adds / MULTIPLY_ADDS_PER_SECOND),
        format_bytes(count.peak_bytes),
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


def compare_methods(problem: Problem, methods: Iterable[Method]) -> Comparison:
    """Plan methods for a tolerance; nothing is built.

    Methods without a bound for the supremum are left out where that is asked for.
    """
    assert problem.tol is not None, "methods are compared for a tolerance"  # noqa: S101
    errors = problem.errors
    found = [
        _candidate(method, problem, errors)
        for method in methods
        if method.supremum or problem.p is not None
    ]
    residual = (None, None) if errors is None else _residual(problem, errors)
    return Comparison(
        problem.target.name,
        problem.tol,
        problem.p,
        tuple(found),
        *residual,
        tuple(ratios(problem.target)),
    )


def _residual(
    problem: Problem, errors: TableErrors
) -> tuple[ResidualPlan, Bound] | tuple[None, None]:
    """The residual network on the coarsest grid, of those looked at, that does."""
    assert problem.tol is not None, "methods are compared for a tolerance"  # noqa: S101
    for distance in errors.looked_at.values():
        plan = ResidualPlan(distance.grid)
        bound = distance.bound(ramps=plan.ramp_share, gives_up_repeated=False)
        if bound <= problem.tol:
            return plan, bound
    return None, None


def cheapest_first(problem: Problem, found: Comparison) -> Iterator[Plan]:
    """Plans by cost; methods without a plan are noted as tried."""
    for candidate in found.candidates:
        if candidate.refusal is not None:
            title, why = candidate.method.title, candidate.refusal
            problem.tried.append(Trial(title, None, None, why))
    for _, point in found.by_cost():
        yield point.plan


def _candidate(method: Method, problem: Problem, errors: TableErrors | None) -> Candidate:
    """The first plan of a method whose planned bound meets the tolerance."""
    curve: list[Point] = []
    try:
        for plan in method.plans(problem):
            point = _point(plan, problem, errors)
            curve.append(point)
            if _meets(point, problem):
                rest = method.curve(problem, plan)
                curve = [_point(one, problem, errors) for one in rest] or curve
                chosen = _refined(method, problem, errors, point)
                return Candidate(method, tuple(curve), chosen)
    except (EveryformerError, OverflowError) as error:
        best = min((point.bound.value for point in curve), default=None)
        said = "" if best is None else f"best bound {format_up(best)}; then: "
        return Candidate(method, tuple(curve), None, f"{said}{error}")
    return Candidate(method, tuple(curve), None, "no plan meets the tolerance")


def _point(plan: Plan, problem: Problem, errors: TableErrors | None) -> Point:
    """A plan and its bound.

    Raises:
        EveryformerError: If it cannot be built, or has no bound.
    """
    problem.progress(f"plan: {plan.label}", 0, 1)
    check_feasible(plan, problem.max_memory)
    bound = plan.planned_bound(errors)
    if bound is None:
        raise ToleranceError("f has no bound that could be planned with.")
    return Point(plan, bound)


def _meets(point: Point, problem: Problem) -> bool:
    assert problem.tol is not None, "methods are compared for a tolerance"  # noqa: S101
    return point.bound <= problem.tol * point.plan.room


def _refined(
    method: Method, problem: Problem, errors: TableErrors | None, chosen: Point
) -> Point:
    """The least K that will do, by bisection, where it need not be a power of two."""
    if not method.any_grid or chosen.plan.grid is None:
        return chosen
    low, high = chosen.plan.grid // 2, chosen.plan.grid
    while high - low > 1:
        K = (low + high) // 2
        plan = next(iter(method.plans(replace(problem, grid=K, tol=None))))
        point = _point(plan, problem, errors)
        if _meets(point, problem):
            chosen, high = point, K
        else:
            low = K
    return chosen
