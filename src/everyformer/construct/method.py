"""What a construction is: a method that plans, and plans that build.

    for plan in method.plans(problem):      in the order in which they are tried
        network = plan.build(target)        explicit weights

A method is a value: its settings are its fields. It lives in a folder of its own, with one
line in `construct/registry.py`; nothing else in the library knows its name.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from decimal import MAX_EMAX, Decimal, localcontext
from fractions import Fraction
from typing import Any, ClassVar, Protocol, runtime_checkable

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from everyformer.certify.bound import Bound
from everyformer.construct.problem import Problem
from everyformer.construct.table_error import TableErrors
from everyformer.errors import GridError, MemoryLimitError
from everyformer.model.network import Network
from everyformer.notebook import html_lines, html_table, short
from everyformer.progress import Progress, no_progress
from everyformer.targets.target import Target

PROOF_CELLS = 16
"""Cells per axis on which f is looked at for a network that has no grid."""


@dataclass(frozen=True)
class Count:
    """What a network costs, by formula, before it is built.

    Attributes:
        blocks: Depth.
        attention_layers: Blocks whose attention half is used.
        parameters: Numbers in all weights.
        nonzeros_limit: Of them not zero, at most.
        multiply_adds: Multiplications with a following addition in a run of one sequence,
            about.
        stored_bytes: Bytes of the weights.
        peak_bytes: About what building needs.
        id_bits: Bits of the largest number that names something; None without one.
        lower_bound: What any scheme that stores a constant for each cube must store (Yun et
            al. 2020, Section 5.4); None where there are no cubes.
    """

    blocks: int
    attention_layers: int
    parameters: int
    nonzeros_limit: int
    multiply_adds: int
    stored_bytes: int
    peak_bytes: int
    id_bits: int | None = None
    lower_bound: Fraction | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        bound = self.lower_bound
        shown = None if bound is None else format_count(int(bound))
        return asdict(self) | {"lower_bound": shown}


@runtime_checkable
class Plan(Protocol):
    """A method at one size. Not all have a grid.

    Attributes:
        room: Share of a tolerance that the planned bound may use; the rest is for what it
            leaves out, softmax and rounding.
        whole: Whether its network is proved on the whole box at once, without cells.
    """

    room: ClassVar[Fraction] = 1 - Fraction(1, 128)
    whole: ClassVar[bool] = False

    @property
    def label(self) -> str:
        """The construction in few words; plans with the same label differ in size alone."""
        ...

    @property
    def source(self) -> str:
        """Whose construction it is, in words."""
        return self.label

    @property
    def heading(self) -> str:
        """The construction and its sizes, above a table."""
        return self.source

    @property
    def grid(self) -> int | None:
        """K, cells per axis, if there are any."""
        return None

    @property
    def cells(self) -> int:
        """Cells per axis on which a proof looks at f."""
        return self.grid or PROOF_CELLS

    @property
    def note(self) -> str | None:
        """What a reader should know of how this plan came about."""
        return None

    def count(self) -> Count:
        """What the network costs."""
        ...

    def objections(self) -> list[str]:
        """Why it cannot work, if it cannot, all reasons."""
        return []

    def planned_bound(self, errors: TableErrors | None) -> Bound | None:
        """A bound on d_p(f, g) of the network that is planned; None where nothing is known.

        Args:
            errors: How far f is from tables of its values, which all methods share; None
                for the supremum, where tables have no bound.
        """
        return None

    def too_coarse(self, errors: TableErrors | None, tol: Fraction) -> str | None:
        """Why no proof of this plan can meet a tolerance, as far as is known; or None.

        Args:
            errors: As in `planned_bound`.
            tol: The distance allowed.

        Raises:
            CertificateError: If f has no finite bound.
        """
        return None

    def known(self, target: Target) -> Target:
        """The target, with what the proof may use of it."""
        return target

    def build(self, target: Target, progress: Progress = no_progress) -> Network:
        """The weights."""
        ...

    def rows(self) -> Iterator[tuple[str, str]]:
        """What a table shows besides the count, as (quantity, value)."""
        yield from ()

    @property
    def legend(self) -> str | None:
        """What the words of the table mean."""
        return None

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {"construction": self.label, "grid": self.grid, **self.count().to_json()}

    def __repr__(self) -> str:
        """One line; `print` shows the table. Subclasses are dataclasses with repr=False."""
        return f"{type(self).__name__}({in_short(self)})"

    def _repr_html_(self) -> str:
        """The table, for notebooks."""
        rows = [row for section in plan_rows(self) for row in section]
        explained = "" if self.legend is None else html_lines(self.legend.split("\n"))
        return html_table(self.heading, rows) + explained


@runtime_checkable
class Method(Protocol):
    """A construction and its settings.

    Attributes:
        supremum: Whether it has bounds for p = infinity.
        default_p: The exponent of d_p unless one is given.
        takes_grid: Whether it can be given K in place of a tolerance.
        any_grid: Whether K need not be a power of two.
        by_cells: Whether proofs sum over cells, and so can be over a region.
        compact_support: Whether its networks can be 0 outside the box.
    """

    supremum: ClassVar[bool] = False
    default_p: ClassVar[int | float] = 2
    takes_grid: ClassVar[bool] = True
    any_grid: ClassVar[bool] = False
    by_cells: ClassVar[bool] = False
    compact_support: ClassVar[bool] = False

    @property
    def title(self) -> str:
        """The method in few words, as a comparison names it."""
        ...

    @property
    def family(self) -> str:
        """The title without settings that a target decides."""
        return self.title

    def check(self, target: Target) -> None:
        """Refuse a function that the method cannot take, before anything is asked of it."""

    def plans(self, problem: Problem) -> Iterator[Plan]:
        """Plans for a problem, in the order in which they are tried.

        With a grid the first one counts. With a tolerance the first whose network is proved
        to meet it; plans of a label go from coarse to fine, and end with one that cannot be
        built, which says why there are no more.

        Raises:
            EveryformerError: If the settings do not go with the problem.
        """
        ...

    def is_quick(self, problem: Problem) -> bool:
        """Whether a plan is found in a moment, so that hints may name the method."""
        return True

    @classmethod
    def compared(cls, target: Target) -> Iterator["Method"]:
        """The settings that a comparison tries for a target, if it needs no more input."""
        yield from ()

    def curve(self, problem: Problem, chosen: Plan) -> Iterator[Plan]:
        """Coarser plans than the one chosen for a tolerance, for a picture."""
        yield from ()


def refusal(plan: Plan, max_memory: int | float) -> str | None:
    """Why a plan cannot be built, all reasons at once; None if it can."""
    wrong = plan.objections()
    if wrong:
        return ". ".join(wrong) + "."
    count = plan.count()
    if count.peak_bytes <= max_memory:
        return None
    size, smaller = f"grid={plan.grid}", "Use a coarser grid"
    if plan.grid is None:
        size, smaller = "It", "Take fewer tokens or a shorter program"
    return (
        f"{size} makes {format_count(count.blocks)} blocks and needs about "
        f"{format_bytes(count.peak_bytes)} to build, more than the limit of "
        f"{format_bytes(int(max_memory))}. {smaller}, or raise the limit "
        "(max_memory in Python, --max-memory in the shell)."
    )


def check_feasible(plan: Plan, max_memory: int | float) -> None:
    """Refuse what cannot work.

    Raises:
        GridError: If float64, or the construction itself, does not allow this size.
        MemoryLimitError: If building would need more than `max_memory` bytes.
    """
    why = refusal(plan, max_memory)
    if why is not None:
        raise (GridError if plan.objections() else MemoryLimitError)(why)


def plan_table(plan: Plan, name: str) -> RichTable:
    """A plan for the terminal.

    Args:
        plan: The plan.
        name: The target's.
    """
    table = RichTable(
        title=Text(f"{name}: {plan.heading}"), title_justify="left", show_header=False
    )
    table.add_column("quantity")
    table.add_column("value", justify="right")
    for section in plan_rows(plan):
        for row in section:
            table.add_row(*row)
        table.add_section()
    if plan.legend is not None:
        table.caption, table.caption_justify = Text(plan.legend), "left"
    return table


def plan_rows(plan: Plan) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """What a plan's table shows: its own rows, and what every network costs."""
    count = plan.count()
    rows = [
        ("blocks", format_count(count.blocks)),
        ("of them with attention", format_count(count.attention_layers)),
        ("parameters", format_count(count.parameters)),
        ("non-zeros, at most", format_count(count.nonzeros_limit)),
    ]
    if count.lower_bound is not None:
        ratio = float(count.parameters / count.lower_bound)
        rows += [
            ("lower bound of Section 5.4", format_count(int(count.lower_bound))),
            ("parameters / lower bound", f"{ratio:.1f}"),
        ]
    rows += [
        ("weights", format_bytes(count.stored_bytes)),
        ("memory while building, about", format_bytes(count.peak_bytes)),
    ]
    return list(plan.rows()), rows


def in_short(plan: Plan) -> str:
    """A plan on one line."""
    count = plan.count()
    size = "" if plan.grid is None else f", K = {plan.grid}"
    blocks = f"{format_count(count.blocks)} block{'s' * (count.blocks != 1)}"
    sizes = f"{blocks}, {format_count(count.parameters)}"
    return f"{short(plan.label, 90)}{size}: {sizes} parameters"


def as_text(table: RichTable, width: int = 72) -> str:
    """A table without colours."""
    console = Console(width=width, no_color=True, force_jupyter=False)
    with console.capture() as capture:
        console.print(table)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def format_count(count: int) -> str:
    """An integer with thousands separators, or as a power of ten where that is long.

    Example:
        >>> format_count(250_075), format_count(10**40)
        ('250,075', '1.0e+40')
    """
    if count < 10**18:
        return f"{count:,}"
    shift = max(0, count.bit_length() - 200)  # all digits of a long number take long
    with localcontext(prec=50, Emax=MAX_EMAX):
        return f"{Decimal(count >> shift) * Decimal(2) ** shift:.1e}"


def format_bytes(count: int) -> str:
    """Bytes in the largest unit that gives at least 1.

    Example:
        >>> format_bytes(1536), format_bytes(44_040_192)
        ('1.5 KiB', '42.0 MiB')
    """
    units = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
    power = min(max(count.bit_length() - 1, 0) // 10, len(units) - 1)
    whole = count >> 10 * power
    if whole >= 2**20:
        return f"{format_count(whole)} {units[power]}"
    return f"{count / 2 ** (10 * power):.1f} {units[power]}"
