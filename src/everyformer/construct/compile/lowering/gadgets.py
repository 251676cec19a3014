"""What heads and hidden units do, before they have registers and numbers.

A *cell* is a register as the program sees it: an input, a constant, or what one head or one
group of units writes. Several cells may later live in one register, one after the other. A
*reading* is an affine combination of cells: a row of a weight matrix, with exact rationals.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from everyformer.numerics.affine import Affine

ZERO, ONE = Fraction(0), Fraction(1)

UnitStep = Literal["sum", "max", "min", "exchange"]
Signature = tuple[Any, ...]


@dataclass(eq=False)
class Cell:
    """A number for each token.

    Attributes:
        index: Its place among all cells, in the order in which they were made.
        name: For people.
        channel: The entry of x that it is, or None.
        data: A constant's numbers on the n data tokens, or None.
        prefix: A constant's numbers on the first prefix tokens.
        fill: A constant's number on all other prefix tokens.
        garbage: A bound on its size on prefix tokens.
        hushed: Whether units whose gate is closed on prefix tokens write it.
        origin: The line of the user's program that it belongs to, for people.
    """

    index: int
    name: str
    channel: int | None = None
    data: tuple[Fraction, ...] | None = None
    prefix: tuple[Fraction, ...] = ()
    fill: Fraction = ZERO
    garbage: Fraction = ZERO
    hushed: bool = False
    origin: str = ""

    @property
    def is_work(self) -> bool:
        """Whether a step writes it."""
        return self.channel is None and self.data is None

    @property
    def is_constant(self) -> bool:
        """Whether it is known before x is."""
        return self.data is not None

    @property
    def is_zero_on_prefix(self) -> bool:
        """Whether it is exactly 0 on all prefix tokens, until it is overwritten."""
        if self.data is not None:
            return not any(self.prefix) and not self.fill
        return self.channel is not None or self.hushed


class Reading(Affine[Cell]):
    """An affine combination of cells."""

    __slots__ = ()

    @property
    def plain(self) -> Cell | None:
        """The one cell that it is, if it is just that and may be overwritten."""
        if self.offset or len(self.terms) != 1:
            return None
        ((cell, coefficient),) = self.terms.items()
        return cell if coefficient == 1 and not cell.is_constant else None

    @property
    def garbage(self) -> Fraction:
        """A bound on its size on prefix tokens."""
        return sum(
            (abs(c) * cell.garbage for cell, c in self.terms.items()), abs(self.offset)
        )

    @property
    def signature(self) -> Signature:
        """Equal for equal readings."""
        ordered = sorted((cell.index, c) for cell, c in self.terms.items())
        return (*ordered, self.offset)


@dataclass(frozen=True, eq=False)
class Average:
    """One value that a head moves: target = scale times its weighted average.

    Attributes:
        value: What is averaged; its offset is 0.
        scale: The entry of W_O.
        target: The cell that is written.
        column: The claim of a unary head about this value, or None.
    """

    value: Reading
    scale: Fraction
    target: Cell
    column: dict[str, Any] | None = None


@dataclass(eq=False)
class Head:
    """A head with one value or more.

    Attributes:
        claim: What it is, for the verifier.
        queries: The readings of the query; offsets become b_Q.
        keys: As many readings of the key; their offsets are 0.
        averages: What it moves.
    """

    claim: dict[str, Any]
    queries: tuple[Reading, ...]
    keys: tuple[Reading, ...]
    averages: list[Average]

    @property
    def signature(self) -> Signature:
        """Equal for heads with equal scores."""
        claim = self.claim
        step = (claim["step"], "everyone" in claim, claim.get("faint"))
        rows = (r.signature for r in (*self.queries, *self.keys))
        return (step, len(self.queries), *rows)

    @property
    def readings(self) -> list[Reading]:
        """All that it reads."""
        return [*self.queries, *self.keys, *(a.value for a in self.averages)]

    @property
    def targets(self) -> list[Cell]:
        """All that it writes."""
        return [average.target for average in self.averages]


@dataclass(frozen=True, eq=False)
class Term:
    """Part of a sum: c v, c |v| or c relu(v), on the tokens where a gate is 0.

    Attributes:
        kind: "copy", "abs" or "relu".
        value: v.
        factor: c.
        gate: A constant that is 0 where the term counts and large elsewhere, or None.
    """

    kind: Literal["copy", "abs", "relu"]
    value: Reading
    factor: Fraction = ONE
    gate: Cell | None = None

    @property
    def rows(self) -> list[tuple[Reading, Fraction]]:
        """The hidden units: what each reads, and its entry of W_2."""
        closed = Reading({}) if self.gate is None else Reading.of(self.gate, -1)
        up, down = self.value + closed, closed - self.value
        if self.kind == "relu":
            return [(up, self.factor)]
        second = -self.factor if self.kind == "copy" else self.factor
        return [(up, self.factor), (down, second)]


@dataclass(eq=False)
class Units:
    """Hidden units that write one cell.

    Attributes:
        step: "sum" writes an empty register; the others change the register of one of
            their operands in place.
        target: The cell that is written.
        terms: The parts of a sum.
        operands: What is compared: (a, b). One of them is overwritten.
        gates: (g_low, g_up) of an exchange.
    """

    step: UnitStep
    target: Cell
    terms: tuple[Term, ...] = ()
    operands: tuple[Reading, ...] = ()
    gates: tuple[Cell, ...] = ()

    @property
    def readings(self) -> list[Reading]:
        """All that it reads."""
        gates = [term.gate for term in self.terms if term.gate is not None]
        return [
            *(term.value for term in self.terms),
            *self.operands,
            *(Reading.of(gate) for gate in (*gates, *self.gates)),
        ]

    @property
    def targets(self) -> list[Cell]:
        """What it writes."""
        return [self.target]

    @property
    def rows(self) -> list[tuple[Reading, Fraction]]:
        """The hidden units: what each reads, and its entry of W_2."""
        if self.step == "sum":
            return [row for term in self.terms for row in term.rows]
        first, second = self.operands  # the first is overwritten
        if self.step == "max":
            return [(second - first, ONE)]
        if self.step == "min":
            return [(first - second, -ONE)]
        low, up = self.gates
        return [
            (first - second - Reading.of(low), -ONE),
            (second - first - Reading.of(up), ONE),
        ]


Work = Head | Units
