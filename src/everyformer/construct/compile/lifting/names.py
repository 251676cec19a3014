"""What people call the lines of f: by the line of the user's program that wrote them."""

from collections.abc import Generator, Sequence
from contextlib import contextmanager

from everyformer.construct.compile.lifting.lines import Table
from everyformer.targets.places import Place, shown

MOST_NAMED = 1000
"""Lines of a sum that are looked at for its name."""


class Names:
    """Names of lines; lines that the compiler made are called as what they are part of."""

    def __init__(self, table: Table) -> None:
        """Begin with no names."""
        self._table = table
        self._names: dict[Place, str] = {}
        self._around = ""

    @contextmanager
    def within(self, lines: Sequence[int]) -> Generator[None]:
        """While the block runs, lines that no user wrote are called as these are."""
        before, self._around = self._around, self.of(lines)
        try:
            yield
        finally:
            self._around = before

    def of_mixture(self, whole: list[int], atoms: set[int]) -> str:
        """The user's line that first adds some of these atoms up, in the first sum."""
        table = self._table
        waiting, seen, found = list(whole[:1]), set[int](), list[int]()
        while waiting and len(seen) < MOST_NAMED:
            line = waiting.pop()
            if line in seen or not table.is_linear(line):
                continue
            seen.add(line)
            operands = table.nodes[line].operands
            waiting += operands
            if not atoms.isdisjoint(operands) and table.places[line] is not None:
                found.append(line)
        return self.of([min(found)] if found else whole)

    def of(self, lines: Sequence[int]) -> str:
        """The user's line that wrote the last of these; else the first operation."""
        places = self._table.places
        written = [line for line in lines if places[line] is not None]
        place = places[max(written)] if written else None
        if place is None:
            if self._around or not lines:
                return self._around
            return f"{self._table.nodes[lines[0]].op} (line {lines[0]})"
        if place not in self._names:
            self._names[place] = shown(place)
        return self._names[place]
