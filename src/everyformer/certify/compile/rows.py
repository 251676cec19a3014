"""The weights of one block as rows and columns that a proof can read."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from everyformer.certify.compile.rounded import scales_exactly
from everyformer.certify.compile.values import Row
from everyformer.certify.undecided import Undecided

Ideals = Mapping[str, Mapping[tuple[int, ...], Fraction]]
"""For the name of an array, what its entries stand for."""


@dataclass(frozen=True)
class Entry:
    """The one number that is not 0 in a column: where something is added to.

    Attributes:
        register: Where.
        stored: The factor.
        ideal: What it stands for.
    """

    register: int
    stored: float
    ideal: Fraction

    @property
    def is_power_of_two(self) -> bool:
        """Whether multiplying with it is exact."""
        return scales_exactly(self.stored)


@dataclass(frozen=True)
class BlockWeights:
    """One block: its stage's name, its number, and its arrays without the layer axis."""

    name: str
    number: int
    arrays: Mapping[str, np.ndarray]
    ideals: Ideals

    def undecided(self, why: str) -> Undecided:
        """What stops the proof here."""
        return Undecided(self.name, why)

    @property
    def heads(self) -> int:
        """How many; 0 without attention."""
        return len(self.arrays["W_Q"]) if "W_Q" in self.arrays else 0

    @property
    def components(self) -> int:
        """m."""
        return self.arrays["W_Q"].shape[1]

    @property
    def units(self) -> int:
        """How many hidden units; 0 without a feed-forward half."""
        return len(self.arrays["W_1"]) if "W_1" in self.arrays else 0

    def query(self, head: int, component: int) -> Row:
        """A row of W_Q, with -b_Q."""
        row = self._row("W_Q", head, component)
        bias = float(self.arrays["b_Q"][head, component])
        ideal = self._ideal("b_Q", (head, component), bias)
        return Row(row.stored, row.ideal, -bias, -ideal)

    def key(self, head: int, component: int) -> Row:
        """A row of W_K."""
        return self._row("W_K", head, component)

    def value(self, head: int, component: int) -> Row:
        """A row of W_V."""
        return self._row("W_V", head, component)

    def products(self, head: int) -> Iterator[tuple[Row, Row]]:
        """The queries and keys that a score adds up; without those that read nothing."""
        for component in range(self.components):
            query, key = self.query(head, component), self.key(head, component)
            if not (query.is_zero or key.is_zero):
                yield query, key

    def unit(self, unit: int) -> Row:
        """A row of W_1, with b_1."""
        row = self._row("W_1", unit)
        bias = float(self.arrays["b_1"][unit])
        return Row(row.stored, row.ideal, bias, self._ideal("b_1", (unit,), bias))

    def writes(self, head: int) -> Iterator[tuple[int, Entry, Row]]:
        """The components that are used: each with the register that it writes, and what.

        Raises:
            Undecided: If one writes several registers.
        """
        W_O = self.arrays["W_O"][head]
        for component in range(W_O.shape[1]):
            found = self._entry(W_O[:, component], "W_O", (head,), (component,))
            if found is not None:
                yield component, found, self.value(head, component)

    def written_by(self, unit: int) -> Entry | None:
        """The register that a unit writes; None for one that writes nothing.

        Raises:
            Undecided: If it writes several registers.
        """
        return self._entry(self.arrays["W_2"][:, unit], "W_2", (), (unit,))

    def _entry(
        self,
        column: np.ndarray,
        name: str,
        before: tuple[int, ...],
        after: tuple[int, ...],
    ) -> Entry | None:
        places = np.flatnonzero(column)
        if len(places) == 0:
            return None
        if len(places) > 1:
            raise self.undecided(f"a column of {name} writes {len(places)} registers")
        register = int(places[0])
        stored = float(column[register])
        return Entry(
            register, stored, self._ideal(name, (*before, register, *after), stored)
        )

    def _row(self, name: str, *place: int) -> Row:
        return row_of(self.arrays[name][place], self._of(name), place)

    def _of(self, name: str) -> Mapping[tuple[int, ...], Fraction]:
        return self.ideals.get(f"{self.number}.{name}", {})

    def _ideal(self, name: str, place: tuple[int, ...], stored: float) -> Fraction:
        return self._of(name).get(place, Fraction(stored))


def row_of(
    array: np.ndarray,
    ideals: Mapping[tuple[int, ...], Fraction],
    place: tuple[int, ...],
) -> Row:
    """A row with what its numbers stand for, by register."""
    stored = {int(k): float(array[k]) for k in np.flatnonzero(array)}
    ideal = {k: ideals.get((*place, k), Fraction(c)) for k, c in stored.items()}
    return Row(stored, ideal)
