"""What a construction will cost, before anything is built; and what is refused."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
from math import factorial
from typing import Any, get_args

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from everyformer.construct.constants import (
    EDGE_GUARD,
    FLOAT64_BITS,
    RAMP_WIDTH,
    WINDOW_BITS,
    Constants,
)
from everyformer.errors import AttentionError, GridError, MemoryLimitError
from everyformer.model.architecture import ArchitectureSpec, AttentionKind
from everyformer.numerics.limits import check_limit, shown
from everyformer.papers import YUN2020, implements
from everyformer.targets.box import Grid
from everyformer.targets.target import Target

DEFAULT_MAX_MEMORY = 4 * 2**30
"""Bytes a construction may need unless the caller allows more."""


ATTENDING: tuple[str, ...] = (
    *("position layer", "selective shifts", "global shift"),
    *("padding", "chain shifts", "max shifts"),
)
"""Stages that are attention layers; all others are feed-forward layers."""


@dataclass(frozen=True)
class StageCount:
    """Layers of one stage.

    Attributes:
        name: The stage.
        layers: How many.
        in_paper: True for stages of the paper, False for those that close its gaps.
        nonzeros: Numbers that are not zero in one layer, at most.
    """

    name: str
    layers: int
    in_paper: bool
    nonzeros: int


@dataclass(frozen=True)
class Plan:
    """The cost of a construction by formula.

    Attributes:
        target: Name of the target.
        constants: n, d, K and what follows from them.
        architecture: The class of the network.
        stages: Layers of each stage.
    """

    target: str
    constants: Constants
    architecture: ArchitectureSpec
    stages: tuple[StageCount, ...]

    @property
    def grid(self) -> int:
        """K."""
        return self.constants.K

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
        return sum(stage.layers for stage in self.stages if stage.name in ATTENDING)

    @property
    def ramp_share(self) -> Fraction:
        """Share of the domain on which a softened quantiser is between two cells."""
        c = self.constants
        return c.n * c.d * c.K * RAMP_WIDTH if c.softened else Fraction(0)

    @property
    def gives_up_repeated(self) -> bool:
        """Whether nothing is promised in cells with equal columns (Proposition 4)."""
        return not self.constants.positional and self.constants.n > 1

    @property
    def multiply_adds(self) -> int:
        """Multiplications with a following addition in a run of one sequence, about."""
        return self.constants.n * self.stored_bytes // 8

    @property
    def parameters(self) -> int:
        """Numbers in all blocks and in E."""
        c = self.constants
        extra = c.n * c.d if self.architecture.positional else 0
        return self.blocks * self.architecture.block_parameters + extra

    @property
    def nonzeros_limit(self) -> int:
        """Numbers that the construction may set; more are zero if f has zeros."""
        c = self.constants
        moved = c.n if c.lifted_by_positions else c.n - 1
        extra = moved * c.d if self.architecture.positional else 0
        return sum(stage.layers * stage.nonzeros for stage in self.stages) + extra

    @property
    @implements(YUN2020, "Section 5.4")
    def lower_bound(self) -> Fraction:
        """(output dimension) x (number of cubes) / n!, or without n! for Theorem 3.

        What any scheme that stores a constant for each cube must store.
        """
        c = self.constants
        return Fraction(c.n * c.d * c.grid.sequences, 1 if c.positional else factorial(c.n))

    @property
    def stored_bytes(self) -> int:
        """Bytes of the stored float64 weights; unused halves of blocks are not stored."""
        spec = self.architecture
        phi = 0 if spec.activation == "relu" else 10 * spec.d_ff
        plain = spec.attention_parameters - spec.urpe_parameters
        attends = dict.fromkeys(ATTENDING, plain)  # C = 1 and b_V = 0 are not stored
        attends["position layer"] = spec.attention_parameters
        rest = spec.feed_forward_parameters + phi
        return 8 * sum(
            stage.layers * attends.get(stage.name, rest) for stage in self.stages
        )

    @property
    def id_bits(self) -> int:
        """Bits of the largest id."""
        return self.constants.id_bits

    @property
    def peak_bytes(self) -> int:
        """About what building needs: weights, the table, its ids and sorting them.

        Rationals take about 100 bytes each.
        """
        c = self.constants
        rows = _table_rows(c) * c.n
        weights = self.stored_bytes * (2 if c.softened else 6)
        return weights + rows * 8 * (6 * c.d + 10)

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        c = self.constants
        return {
            "target": self.target,
            "theorem": c.theorem,
            "paper": c.paper.key,
            "attention": c.attention,
            "class": self.architecture.class_name,
            "seq_len": c.n,
            "d_model": c.d,
            "grid": c.K,
            "stages": {stage.name: stage.layers for stage in self.stages},
            "blocks": self.blocks,
            "paper_layers": self.paper_layers,
            "attention_layers": self.attention_layers,
            "parameters": self.parameters,
            "nonzeros_limit": self.nonzeros_limit,
            "lower_bound": format_count(int(self.lower_bound)),
            "id_bits": self.id_bits,
            "stored_bytes": self.stored_bytes,
            "peak_bytes": self.peak_bytes,
        }

    def table(self) -> RichTable:
        """The plan as a table for the terminal."""
        c = self.constants
        sizes = f"n = {c.n}, d = {c.d}, K = {c.K}"
        title = f"{self.target}: {self.source}, {self.architecture.class_name}\n{sizes}"
        table = RichTable(title=Text(title), title_justify="left", show_header=False)
        table.add_column("quantity")
        table.add_column("value", justify="right")
        for stage in self.stages:
            mark = "" if stage.in_paper or not self.paper_layers else " (closes a gap)"
            table.add_row(f"layers: {stage.name}{mark}", format_count(stage.layers))
        table.add_section()
        ratio = self.parameters / self.lower_bound
        for name, value in (
            ("blocks", format_count(self.blocks)),
            *self._remarks(),
            ("parameters", format_count(self.parameters)),
            ("non-zeros, at most", format_count(self.nonzeros_limit)),
            ("lower bound of Section 5.4", format_count(int(self.lower_bound))),
            ("parameters / lower bound", f"{float(ratio):.1f}"),
            (f"id bits (float64 allows {self.id_bits_limit})", f"{self.id_bits}"),
            ("weights", format_bytes(self.stored_bytes)),
            ("memory while building, about", format_bytes(self.peak_bytes)),
        ):
            table.add_row(name, value)
        return table

    def _remarks(self) -> list[tuple[str, str]]:
        """What stands below the number of blocks."""
        return [("of them in the paper", format_count(self.paper_layers))]

    @property
    def label(self) -> str:
        """The construction in few words."""
        return self.constants.theorem

    @property
    def source(self) -> str:
        """Whose construction it is, in words."""
        return f"{self.constants.theorem} of {self.constants.paper.key}"

    @property
    def is_vacuous(self) -> bool:
        """Whether the grid is so coarse that every cell is given up: equal columns."""
        c = self.constants
        return not c.positional and c.grid.num_distinct_sets == 0

    @property
    def id_bits_limit(self) -> int:
        """Bits that an id may have in float64."""
        return FLOAT64_BITS - WINDOW_BITS

    def objections(self) -> list[str]:
        """Why the grid cannot work, if it cannot, all reasons."""
        return _objections(self)

    def __str__(self) -> str:
        """The table as text."""
        console = Console(width=72, no_color=True)
        with console.capture() as capture:
            console.print(self.table())
        return "\n".join(line.rstrip() for line in capture.get().splitlines())


def format_count(count: int) -> str:
    """An integer with thousands separators, or as a power of ten where that is long.

    Example:
        >>> format_count(250_075), format_count(10**40)
        ('250,075', '1.0e+40')
    """
    return f"{count:,}" if count < 10**18 else f"{Decimal(count):.1e}"


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


def make_plan(
    target: Target,
    grid: int,
    *,
    softened: bool = True,
    positional: bool | None = None,
    spacing: int | None = None,
    attention: AttentionKind = "dense",
) -> Plan:
    """Count the layers and parameters of a construction; nothing is built.

    Args:
        target: The function.
        grid: K, cells per axis.
        softened: The real network (softmax, ReLU), or the modified one.
        positional: Theorem 3 instead of Theorem 2; by default unless the target is
            equivariant. A single token has no order: n = 1 is always Theorem 2.
        spacing: Distance of positions in units of delta: K + 1, or K as in the paper.
        attention: "dense", or "urpe": a layer makes the positions, for equivariant targets
            too. A single token has none, and its network is the dense one.

    Raises:
        GridError: If the grid is no integer >= 2.
        AttentionError: If there is no such attention, or it cannot do without positions.
    """
    _check_attention(attention, positional)
    shape = Grid(grid, target.seq_len, target.domain)
    if positional is None:
        positional = attention == "urpe" or not target.equivariant
    positional = positional and target.seq_len > 1
    if not positional and not target.equivariant and target.seq_len > 1:
        msg = (
            f"positional=False, but {target.name} is not declared equivariant: without "
            "positions a Transformer is permutation equivariant (Claim 1) and cannot "
            "approximate it. Leave positional out, or declare equivariant=True."
        )
        raise GridError(msg)
    if spacing not in (None, grid, grid + 1):
        msg = (
            f"spacing={shown(spacing)} is not {grid} (the paper's positions) nor "
            f"{grid + 1} (with an empty cell between positions, the default)."
        )
        raise GridError(msg)
    c = Constants(
        grid=shape,
        theorem="Theorem 3" if positional else "Theorem 2",
        softened=softened,
        spacing=grid + 1 if spacing is None else spacing,
        attention=attention,
    )
    architecture = ArchitectureSpec(
        seq_len=c.n,
        d_model=c.d,
        num_heads=2,
        d_head=1,
        d_ff=4 if softened else 1,
        normaliser="softmax" if softened else "hardmax",
        activation="relu" if softened else "piecewise-linear",
        positional=positional and attention == "dense",
        attention=attention,
    )
    return Plan(target.name, c, architecture, tuple(count_stages(c)))


def _check_attention(attention: str, positional: bool | None) -> None:
    if attention not in get_args(AttentionKind):
        known = " and ".join(repr(name) for name in get_args(AttentionKind))
        msg = (
            f"attention={attention!r} does not exist: constructions are known for {known}. "
            "Use one of them."
        )
        raise AttentionError(msg)
    if attention == "urpe" and positional is False:
        msg = (
            "attention='urpe' with positional=False: the first layer of that construction "
            "makes positions, and without them nothing of URPE is left. Leave positional "
            "out, or use attention='dense'."
        )
        raise AttentionError(msg)


def _table_rows(c: Constants) -> int:
    """Sequences in the table: all of them, or all sets of different columns."""
    return c.grid.sequences if c.positional else c.grid.num_distinct_sets


def count_stages(c: Constants) -> Iterator[StageCount]:
    """The layers of every stage, in order: the formulas of the paper and of our stages.

    The last number is how many entries of a layer can be non-zero. Softened, a phi with j
    breaks at which it is not smooth has at most 2 j ReLUs in use, and every ReLU has a row
    of W_1, a bias and a column of W_2.
    """
    n, d = c.n, c.d
    soft = c.softened

    def layer(units: int, inputs: int, outputs: int, biases: int) -> int:
        return units * inputs + biases + units * outputs

    if c.makes_positions:
        second = 1 + (2 * n - 1) + d if c.lifted_by_positions else 0
        yield StageCount("position layer", 1, True, 1 + (n - 1) + d + second)
    if not c.grid.box.is_unit:
        layers = d + sum(c.divisions)
        yield StageCount("read in", layers, False, layer(4, 1, 1, 4) + 1 if soft else 3)
    if not c.positional:
        yield StageCount("out of range", d, True, layer(4, 1, 1, 4) + 1 if soft else 2)
    cells = n * c.K if c.positional else c.K
    yield StageCount("quantise", d * cells, True, layer(4, 1, 1, 4) if soft else 3)
    if n == 1:
        yield StageCount("lift", 1, False, 1 + 4 if soft else 1)
    else:
        ones = 2 * (2 * n - 1) if c.attention == "urpe" else 0  # C = 1
        heads = 2 * (3 * d + 1 + 1) + ones
        yield StageCount("selective shifts", c.num_swept_ids, True, heads)
        yield StageCount("global shift", 1, True, 2 * 3 * d + 1 + ones)
    if not c.positional:
        if soft:
            yield StageCount("cap ids", 1, False, layer(4, d, 1, 4))
        yield StageCount("push down", 1, True, layer(4, d, d, 4) + d if soft else 2 * d)
        yield StageCount("negative to zero", d, True, layer(4, 1, 1, 4) if soft else 2)
    entries = n * _table_rows(c)
    one = layer(4, d, d, 4) if soft else 2 * d + 1
    if c.value_passes == 2:
        yield StageCount("ids to codes", entries, False, one)
    yield StageCount("value map", entries, True, one)
    if soft:
        yield StageCount("clamp", 2 * d, False, layer(4, 1, 1, 4))


def check_feasible(plan: Plan, max_memory: int | float = DEFAULT_MAX_MEMORY) -> None:
    """Refuse what cannot work, all reasons at once.

    Raises:
        GridError: If the grid is not dyadic, ids do not fit float64, or no cell has
            different columns.
        MemoryLimitError: If building would need more than `max_memory` bytes.
        InputError: If that is not a positive number.
    """
    check_limit("max_memory", max_memory, "bytes")
    c = plan.constants
    wrong = plan.objections()
    if wrong:
        raise GridError(". ".join(wrong) + ".")
    if plan.peak_bytes > max_memory:
        msg = (
            f"n={c.n}, d={c.d}, grid={c.K} makes {format_count(plan.blocks)} blocks and "
            f"needs about {format_bytes(plan.peak_bytes)} to build, more than the limit of "
            f"{format_bytes(int(max_memory))}. Use a coarser grid, or raise the limit "
            "(max_memory in Python, --max-memory in the shell)."
        )
        raise MemoryLimitError(msg)


def _objections(plan: Plan) -> list[str]:
    c = plan.constants
    wrong: list[str] = []
    if c.softened and not c.grid.is_dyadic:
        below = 1 << (c.K.bit_length() - 1)
        wrong.append(
            f"grid={c.K} is not a power of two, so multiples of 1/{c.K} and the ids made "
            f"of them are rounded in float64 and miss their windows. Use grid={below} or "
            f"grid={2 * below}, or the exact modified network (softened=False, --exact)"
        )
    if c.softened and c.id_bits + WINDOW_BITS > FLOAT64_BITS:
        wrong.append(
            f"n={c.n}, d={c.d}, grid={c.K} needs ids of {c.id_bits} bits and windows "
            f"{WINDOW_BITS} bits finer; float64 holds {FLOAT64_BITS}. {_smaller_grid(plan)}"
        )
    if not c.positional and c.grid.num_distinct_sets == 0:
        wrong.append(
            f"n={c.n} tokens on a grid of {c.V} columns always repeat a column, where "
            "Theorem 2 promises nothing. Use a finer grid, or positions (Theorem 3: "
            "positional=True, --positional)"
        )
    if c.softened and not c.grid.box.is_unit:
        wrong += list(_boxes_too_far_from_zero(c))
    return wrong


def _smaller_grid(plan: Plan) -> str:
    """The largest dyadic grid whose ids fit, in words."""
    c = plan.constants
    K = 1 << (c.K.bit_length() - 1)
    while K >= 2:
        smaller = replace(c, grid=Grid(K, c.n, c.grid.box), spacing=K + 1)
        if smaller.id_bits + WINDOW_BITS <= FLOAT64_BITS:
            exact = "the exact modified network (softened=False, --exact)"
            return f"Use grid={K} or less, or {exact}"
        K //= 2
    return "No grid fits; use the exact modified network (softened=False, --exact)"


def _boxes_too_far_from_zero(c: Constants) -> Iterator[str]:
    """Intervals so narrow for their distance from 0 that the edge guard is too small."""
    box = c.grid.box
    for low, high, width in zip(box.lows, box.highs, box.widths, strict=True):
        size = Fraction(max(abs(low), abs(high))) / width + 2 * c.n
        if size * 8 / 2**FLOAT64_BITS > EDGE_GUARD:
            yield (
                f"the interval [{low:g}, {high:g}] is {float(size):.3g} times narrower "
                "than its distance from 0, so float64 cannot tell its cells apart "
                "reliably. Shift the coordinate towards 0"
            )
