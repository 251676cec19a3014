"""What the construction of Yun et al. 2020 will cost; and what it refuses.

Also with the positions of Luo et al. 2022, which one attention layer makes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, ClassVar

from everyformer.construct.grid_plan import CellPlan, StageCount, has_positions
from everyformer.construct.shifts.assembly import description, network_of, proof_steps
from everyformer.construct.shifts.constants import (
    EDGE_GUARD,
    FLOAT64_BITS,
    RAMP_WIDTH,
    WINDOW_BITS,
    Constants,
)
from everyformer.construct.shifts.contextual import contextual_ids, contextual_steps
from everyformer.construct.table import Table, piecewise_constant
from everyformer.errors import GridError
from everyformer.model.architecture import ArchitectureSpec, AttentionKind
from everyformer.model.network import Network
from everyformer.numerics.limits import format_count, shown
from everyformer.progress import Progress, no_progress
from everyformer.targets.box import Grid
from everyformer.targets.target import Target


@dataclass(frozen=True, repr=False)
class ShiftPlan(CellPlan):
    """The cost of a construction by selective shifts, by formula.

    Attributes:
        constants: n, d, K and what follows from them.
    """

    constants: Constants

    id_bits_limit: ClassVar[int] = FLOAT64_BITS - WINDOW_BITS

    @property
    def label(self) -> str:
        """The construction in few words."""
        return f"{self.constants.theorem} of {self.constants.paper.key}"

    @property
    def positional(self) -> bool:
        """Whether tokens know their position."""
        return self.constants.positional

    @property
    def ramp_share(self) -> Fraction:
        """Share of the domain on which a softened quantiser is between two cells."""
        c = self.constants
        return c.n * c.d * c.K * RAMP_WIDTH if c.softened else Fraction(0)

    @property
    def gives_up_repeated(self) -> bool:
        """Whether nothing is promised in cells with equal columns (Proposition 4)."""
        return not self.positional and self.constants.n > 1

    @property
    def is_vacuous(self) -> bool:
        """Whether the grid is so coarse that every cell is given up: equal columns."""
        return not self.positional and self.shape.num_distinct_sets == 0

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
    def stored_bytes(self) -> int:
        """Bytes of the stored float64 weights; unused halves of blocks are not stored."""
        spec = self.architecture
        phi = 0 if spec.activation == "relu" else 10 * spec.d_ff
        numbers = {
            "attention": spec.attention_parameters - spec.urpe_parameters,  # C = 1, b_V = 0
            "positions": spec.attention_parameters,
            "feed-forward": spec.feed_forward_parameters + phi,
        }
        return 8 * sum(stage.layers * numbers[stage.kind] for stage in self.stages)

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
        rows = table_rows(c) * c.n
        weights = self.stored_bytes * (2 if c.softened else 6)
        return weights + rows * 8 * (6 * c.d + 10)

    def rows(self) -> Iterator[tuple[str, str]]:
        """The stages, and how many of their layers are the paper's."""
        yield from super().rows()
        yield "layers of the paper", format_count(self.paper_layers)
        if self.gives_up_repeated:
            share = float(self.shape.repeated_share)
            yield "cells with equal columns, given up", f"{100 * share:.4g} %"

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        c = self.constants
        named = {"theorem": c.theorem, "paper": c.paper.key, "attention": c.attention}
        share = str(self.shape.repeated_share) if self.gives_up_repeated else None
        return super().to_json() | named | {"repeated_share": share}

    def tabulate(self, target: Target, progress: Progress = no_progress) -> Table:
        """The target at the centre of every cell that the network tells apart."""
        return piecewise_constant(self.shape, target, progress, positional=self.positional)

    def network(self, table: Table, progress: Progress = no_progress) -> Network:
        """The network that computes a table."""
        c, name = self.constants, self.target
        ids = contextual_ids(c, table.columns)
        steps = proof_steps(c, contextual_steps, table, ids)
        return network_of(self.architecture, description(c, name, ids), c, steps, progress)

    def objections(self) -> list[str]:
        """Why the grid cannot work, if it cannot, all reasons."""
        return _objections(self)


def plan_shifts(
    target: Target,
    grid: int,
    *,
    softened: bool = True,
    positional: bool | None = None,
    spacing: int | None = None,
    attention: AttentionKind = "dense",
) -> ShiftPlan:
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
        GridError: If the grid is not an integer >= 2, or the target needs positions.
    """
    shape = Grid(grid, target.seq_len, target.domain)
    placed = attention == "urpe" or has_positions(target, positional)
    positional = placed and target.seq_len > 1
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
    stages = tuple(count_stages(c))
    return ShiftPlan(target.name, shape, architecture, stages, None, c)


def table_rows(c: Constants) -> int:
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
        yield StageCount("position layer", 1, True, 1 + (n - 1) + d + second, "positions")
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
        yield StageCount("selective shifts", c.num_swept_ids, True, heads, "attention")
        yield StageCount("global shift", 1, True, 2 * 3 * d + 1 + ones, "attention")
    if not c.positional:
        if soft:
            yield StageCount("cap ids", 1, False, layer(4, d, 1, 4))
        yield StageCount("push down", 1, True, layer(4, d, d, 4) + d if soft else 2 * d)
        yield StageCount("negative to zero", d, True, layer(4, 1, 1, 4) if soft else 2)
    entries = n * table_rows(c)
    one = layer(4, d, d, 4) if soft else 2 * d + 1
    if c.value_passes == 2:
        yield StageCount("ids to codes", entries, False, one)
    yield StageCount("value map", entries, True, one)
    if soft:
        yield StageCount("clamp", 2 * d, False, layer(4, 1, 1, 4))


def _objections(plan: ShiftPlan) -> list[str]:
    c = plan.constants
    wrong: list[str] = []
    if c.softened and not c.grid.is_dyadic:
        below = 1 << (c.K.bit_length() - 1)
        wrong.append(
            f"grid={c.K} is not a power of two, so multiples of 1/{c.K} and the ids made "
            f"of them are rounded in float64 and miss their windows. Use grid={below} or "
            f"grid={2 * below}, or the exact modified network (softened=False)"
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
            "positional=True)"
        )
    if c.softened and not c.grid.box.is_unit:
        wrong += list(_boxes_too_far_from_zero(c))
    return wrong


def _smaller_grid(plan: ShiftPlan) -> str:
    """The largest dyadic grid whose ids fit, in words."""
    c = plan.constants
    K = 1 << (c.K.bit_length() - 1)
    while K >= 2:
        smaller = replace(c, grid=Grid(K, c.n, c.grid.box), spacing=K + 1)
        if smaller.id_bits + WINDOW_BITS <= FLOAT64_BITS:
            exact = "the exact modified network (softened=False)"
            return f"Use grid={K} or less, or {exact}"
        K //= 2
    return "No grid fits; use the exact modified network (softened=False)"


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
