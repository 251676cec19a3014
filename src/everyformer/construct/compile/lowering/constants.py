"""Registers that hold the same numbers whatever x is.

On data tokens and on prefix tokens they are

isdata    1; 0                                     constants in values and outputs
isprefix  0; 1                                     to silence prefix tokens
pos, pos2 j, j^2; 0, 2^30                          gathers
to[tau]   tau(j); 0                                gathers that are not affine in j
hot_k     [j = k]; 0                               mixtures
gate      0 where open, G where closed; G          conditional units
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from everyformer.construct.compile.lowering.gadgets import ONE, ZERO, Cell, Reading
from everyformer.construct.compile.ranges import power_of_two_above

SILENCE = Fraction(2**40)
"""Key of prefix tokens, negated, in heads that listen to data tokens."""

FAR = Fraction(2**30)
"""pos2 of prefix tokens."""


Mask = Sequence[bool | None]
"""For each token whether a gate is open there; None where it does not matter."""


@dataclass(eq=False)
class Gate:
    """A constant that closes units on some tokens.

    Attributes:
        cell: The register.
        open: For each token whether the gate is 0 there; None where nobody asked yet.
        apart: (token, other gate): both may not be open on this token.
        closed: G, large enough for all that it closes.
    """

    cell: Cell
    open: list[bool | None]
    apart: list[tuple[int, "Gate"]] = field(default_factory=list)
    closed: Fraction = ONE

    def fits(self, wanted: Mask) -> bool:
        """Whether the gate is, or can be made, open and closed as wanted."""
        for have, want in zip(self.open, wanted, strict=True):
            if want is not None and have is not None and have != want:
                return False
        return not any(wanted[j] and other.open[j] for j, other in self.apart)

    def take(self, wanted: Mask, size: Fraction, garbage: Fraction) -> Cell:
        """Open and close it as wanted, for units that read numbers of this size."""
        both = zip(self.open, wanted, strict=True)
        self.open = [have if want is None else want for have, want in both]
        largest = max(4 * max(size, garbage), Fraction(1, 2**60))
        self.closed = max(self.closed, power_of_two_above(largest))
        return self.cell


class Constants:
    """The cells of a program, with equal constants made once.

    Attributes:
        n: The number of tokens.
        gates: Those that open and close units.
        origin: The line of the user's program that the next cells belong to.
    """

    def __init__(self, seq_len: int, *, has_prefix: bool, has_knots: bool) -> None:
        """No cells yet.

        Args:
            seq_len: n.
            has_prefix: Whether there will be prefix tokens.
            has_knots: Whether they serve unary heads; else the null token is the only one.
        """
        self.n, self.has_prefix, self._has_knots = seq_len, has_prefix, has_knots
        self._count = 0
        self.gates: list[Gate] = []
        self.origin = ""
        self._made: dict[tuple[object, ...], Cell] = {}

    def work(self, name: str, garbage: Fraction = ZERO) -> Cell:
        """A cell for a step to write."""
        return self._cell(name, garbage=garbage, origin=self.origin)

    def _cell(self, name: str, **numbers: Any) -> Cell:
        self._count += 1
        return Cell(self._count - 1, name, **numbers)

    def input(self, channel: int) -> Cell:
        """x_i of the token."""
        if (channel,) not in self._made:
            self._made[channel,] = self._cell(f"x{channel + 1}", channel=channel)
        return self._made[channel,]

    def constant(
        self,
        name: str,
        data: Sequence[Fraction | int],
        prefix: Sequence[Fraction] = (),
        fill: Fraction = ZERO,
    ) -> Cell:
        """A constant; the same cell for the same numbers."""
        numbers = tuple(Fraction(value) for value in data)
        first = tuple(prefix)
        while first and first[-1] == fill:
            first = first[:-1]
        key = (numbers, first, fill)
        if key not in self._made:
            largest = max((abs(value) for value in (*first, fill)), default=ZERO)
            self._made[key] = self._cell(
                name, data=numbers, prefix=first, fill=fill, garbage=largest
            )
        return self._made[key]

    def isdata(self) -> Cell:
        """1 on data tokens."""
        return self.constant("isdata", [1] * self.n)

    def isprefix(self) -> Cell:
        """1 on prefix tokens."""
        if not self._has_knots:
            return self.null()
        return self.constant("isprefix", [0] * self.n, fill=ONE)

    def null(self) -> Cell:
        """1 on the first prefix token."""
        return self.constant("null", [0] * self.n, [ONE])

    def hot(self, token: int) -> Cell:
        """1 on one data token."""
        return self.constant(f"hot{token + 1}", [int(j == token) for j in range(self.n)])

    def pos(self) -> Cell:
        """j."""
        return self.constant("pos", range(self.n))

    def pos2(self) -> Cell:
        """j^2, and far away on prefix tokens."""
        return self.constant("pos2", [j * j for j in range(self.n)], fill=FAR)

    def bare(self, reading: Reading) -> Reading:
        """The same reading on data tokens, without an offset."""
        if not reading.offset:
            return reading
        return Reading(reading.terms) + Reading.of(self.isdata(), reading.offset)

    def gate(self, wanted: Mask, size: Fraction, garbage: Fraction) -> Cell:
        """A gate that is open and closed as wanted."""
        for gate in self.gates:
            if gate.fits(wanted):
                return gate.take(wanted, size, garbage)
        return self._new_gate().take(wanted, size, garbage)

    def opposite_gates(
        self, low: Mask, size: Fraction, garbage: Fraction
    ) -> tuple[Cell, Cell]:
        """Two gates, open where low is True and where it is False, never both."""
        up = [None if value is None else not value for value in low]
        idle = [j for j, value in enumerate(low) if value is None]
        first = self._fitting(low, None, idle)
        second = self._fitting(up, first, idle)
        for j in idle:
            first.apart.append((j, second))
            second.apart.append((j, first))
        return first.take(low, size, garbage), second.take(up, size, garbage)

    def _fitting(self, wanted: Mask, other: Gate | None, idle: list[int]) -> Gate:
        for gate in self.gates:
            clash = other is not None and any(gate.open[j] and other.open[j] for j in idle)
            if gate is not other and not clash and gate.fits(wanted):
                return gate
        return self._new_gate()

    def later(self, name: str) -> Cell:
        """A constant that gets its numbers later."""
        return self._cell(name, data=tuple([ZERO] * self.n))

    def _new_gate(self) -> Gate:
        cell = self.later(f"gate{len(self.gates) + 1}")
        self.gates.append(Gate(cell, [None] * self.n))
        return self.gates[-1]

    def close_gates(self) -> None:
        """Give every gate its numbers."""
        for gate in self.gates:
            data = [ZERO if is_open else gate.closed for is_open in gate.open]
            gate.cell.data, gate.cell.fill = tuple(data), gate.closed
            gate.cell.garbage = gate.closed
