"""Maxima and minima: of a token's own numbers, over tokens, and sorting.

Over all n tokens the maximum needs log2 n rounds: after round i a token knows the maximum
of 2^i tokens up to itself. A sorting network is recognised by running odd-even
transposition on its leaves: if the lines of its last round are there, n rounds of exchanges
do the same, or Batcher's O(log^2 n) rounds.
"""

from collections.abc import Callable, Container
from fractions import Fraction
from functools import reduce
from typing import TYPE_CHECKING

from everyformer.certify.compile.algebra.sorting import Round, odd_even, sorted_leaves
from everyformer.construct.compile.lifting.builder import Builder
from everyformer.construct.compile.lifting.families import Family
from everyformer.construct.compile.lifting.lines import Table
from everyformer.construct.compile.program import Form, Sorted
from everyformer.numerics.expression import Expression, Node

if TYPE_CHECKING:
    from everyformer.construct.compile.lifting.lift import Lift

SortingNetwork = Callable[[int], list[Round]]
"""For a number of wires the rounds of a network that sorts them."""


def extreme(lift: "Lift", family: Family) -> Form:
    """The form of lines that are max or min, or a number that one of them is taken of."""
    ops = {lift.table.nodes[line].op for line in family} & {"min", "max"}
    found = _sorted(lift, family)
    if found is not None:
        return found
    if len(ops) == 2:
        return _exchanged(lift, family) or _selected(lift, family)
    (op,) = ops
    whole = lift.sorting.lines(lift)
    rows = [_leaves(lift.table, line, op, whole, shared=False) for line in family]
    used = [line for row in rows for line in row]
    even = len({len(row) for row in rows}) == 1
    if not even or (len(set(used)) < len(used) and len(set(family)) > 1) or _is_long(rows):
        rows = [_leaves(lift.table, line, op, whole, shared=True) for line in family]
    return _folded(lift, family, rows, op)


def _is_long(rows: list[list[int]]) -> bool:
    return any(len(set(row)) > 2 for row in rows)


def _leaves(
    table: Table, line: int, op: str, whole: Container[int], *, shared: bool
) -> list[int]:
    """What the extreme is taken of; inner ones with other readers too if `shared`.

    The lines of a sort, `whole`, are not opened: the least of them is a minimum of all.
    """
    found: dict[int, None] = {}
    waiting = [line]
    while waiting:
        part = waiting.pop()
        node = table.nodes[part]
        inner = part not in whole and (shared or table.uses[part] == 1)
        if node.op == op and (inner or part == line):
            waiting += node.args
        else:
            found.setdefault(part)
    return sorted(found)


def _folded(lift: "Lift", family: Family, rows: list[list[int]], op: str) -> Form:
    build, n = lift.build, lift.n
    users: dict[int, list[int]] = {}
    for j, row in enumerate(rows):
        for line in row:
            users.setdefault(line, []).append(j)
    mine = {line for line, lanes in users.items() if len(lanes) == 1}
    found: list[Form] = []
    local = [[line for line in row if line in mine] for row in rows]
    if len({len(row) for row in local}) == 1:
        for column, _ in lift.match.align(local):
            found.append(lift.family(column))
    else:
        mine = set()
    shared = [line for line in users if line not in mine]
    constants = [line for line in shared if lift.table.value(line) is not None]
    found += [lift.family((line,) * n) for line in constants if len(users[line]) == n]
    pending = {k for k in shared if k not in constants or len(users[k]) < n}
    for column in lift.match.gathered(pending):
        value = lift.family(column)
        lift.says(family)
        if len(set(column)) == 1 and len(users[column[0]]) == n:
            found.append(value)
            continue
        homes = {
            line: k for k, line in reversed(list(enumerate(column))) if line in pending
        }
        pending -= set(homes)
        reads = [sorted(homes[line] for line in row if line in homes) for row in rows]
        if not all(reads):
            return _padded(lift, family, rows, op)
        found.append(_over_tokens(lift, value, reads, op))
    lift.says(family)
    variable = sorted(found, key=lambda form: bool(form.terms), reverse=True)
    return reduce(lambda a, b: build.extreme(op, a, b), variable)


def _padded(lift: "Lift", family: Family, rows: list[list[int]], op: str) -> Form:
    """Tokens with different numbers of leaves: shorter rows repeat their last one."""
    most = max(len(row) for row in rows)
    columns = [tuple(row[min(m, len(row) - 1)] for row in rows) for m in range(most)]
    forms = [lift.family(column) for column in columns]
    lift.says(family)
    return reduce(lambda a, b: lift.build.extreme(op, a, b), forms)


def _over_tokens(lift: "Lift", value: Form, reads: list[list[int]], op: str) -> Form:
    """The extreme of v_k over the tokens k that each token reads.

    In each round a token takes over what another one knows: the one that knows most that is
    new, of those that know nothing else; of these the nearest.
    """
    n, build = lift.n, lift.build
    wanted = [sum(1 << k for k in row) for row in reads]
    tau = [
        j if j in row else min(row, key=lambda k, j=j: abs(k - j))
        for j, row in enumerate(reads)
    ]
    known = [1 << k for k in tau]
    base, value = value, build.gather(value, tau)
    while known != wanted:
        tau = [_teacher(j, known, wanted[j]) for j in range(n)]
        if all(k != j or known[j] == wanted[j] for j, k in enumerate(tau)):
            value = build.extreme(op, value, build.gather(value, tau))
            known = [known[j] | known[k] for j, k in enumerate(tau)]
        else:  # nobody knows only what a token wants: the number itself
            new = [wanted[j] & ~known[j] or wanted[j] for j in range(n)]
            tau = [bits.bit_length() - 1 for bits in new]
            value = build.extreme(op, value, build.gather(base, tau))
            known = [known[j] | 1 << k for j, k in enumerate(tau)]
    return value


def _teacher(j: int, known: list[int], wanted: int) -> int:
    """The token from which token j learns most, j itself if it knows all."""
    n = len(known)
    best, gain = j, 0
    for distance in range(1, n // 2 + 1):
        for k in ((j - distance) % n, (j + distance) % n):
            new = (known[k] & ~known[j]).bit_count()
            if new > gain and not known[k] & ~wanted:
                best, gain = k, new
    return best


def _sorted(lift: "Lift", family: Family) -> Form | None:
    """Lines of a sorted sequence of n numbers, one for each token; None if they are not."""
    n, table = lift.n, lift.table
    leaves = _inputs_of_network(table, family, n)
    if leaves is None:
        return None
    homes = [lift.match.home(line) for line in leaves]
    orders = [leaves]
    if len({home for home in homes if home is not None}) == n:
        orders.insert(0, sorted(leaves, key=lambda line: lift.match.home(line) or 0))
    for order in orders:
        final = _transposed(table, order)
        if set(family) <= set(final):
            value = lift.family(order)
            lift.says(family)
            value = lift.sorting.sort(lift.build, value, final)
            return lift.build.gather(value, [final.index(line) for line in family])
    return None


def _inputs_of_network(table: Table, family: Family, n: int) -> list[int] | None:
    """The n numbers that a network of minima and maxima reads, if it has both."""
    leaves: set[int] = set()
    seen: set[int] = set()
    ops: set[str] = set()
    waiting = list(family)
    while waiting:
        line = waiting.pop()
        if line in seen:
            continue
        seen.add(line)
        node = table.nodes[line]
        if node.op in {"min", "max"}:
            ops.add(node.op)
            waiting += node.args
        else:
            leaves.add(line)
            if len(leaves) > n:
                return None
    return sorted(leaves) if len(leaves) == n and len(ops) == 2 else None


def _transposed(table: Table, order: list[int]) -> list[int]:
    """The lines after n rounds; -1, -2, .. for those that f does not have."""
    rows = list(order)
    missing = 0
    for start in range(len(rows)):
        for k in range(start % 2, len(rows) - 1, 2):
            pair = tuple(sorted(rows[k : k + 2]))
            for place, op in ((k, "min"), (k + 1, "max")):
                found = table.find(Node(op, pair)) if pair[0] >= 0 else None
                if found is None:
                    missing -= 1
                rows[place] = missing if found is None else found
    return rows


class Sorts:
    """How n numbers are sorted, and what was.

    A verifier that knows f's own lines for a sort follows any network; else it has to be
    f's own, odd-even transposition.

    Attributes:
        found: The sorts whose lines of f a verifier recognises.
    """

    def __init__(
        self, expression: Expression | None, network: SortingNetwork = odd_even
    ) -> None:
        """Begin with no sort."""
        self._expression, self._network = expression, network
        self._lines: frozenset[int] | None = None
        self.found: list[Sorted] = []

    def lines(self, lift: "Lift") -> frozenset[int]:
        """The lines where f has sorted n numbers that do the same to each token."""
        if self._lines is None:
            table, read = lift.table, dict[int, set[int]]()
            for node in table.nodes:
                for k in node.args if node.op in {"min", "max"} else ():
                    if table.nodes[k].op not in {"min", "max", "const"}:
                        read.setdefault(table.colours[k], set()).add(k)
            finals = [
                _transposed(table, sorted(k, key=lambda line: lift.match.home(line) or 0))
                for k in map(sorted, read.values())
                if len(k) == lift.n > 1
            ]
            self._lines = frozenset(k for one in finals if min(one) >= 0 for k in one)
        return self._lines

    def sort(self, build: Builder, value: Form, lines: list[int]) -> Form:
        """The numbers in order; `lines` are those of f that they are."""
        known = self._expression is not None and (
            sorted_leaves(self._expression, lines) is not None
        )
        rounds: list[Form] = []
        for pairs in self._network(build.n) if known else odd_even(build.n):
            value = build.exchange(value, *_round(build.n, pairs))
            rounds.append(value)
        if known:
            self.found.append(Sorted(tuple(rounds), tuple(lines)))
        return value


def _round(n: int, pairs: Round) -> tuple[list[int], list[bool]]:
    """Partners of all tokens, and who keeps the lower number."""
    tau, low = list(range(n)), [True] * n
    for i, j in pairs:
        tau[i], tau[j] = j, i
        low[j] = False
    return tau, low


def _exchanged(lift: "Lift", family: Family) -> Form | None:
    """One round of a network: pairs of tokens with the min and the max of two lines."""
    n, table = lift.n, lift.table
    if len(set(family)) < n:
        return None
    where = {line: j for j, line in enumerate(family)}
    tau, low, before = list(range(n)), [True] * n, list(family)
    for j, line in enumerate(family):
        node = table.nodes[line]
        if node.op not in {"min", "max"}:
            continue
        mate = table.find(Node("max" if node.op == "min" else "min", node.args))
        if mate not in where:
            return None
        tau[j] = where[mate]
        low[j] = node.op == "min"
        if tau[j] > j:
            before[j], before[tau[j]] = _oriented(lift, *node.args)
    value = lift.family(before)
    lift.says(family)
    return lift.build.exchange(value, tau, low)


def _oriented(lift: "Lift", a: int, b: int) -> tuple[int, int]:
    """Which of two lines stood at the earlier token, as far as one can tell."""
    ops = lift.table.nodes[a].op, lift.table.nodes[b].op
    homes = lift.match.home(a), lift.match.home(b)
    if ops == ("min", "max") or (
        homes[0] is not None and homes[1] is not None and homes[0] > homes[1]
    ):
        return b, a
    return a, b


def _selected(lift: "Lift", family: Family) -> Form:
    """Tokens that take a maximum, a minimum, or neither: all of them, then a choice."""
    total = Form.constant(0)
    ops = [lift.table.nodes[line].op for line in family]
    for kind in ("max", "min", None):
        own = {
            j: line
            for j, (line, op) in enumerate(zip(family, ops, strict=True))
            if kind == (op if op in {"max", "min"} else None)
        }
        if own:
            filled, mine = lift.match.filled(own)
            factors = [Fraction(int(m)) for m in mine]
            total += lift.build.scale(lift.family(filled), factors)
    return lift.build.form(total)
