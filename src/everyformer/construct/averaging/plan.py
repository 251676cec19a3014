"""What averaging attention will cost, and when float64 cannot hold it."""

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, comb, log2
from typing import Any, ClassVar, get_args

from everyformer.construct.averaging.codes import MAX_STEPS, prime_from
from everyformer.construct.averaging.layers import (
    CLOSING,
    GUARD,
    NARROW,
    AveragingSizes,
    Mixing,
    Variant,
    averaging_stages,
    read_in_out,
)
from everyformer.construct.grid_plan import CellPlan, StageCount, has_positions
from everyformer.construct.table import Table, all_multisets, piecewise_constant
from everyformer.errors import GridError
from everyformer.model.architecture import ArchitectureSpec
from everyformer.model.construction import Construction, Ids
from everyformer.model.mixing import MIXER_KINDS
from everyformer.model.network import Network
from everyformer.progress import Progress, no_progress
from everyformer.targets.box import Grid
from everyformer.targets.target import Target

REACH = 1024
"""Widths of the box from which on float64 inputs of a network on R^(n x d) are refused."""

BITS = 52
"""Integers up to 2^52 and their halves are float64 numbers."""

RAMP_SHARE = 32
"""Ramps may add 1/32 of (hi - lo)/K to the distance."""

TOLERATED = Fraction(3, 8)
"""A look-up with ramp 1/4 between integers is right for errors of its key up to this."""


@dataclass(frozen=True, repr=False)
class AveragingPlan(CellPlan):
    """The cost of averaging attention by formula.

    Attributes:
        averaging: Sizes and constants.
    """

    averaging: AveragingSizes

    id_bits_limit: ClassVar[int] = BITS

    @property
    def positional(self) -> bool:
        """Whether tokens know their position."""
        return self.averaging.positional

    @property
    def label(self) -> str:
        """The construction in few words."""
        a = self.averaging
        kind = "with" if a.positional else "without"
        by = "" if a.mixer == "attention" else f", by {MIXER_KINDS[a.mixer]}"
        by += ", 0 outside the box" if a.everywhere else ""
        return f"averaging attention {kind} positions, {a.variant}{by}"

    @property
    def blocks(self) -> int:
        """Depth; the wide variants have the attention in the block of the look-up."""
        layers = sum(stage.layers for stage in self.stages)
        return layers if self.averaging.variant == "narrow" else layers - 1

    @property
    def ramp_share(self) -> Fraction:
        """Share of the domain off the plateaus: N (K - 1) 5 rho/4, ramps and guards."""
        a = self.averaging
        return a.n * a.d * (a.K - 1) * (1 + GUARD) * a.ramp

    @property
    def _hidden(self) -> int:
        return sum(hidden_units(self.averaging).values())

    @property
    def parameters(self) -> int:
        """Numbers that are stored: layers differ in size, and unused halves have none."""
        w, n, d = self.architecture.inner_width, self.averaging.n, self.averaging.d
        layers = sum(stage.layers for stage in self.stages) - 1
        return self._hidden * (2 * w + 1) + layers * w + 4 * w + 1 + w * (2 * d + n)

    @property
    def nonzeros_limit(self) -> int:
        """Numbers that the construction may set."""
        a, units = self.averaging, hidden_units(self.averaging)
        last = units.pop("look-up")
        count = 3 * sum(units.values()) + 2 + last * (3 + a.d) + a.d
        read = 2 * a.d + (a.n * (a.d + 1) if a.positional else a.n * a.d)
        read += a.d * (1 + a.n) if a.everywhere and a.positional else 0
        return count + read

    @property
    def id_bits(self) -> int:
        """Bits of the largest key."""
        a = self.averaging
        if a.positional or prime_from(a.V) ** a.n <= MAX_STEPS:
            return a.largest_key.bit_length()
        return (a.V * a.n * prime_from(a.V) ** a.n).bit_length()

    @property
    def peak_bytes(self) -> int:
        """About what building needs: weights twice, the table and its keys."""
        a = self.averaging
        return 3 * self.stored_bytes + lookup_rows(a) * 8 * (6 * a.d + 10)

    def rows(self) -> Iterator[tuple[str, str]]:
        """The stages and the ramps."""
        yield from super().rows()
        yield "ramp width", _power(self.averaging.ramp)

    def tabulate(self, target: Target, progress: Progress = no_progress) -> Table:
        """The target at the centre of every cell, or of one of each orbit."""
        if self.positional:
            return piecewise_constant(self.shape, target, progress, positional=True)
        return all_multisets(self.shape, target, progress)

    def network(self, table: Table, progress: Progress = no_progress) -> Network:
        """The network that computes a table."""
        progress("build: averaging attention", 0, len(self.stages))
        return Network(
            architecture=self.architecture,
            stages=tuple(averaging_stages(self.averaging, table)),
            construction=description(self.averaging, self.target),
            registers=read_in_out(self.averaging),
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return super().to_json() | {
            "theorem": "Averaging",
            "paper": "everyformer",
            "variant": self.averaging.variant,
            "positional": self.averaging.positional,
            "mixer": self.averaging.mixer,
            "ramp_width": str(self.averaging.ramp),
        }

    def objections(self) -> list[str]:
        """Why float64 cannot hold it, all reasons."""
        a = self.averaging
        given = f"n={a.n}, d={a.d}, grid={a.K}"
        if not a.positional:
            return _equivariant_objections(a, given, self.id_bits)
        wrong: list[str] = []
        bits = a.n * a.d * log2(a.K)
        if bits > BITS:
            wrong.append(
                f"{given} numbers {a.K}^{a.n * a.d} cells, which takes {bits:.1f} bits; "
                f"float64 has room for {BITS}. Use a coarser grid"
            )
            return wrong
        rounded = Fraction(3 * a.n + 2, 2**53) * a.sequences
        if rounded >= TOLERATED:
            wrong.append(
                f"{given}: the mean of {a.n} tokens is rounded by up to "
                f"{float(rounded):.2g}, and the look-up tolerates 3/8. Use a coarser grid"
            )
        need = bits + log2(a.span / a.ramp)
        if a.variant == "two-step":
            need = max(log2(a.n * a.K * a.span / a.ramp), bits + log2(4 * a.n * a.K))
        if need > BITS or a.ramp > Fraction(1, 4 * a.K):
            wrong.append(
                f"{given}: hidden units of size K^N n / ramp cancel inside one sum, which "
                f"takes {bits + log2(4 * a.n * a.K):.1f} bits or more; float64 has {BITS}. "
                "Use a coarser grid, or variant='two-step'"
            )
        return wrong


def description(a: AveragingSizes, target: str) -> Construction:
    """What is known of the network besides its weights."""
    direction = tuple(int(v) for v in a.layout.vector(C=1))
    return Construction(
        theorem="Averaging",
        target=target,
        grid=a.K,
        lows=a.grid.box.lows,
        highs=a.grid.box.highs,
        ids=Ids(direction, Fraction(0), Fraction(a.largest_key + 1)),
        ramp_width=a.ramp,
        reach=REACH if a.everywhere else 0,
    )


def _equivariant_objections(a: AveragingSizes, given: str, bits: int) -> list[str]:
    wrong: list[str] = []
    q = prime_from(a.V)
    if a.n > 1 and q**a.n > MAX_STEPS and (a.n + 1) ** (a.V - 2) > MAX_STEPS:
        wrong.append(
            f"{given} has {a.V} symbols; a Bose-Chowla set for {a.n} of them takes "
            f"{q}^{a.n} = {float(q**a.n):.3g} steps to find, more than {MAX_STEPS:.0e}. "
            "Use a coarser grid, or positions (positional=True)"
        )
    elif Fraction(a.n + 4, 2**53) * a.largest_key >= TOLERATED or bits > BITS:
        wrong.append(
            f"{given} has keys of {bits} bits, which float64 rounds by more than the "
            "look-up tolerates. Use a coarser grid, or positions (positional=True)"
        )
    if log2(a.V / a.ramp) > BITS:
        wrong.append(
            f"{given}: hidden units of size V / ramp = {float(a.V / a.ramp):.3g} cancel "
            f"inside one sum, and float64 has {BITS} bits. Use a coarser grid"
        )
    return wrong


def _power(ramp: Fraction) -> str:
    return f"2^-{ramp.denominator.bit_length() - 1}"


def lookup_rows(a: AveragingSizes) -> int:
    """n K^N keys; V binom(V + n - 2, n - 1) in the equivariant case."""
    if a.positional:
        return a.n * a.sequences
    return a.V * comb(a.V + a.n - 2, a.n - 1)


def hidden_units(a: AveragingSizes) -> dict[str, int]:
    """Hidden units of each feed-forward stage."""
    n, d, K, V = a.n, a.d, a.K, a.V
    if not a.positional:
        first = {"symbols": 2 * d * (K - 1), "codes": 2 * (V - 1)}
    elif a.variant == "two-step":
        first = {"whole digits": 2 * d * (n * K - 1), "placed digits": 2 * d * (n * K - 1)}
    else:
        first = {"digits": 2 * d * (n * K - 1)}
    last = 2 * (lookup_rows(a) - 1)
    if a.everywhere:
        name = next(iter(first))
        first[name] += 4 * d
        last += 2 * CLOSING
    return first | {"look-up": last}


def ramp_width(n: int, d: int, K: int, p: Fraction, variant: Variant) -> Fraction:
    """rho: small enough for p, large enough for float64; a power of two.

    The ramps and their guards add at most (N^2 (K - 1) 5 rho/4)^(1/p) (hi - lo) to d_p. rho
    is the largest power of two that keeps this below (hi - lo) / (32 K), unless float64
    needs a larger one.
    """
    N, span = n * d, n + (n - 1) / K
    share = log2((K - 1) * (1 + GUARD))
    exponent = ceil(float(p) * log2(RAMP_SHARE * K) + 2 * log2(N) + share)
    room = BITS - ceil(N * log2(K) + log2(span))
    if variant == "two-step":
        room = BITS - ceil(log2(n * K * span))
    return Fraction(1, 2 ** max(min(exponent, room), 1))


def plan_averaging(
    target: Target,
    grid: int,
    *,
    p: Fraction = Fraction(2),
    positional: bool | None = None,
    variant: Variant = "wide",
    mixer: Mixing = "attention",
) -> AveragingPlan:
    """Count the layers and parameters of averaging attention; nothing is built.

    Args:
        target: The function.
        grid: K, cells per axis.
        p: The exponent of d_p, which decides how narrow ramps are.
        positional: With positions; by default unless the target is equivariant.
        variant: "wide", "narrow" or "two-step".
        mixer: Which layer is to take the sum.

    Raises:
        GridError: If the grid is not an integer >= 2, there is no such variant or mixer, or
            the target needs positions.
    """
    mixers = ("attention", *MIXER_KINDS)
    for name, value, known in (
        ("variant", variant, get_args(Variant)),
        ("mixer", mixer, mixers),
    ):
        if value not in known:
            choice = ", ".join(repr(one) for one in known)
            msg = f"{name}={value!r} does not exist. Choose one of {choice}."
            raise GridError(msg)
    shape = Grid(grid, target.seq_len, target.domain)
    positional = has_positions(target, positional)
    if variant == "two-step" and not positional:
        msg = (
            "variant='two-step' without positions does not exist: the equivariant "
            "construction has its codes in a step of their own. Use variant='wide'."
        )
        raise GridError(msg)
    n, d, K = target.seq_len, target.d_model, shape.cells
    ramp = ramp_width(n, d, K, p, variant)
    a = AveragingSizes(shape, positional, variant, ramp, mixer, target.everywhere)
    units = hidden_units(a)
    stages = [
        StageCount(name, -(-count // NARROW) if variant == "narrow" else 1, False, count)
        for name, count in units.items()
    ]
    stages.insert(-1, StageCount("sum", 1, False, 2, "attention"))
    architecture = ArchitectureSpec(
        seq_len=n,
        d_model=d,
        num_heads=1,
        d_head=1,
        d_ff=NARROW if variant == "narrow" else max(units.values()),
        width=a.layout.width,
    )
    return AveragingPlan(target.name, shape, architecture, tuple(stages), None, a)
