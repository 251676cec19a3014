"""Which lines of different tokens belong together.

A *family* is a line for each token. Lines that are used by one token alone are matched with
those of the other tokens; lines that several tokens use are matched with their homes. Every
matching is right, since each line stands in a place of its own; a good one needs fewer
steps.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence

from everyformer.construct.compile.lifting.lines import Table, single_token

Family = tuple[int, ...]
Key = Callable[[int, int], Hashable]


class Families:
    """Matches lines of tokens.

    Attributes:
        homes: For lines that stood in a family, the token they stood at.
    """

    def __init__(self, table: Table, n: int) -> None:
        """Begin without homes."""
        self.table = table
        self.n = n
        self.homes: dict[int, int] = {}

    def settle(self, family: Family) -> None:
        """Remember where the lines of a family stand."""
        if len(set(family)) == self.n:
            for j, line in enumerate(family):
                self.homes.setdefault(line, j)

    def home(self, line: int) -> int | None:
        """The token a line belongs to, if that is known."""
        single = single_token(self.table.tokens[line])
        return self.homes.get(line) if single is None else single

    def align(
        self, lanes: Sequence[Sequence[int]], first: Key | None = None
    ) -> list[tuple[Family, tuple[bool, ...]]]:
        """Match lines across tokens.

        Args:
            lanes: For each token its lines.
            first: What must agree before all else, if it can.

        Returns:
            Families, and for which tokens they have a line of their own; others borrow one.
        """
        table, n = self.table, self.n
        everywhere = set(lanes[0]).intersection(*map(set, lanes[1:])) if n > 1 else set()
        keys: list[Key] = [
            lambda line, j: line if line in everywhere else -1,
            lambda line, j: table.nodes[line].op,
            *([] if first is None else [first]),
            lambda line, j: table.colours[line],
            lambda line, j: self._relative(line, j),
        ]
        classes: list[list[list[int]]] = [[sorted(lane) for lane in lanes]]
        for key in keys:
            classes = [part for whole in classes for part in self._split(whole, key)]
        found: list[tuple[Family, tuple[bool, ...]]] = []
        for rows in classes:
            sizes = {len(row) for row in rows}
            if len(sizes) == 1:
                found += [(column, (True,) * n) for column in zip(*rows, strict=True)]
            else:
                found += self._uneven(rows)
        return found

    def _split(self, rows: list[list[int]], key: Key) -> list[list[list[int]]]:
        """Classes of equal keys, if every token has as many of each."""
        if max(len(row) for row in rows) <= 1:
            return [rows]
        classes: dict[Hashable, list[list[int]]] = {}
        for j, row in enumerate(rows):
            for line in row:
                value = key(line, j)
                if value not in classes:
                    classes[value] = [[] for _ in rows]
                classes[value][j].append(line)
        if all(len({len(row) for row in part}) == 1 for part in classes.values()):
            return list(classes.values())
        return [rows]

    def _relative(self, line: int, j: int) -> int:
        """The tokens a line depends on, counted from token j on."""
        tokens, n = self.table.tokens[line], self.n
        return (tokens >> j) | ((tokens << (n - j)) & ((1 << n) - 1))

    def _uneven(self, rows: list[list[int]]) -> list[tuple[Family, tuple[bool, ...]]]:
        """Match as many as there are, by what else the lines depend on, then in order."""
        columns: dict[Hashable, dict[int, int]] = {}
        for j, row in enumerate(rows):
            taken: dict[Hashable, int] = {}
            for line in row:
                others = self.table.tokens[line] & ~(1 << j)
                key = single_token(others) if others else -1
                place = taken.get(key, 0)
                taken[key] = place + 1
                columns.setdefault((key, place), {})[j] = line
        return [self.filled(column) for column in columns.values()]

    def filled(self, column: dict[int, int]) -> tuple[Family, tuple[bool, ...]]:
        """A family from some of its lines; other tokens borrow the nearest line."""
        places = sorted(column)
        family = [
            column[min(places, key=lambda k, j=j: (abs(k - j), k))] for j in range(self.n)
        ]
        return tuple(family), tuple(j in column for j in range(self.n))

    def gathered(self, lines: Iterable[int]) -> list[Family]:
        """Families that hold all these lines, each at its home if it has one."""
        classes: dict[int, list[int]] = {}
        for line in sorted(lines):
            classes.setdefault(self.table.colours[line], []).append(line)
        found: list[Family] = []
        rest: list[int] = []
        for members in classes.values():
            families = self._at_home(members, even=True)
            if families is None:
                rest += members
            else:
                found += families
        families = self._at_home(rest, even=False) if rest else []
        return found + (families or [(line,) * self.n for line in rest])

    def _at_home(self, members: list[int], *, even: bool) -> list[Family] | None:
        """Families by homes; None if a line has none, or `even` and tokens differ."""
        n = self.n
        rows: list[list[int]] = [[] for _ in range(n)]
        for line in members:
            home = self.home(line)
            if home is not None:
                rows[home].append(line)
        settled = sum(map(len, rows))
        if settled == 0 and len(members) == n:
            return [tuple(members)]
        if settled < len(members):
            return None
        sizes = {len(row) for row in rows}
        if len(sizes) == 1:
            return list(zip(*rows, strict=True))
        if even:
            return None
        if len(members) == 1:
            return [(members[0],) * n]
        most = max(sizes)
        columns = [
            {j: row[m] for j, row in enumerate(rows) if m < len(row)} for m in range(most)
        ]
        return [self.filled(column)[0] for column in columns]


def places(family: Family) -> dict[int, int]:
    """For each line of a family the first token it stands at."""
    found: dict[int, int] = {}
    for j, line in enumerate(family):
        found.setdefault(line, j)
    return found
