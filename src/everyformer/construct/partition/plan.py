"""What a softmax partition of unity will cost, and which lattice meets a tolerance."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from everyformer.certify.bound import Bound
from everyformer.certify.partition.lattice import Lattice
from everyformer.certify.partition.lattice_field import BOXES, MAX_CELLS
from everyformer.construct.grid_plan import GridPlan, StageCount
from everyformer.construct.partition.anchors import anchor_table
from everyformer.construct.partition.choice import (
    DECAYS,
    MARGINS,
    MAX_ANCHORS,
    DeclaredBounds,
    TracedBounds,
    choose,
)
from everyformer.construct.partition.layers import (
    Anchored,
    partition_stages,
    read_in_out,
)
from everyformer.construct.table import Table
from everyformer.construct.table_error import TableErrors
from everyformer.errors import CertificateError, GridError, TargetError
from everyformer.model.architecture import ArchitectureSpec
from everyformer.model.construction import Construction
from everyformer.model.network import Network
from everyformer.numerics.limits import format_count, is_positive, shown, writable
from everyformer.progress import Progress, no_progress
from everyformer.targets.box import Grid
from everyformer.targets.target import Target

BITS = 53
"""Of a float64 number."""

ROOM_TO_PROVE = 1 - Fraction(1, 2**20)
"""Share of a tolerance that a plan may use; what it leaves is for values of f rounded."""

Settings = tuple[tuple[Fraction, ...], tuple[int, ...]]
"""Values of D and margins to try."""


@dataclass(frozen=True, repr=False)
class PartitionPlan(GridPlan):
    """The cost of a softmax partition of unity by formula.

    Attributes:
        lattice: K, D, the margin and the box.
        p: The exponent; None for the supremum.
        bound: A bound on d_p(f, g) of a network that does as planned, rounding included;
            None where nothing is known of f.
        clipped: Whether anchors beyond the domain hold f at the nearest point of it.
        traced: Whether the bound knows f by its expression.
    """

    lattice: Lattice
    p: Fraction | None
    bound: Bound | None
    clipped: bool
    traced: bool

    id_bits_limit: ClassVar[int] = BITS
    room: ClassVar[Fraction] = Fraction(1)

    @property
    def positional(self) -> bool:
        """Tokens know their positions, which choose the entries that they keep."""
        return True

    @property
    def label(self) -> str:
        """The construction in few words."""
        return "softmax partition of unity"

    @property
    def source(self) -> str:
        """Whose construction it is, in words."""
        return f"{self.label}, {format_count(self.prefix_tokens)} prefix tokens"

    @property
    def prefix_tokens(self) -> int:
        """P, tokens before the sequence; each is one anchor."""
        return self.lattice.anchors

    @property
    def blocks(self) -> int:
        """Slots; sum; average and select."""
        return 3

    @property
    def parameters(self) -> int:
        """Numbers that are stored: prefix tokens, read-in, read-out and four layers."""
        n, d, N = self.shape.seq_len, self.shape.d_model, self.lattice.size
        w = self.architecture.inner_width
        attention = (4 * w + 1) * (N + N + 1)
        feed_forward = (2 * w + 1) * (N + 2 * N) + 2 * w
        return (self.prefix_tokens + n + 2 * d) * w + attention + feed_forward

    @property
    def nonzeros_limit(self) -> int:
        """Numbers that the construction may set."""
        n, d, N = self.shape.seq_len, self.shape.d_model, self.lattice.size
        around = self.prefix_tokens * (2 * N + 1) + n * (d + 2) + 2 * d + N
        return around + sum(stage.nonzeros for stage in self.stages)

    @property
    def id_bits(self) -> int:
        """There are no ids: bits of the largest score, before the point."""
        return math.ceil(3 * self.lattice.logit_size).bit_length()

    @property
    def multiply_adds(self) -> int:
        """Of the n tokens of a sequence; what the prefix costs once is left out.

        Prefix tokens need not attend (`model.prefix`), so n (n + P) scores and averages of
        N + 1 and N entries remain in the second attention, and of N in the first.
        """
        n, N, w = self.shape.seq_len, self.lattice.size, self.architecture.inner_width
        layers = n * w * (4 * (2 * N + 1) + 6 * N)
        return layers + n * (n + self.prefix_tokens) * (4 * N + 1)

    @property
    def peak_bytes(self) -> int:
        """About what building and proving need.

        Weights three times; f, its slopes and curves on every box that is enclosed.
        """
        N = self.lattice.size
        cells = (self.lattice.grid.cells + 2 * self.lattice.margin) ** N
        jets = N * (1 + N + N * (N + 1) // 2)
        prove = max(cells, min(BOXES, cells * 8**N)) * jets * 2 * 8 * 3
        return 3 * self.stored_bytes + prove

    def objections(self) -> list[str]:
        """Why the lattice cannot work, if it cannot."""
        lattice = self.lattice
        cells = lattice.grid.cells + 2 * lattice.margin
        if cells**lattice.size <= MAX_CELLS:
            return []
        return [
            f"n={self.shape.seq_len}, d={self.shape.d_model}, grid={lattice.grid.cells}, "
            f"margin={lattice.margin} makes {format_count(self.prefix_tokens)} prefix "
            f"tokens and {cells}^{lattice.size} cells on which f is enclosed, more than "
            f"{format_count(MAX_CELLS)}. Use a coarser grid, or another method"
        ]

    def planned_bound(self, errors: TableErrors | None) -> Bound | None:
        """The bound that chose the lattice; rounding is in it."""
        return self.bound

    def known(self, target: Target) -> Target:
        """f as the bound knows it."""
        return target if self.traced else target.untraced()

    def tabulate(self, target: Target, progress: Progress = no_progress) -> Table:
        """The target at every anchor."""
        return anchor_table(Anchored(self.lattice), target, progress, clip=self.clipped)

    def network(self, table: Table, progress: Progress = no_progress) -> Network:
        """The network whose prefix tokens hold a table."""
        progress("build: softmax partition of unity", 0, len(self.stages))
        anchored = Anchored(self.lattice)
        return Network(
            architecture=self.architecture,
            stages=tuple(partition_stages(anchored, table.values)),
            construction=self._description(),
            registers=read_in_out(anchored, table.values),
        )

    def _description(self) -> Construction:
        box = self.shape.box
        return Construction(
            theorem="Partition",
            target=self.target,
            grid=self.grid,
            lows=box.lows,
            highs=box.highs,
            sharpness=self.lattice.D * self.grid**2,
        )

    def rows(self) -> Iterator[tuple[str, str]]:
        """The stages, the lattice and the bound."""
        yield from super().rows()
        lattice = self.lattice
        bound = "unknown" if self.bound is None else self.bound.format_value()
        norm = "sup norm" if self.p is None else f"p = {self.p}"
        yield "prefix tokens", format_count(self.prefix_tokens)
        yield "decay D, margin m", f"{lattice.D}, {lattice.margin}"
        yield f"planned bound, {norm}", bound
        if self.clipped:
            yield "f beyond its domain", "clipped: first order near faces"

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return super().to_json() | {
            "theorem": "Partition",
            "paper": "everyformer",
            "prefix_tokens": writable(self.prefix_tokens),
            "decay": str(self.lattice.D),
            "margin": self.lattice.margin,
            "clipped": self.clipped,
            "p": "inf" if self.p is None else str(self.p),
            "planned_bound": None if self.bound is None else self.bound.format_value(),
        }


def plan_partition(
    target: Target,
    grid: int | None = None,
    *,
    tol: Fraction | None = None,
    p: Fraction | None = Fraction(2),
    decay: int | float | Fraction | None = None,
    margin: int | None = None,
    max_anchors: int = MAX_ANCHORS,
) -> PartitionPlan:
    """The lattice of a partition of unity and what its network costs; nothing is built.

    Args:
        target: The function.
        grid: K, steps of the lattice per axis; or
        tol: the distance d_p(f, g) allowed: the fewest anchors are taken whose proved
            bound meets it.
        p: The exponent; None for the supremum.
        decay: D; by default the best of a few values.
        margin: m, steps of the lattice beyond the domain; likewise.
        max_anchors: With tol: more prefix tokens are not allowed.

    Raises:
        GridError: If a setting makes no sense.
        TargetError: If a tolerance is given and nothing is known of the target.
        ToleranceError: If no lattice with so few anchors meets the tolerance.
    """
    settings = _settings(decay, margin)
    if (grid is None) == (tol is None):
        msg = f"Give either grid or tol; got grid={grid!r} and tol={tol!r}."
        raise GridError(msg)
    if tol is not None:
        found = _chosen(target, tol, p, settings, max_anchors)
    else:
        assert grid is not None, "either grid or tol is given"  # noqa: S101
        Grid(grid, target.seq_len, target.domain)
        found = _best(target, grid, p, settings)
    return _plan(target, found, p)


def _settings(decay: int | float | Fraction | None, margin: int | None) -> Settings:
    """Values of D and margins to try.

    Raises:
        GridError: If one of them cannot be used.
    """
    if margin is not None and not (type(margin) is int and 1 <= margin <= 64):
        msg = f"margin={shown(margin)} is not an integer from 1 to 64. Use for example 2."
        raise GridError(msg)
    margins = MARGINS if margin is None else (margin,)
    if decay is None:
        return DECAYS, margins
    if not is_positive(decay) or decay > 10**5:
        msg = f"decay={shown(decay)} is not a number in (0, 100000]. Use for example 2."
        raise GridError(msg)
    D = Fraction(str(decay)) if isinstance(decay, float) else Fraction(decay)
    if (max(margins) + 1) ** 2 * D < 1:
        msg = (
            f"decay={decay} with margin={max(margins)}: the anchors' weights reach beyond "
            "the lattice; the proof needs (margin + 1)^2 decay >= 1. Use a larger margin."
        )
        raise GridError(msg)
    return (D,), tuple(m for m in margins if (m + 1) ** 2 * D >= 1)


@dataclass(frozen=True)
class _Found:
    """A lattice, its bound if there is one, and how f is known and extended."""

    lattice: Lattice
    bound: Bound | None
    clipped: bool
    traced: bool


def _prover(target: Target, p: Fraction | None) -> TracedBounds | DeclaredBounds | None:
    """Bounds from what is known of f; None if nothing is."""
    if target.expression is not None:
        return TracedBounds(target.expression, p, run=True)
    whole = max(target.domain.widths)
    if target.modulus_of_continuity(whole / 2) is None:
        return None

    def modulus(radius: Fraction) -> Fraction:
        found = target.modulus_of_continuity(radius)
        assert found is not None, "declared, as above"  # noqa: S101
        return found

    lows, highs = target.domain.lows, target.domain.highs
    centre = [[(a + b) / 2 for a, b in zip(lows, highs, strict=True)]] * target.seq_len
    middle = abs(target(np.array(centre))).max()
    largest = Fraction(float(middle)) + modulus(whole / 2)
    return DeclaredBounds(target.lipschitz, modulus, largest, p, run=True)


@lru_cache(maxsize=256)
def _chosen(
    target: Target,
    tol: Fraction,
    p: Fraction | None,
    settings: Settings,
    max_anchors: int,
) -> _Found:
    """The lattice for a tolerance."""
    prove = _prover(target, p)
    if prove is None:
        msg = (
            f"tol={float(tol):g} was asked for {target.name}, which declares neither "
            f"lipschitz nor modulus, and cannot be traced: {target.untraceable} Make f "
            "traceable, declare one of the two, or choose the lattice (grid=...)."
        )
        raise TargetError(msg)
    decays, margins = settings
    try:
        choice = choose(
            prove.choices,
            target.seq_len,
            target.domain,
            tol * ROOM_TO_PROVE,
            decays=decays,
            margins=margins,
            max_anchors=max_anchors,
        )
    except CertificateError:
        declared = target.modulus_of_continuity(Fraction(1)) is not None
        if target.expression is not None and declared:
            return _chosen(target.untraced(), tol, p, settings, max_anchors)
        raise
    return _found(prove, choice.lattice, choice.bound)


@lru_cache(maxsize=256)
def _best(
    target: Target,
    grid: int,
    p: Fraction | None,
    settings: Settings,
) -> _Found:
    """The best of some values of D and margins for a grid."""
    decays, margins = settings
    traced = target.expression is not None
    shape = Grid(grid, target.seq_len, target.domain)
    margins = margins[:1]  # one more anchor a side does not help where D is right
    lattices = [Lattice(shape, D, margins[0]) for D in decays]
    cells = (grid + 2 * margins[0]) ** lattices[0].size
    prove = _prover(target, p) if cells <= MAX_CELLS else None
    if prove is None:
        return _Found(lattices[len(lattices) // 2], None, True, traced)
    try:
        choices = prove.choices(lattices, BOXES)
    except CertificateError:
        if traced and target.modulus_of_continuity(Fraction(1)) is not None:
            return _best(target.untraced(), grid, p, settings)
        return _Found(lattices[len(lattices) // 2], None, True, traced)
    choice = min(choices, key=lambda choice: choice.bound.value)
    return _found(prove, choice.lattice, choice.bound)


def _found(prove: TracedBounds | DeclaredBounds, lattice: Lattice, bound: Bound) -> _Found:
    """With whether f is clipped: a declared one always is, known on the domain alone."""
    if isinstance(prove, DeclaredBounds):
        return _Found(lattice, bound, clipped=True, traced=False)
    return _Found(lattice, bound, prove.field(lattice)[1], traced=True)


def _plan(target: Target, found: _Found, p: Fraction | None) -> PartitionPlan:
    lattice = found.lattice
    n, d, N = target.seq_len, target.d_model, lattice.size
    architecture = ArchitectureSpec(
        seq_len=n,
        d_model=d,
        num_heads=1,
        d_head=N + 1,
        d_ff=2 * N,
        width=Anchored(lattice).layout.width,
        num_prefix=lattice.anchors,
    )
    stages = (
        StageCount("slots", 1, False, 4 * N),
        StageCount("sum", 1, False, 2 * N, "attention"),
        StageCount("average", 1, False, 4 * N + 2, "attention"),
        StageCount("select", 1, False, 7 * N),
    )
    return PartitionPlan(
        target.name,
        lattice.grid,
        architecture,
        stages,
        None,
        lattice,
        p,
        found.bound,
        found.clipped,
        found.traced,
    )
