"""Comparisons with a maximum, written so that each of its terms is compared by itself.

x_1 >= max(x_1, x_2) is where(max(x_1, x_2) - x_1, 0, 1): it holds where the difference is
not positive. Interval arithmetic does not see that both sides of the difference may be the
same number, and finds it positive or not on no box at all. But for all real numbers

    max(p, q) + r = max(p + r, q + r)       -max(p, q) = min(-p, -q)
    min(p, q) + r = min(p + r, q + r)             |p| = max(p, -p)

and here max(x_1, x_2) - x_1 = max(0, x_2 - x_1), which is 0 where x_2 <= x_1, ends of the
box included. So in a condition, a maximum that has a term in common with the rest is
spread: p + r and q + r are affine forms in other lines, in which equal terms cancel
exactly, and each becomes a line. The condition has the same value at every point.

It also has one at the same points: a line without a value (1 / x at 0) may have cancelled.
So unless all lines that it uses are defined everywhere, where(c, 0, 0) is added, with the
condition c as it was: 0, or not defined.
"""

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from everyformer.numerics.affine import MAX_TERMS, Affine, combined
from everyformer.numerics.expression import LARGEST, Expression, Node
from everyformer.numerics.rewriting import ancestors, is_partial, moved, pruned

MAX_LINES = 2**14
"""Lines that conditions use, up to which they are looked at."""

MAX_LEAVES = 2**12
"""Terms compared with 0, in all conditions together, before the rest are left alone."""

MAX_WORK = 2**18
"""Sets of lines looked at, likewise."""

MAX_DEPTH = 64
"""Maxima inside each other that are spread."""

KINKS = frozenset({"min", "max", "abs"})
OPPOSITE = {"max": "min", "min": "max"}


class _TooLong(Exception):  # noqa: N818
    """The condition is left as it is."""


class _Kink(NamedTuple):
    """A minimum or maximum of two forms; |u| is max(u, -u).

    Attributes:
        op: "min" or "max".
        parts: Both forms.
        reach: The lines that it depends on, itself and others of its kind left out; None if
            they are many.
        inner: Whether there is something to spread inside.
    """

    op: str
    parts: tuple[Affine[int], Affine[int]]
    reach: frozenset[int] | None
    inner: bool


def compared_by_terms(expression: Expression) -> Expression:
    """The same function, with conditions that fewer boxes leave undecided.

    Example:
        >>> lines = (Node("x", (0, 0)), Node("x", (1, 0)), Node("max", (0, 1)))
        >>> choice = (Node("sub", (2, 0)), Node("where", (3, 0, 1)))
        >>> f = compared_by_terms(Expression(2, 1, (*lines, *choice), ((4,), (4,))))
        >>> f.to_json()["nodes"][2:]
        [['const', '0'], ['sub', 1, 0], ['max', 2, 3], ['where', 4, 0, 1]]
    """
    nodes = expression.nodes
    conditions = [node.args[0] for node in nodes if node.op == "where"]
    used = ancestors(nodes, conditions)
    if len(used) > MAX_LINES or not any(nodes[k].op in KINKS for k in used):
        return expression
    followed = _Followed(nodes, used)
    lines: list[Node] = []
    place: list[int] = []
    changed = False
    for number, node in enumerate(nodes):
        line = moved(node, place)
        if node.op == "where":
            added = followed.spread(node.args[0], place, len(lines))
            if added:
                lines += added
                line = Node("where", (len(lines) - 1, *line.args[1:]))
                changed = True
        followed.take(number)
        place.append(len(lines))
        lines.append(line)
    if not changed:
        return expression
    rows = [[place[k] for k in row] for row in expression.outputs]
    return pruned(expression, lines, rows)


class _Followed:
    """The lines that conditions use, as affine forms of others."""

    def __init__(self, nodes: tuple[Node, ...], used: set[int]) -> None:
        self._nodes, self._used = nodes, used
        self._forms: dict[int, Affine[int]] = {}
        self._kinks: dict[int, _Kink] = {}
        self._total: list[bool] = []
        self._leaves = self._work = 0

    def take(self, number: int) -> None:
        """Follow the next line."""
        node = self._nodes[number]
        total = all(self._total[k] for k in node.operands)
        self._total.append(total and not is_partial(self._nodes, node))
        if number not in self._used:
            return
        form = None
        if node.op == "const":
            form = Affine[int].constant(node.value or Fraction(0))
        elif node.op in {"add", "sub", "neg", "mul", "div"}:
            a, b = node.args[0], node.args[-1]
            form = combined(node.op, self._forms[a], self._forms[b])
        elif node.op in KINKS:
            self._kinks[number] = self._kink(node)
        self._forms[number] = form or Affine[int].of(number)

    def _kink(self, node: Node) -> _Kink:
        first, second = self._forms[node.args[0]], self._forms[node.args[-1]]
        op = node.op
        if op == "abs":
            op, second = "max", -first
        both = self._reach(first), self._reach(second)
        reach = None if None in both else frozenset[int]().union(*(r for r in both if r))
        if reach is not None and len(reach) > MAX_TERMS:
            reach = None
        inner = any(self._common(form) is not None for form in (first, second))
        return _Kink(op, (first, second), reach, inner)

    def _reach(self, form: Affine[int]) -> frozenset[int] | None:
        """The lines that a form depends on, through minima and maxima too."""
        found: set[int] = set()
        for k in _lines(form):
            kink = self._kinks.get(k)
            own = frozenset({k}) if kink is None else kink.reach
            if own is None:
                return None
            found |= own
        return frozenset(found)

    def _common(self, form: Affine[int]) -> int | None:
        """A minimum or maximum with a term in common with the rest, or inside itself."""
        for k in _lines(form):
            kink = self._kinks.get(k)
            if kink is None or kink.reach is None or self._work > MAX_WORK:
                continue
            self._work += len(form.terms)
            rest = self._reach(_without(form, k))
            if kink.inner or (rest is not None and kink.reach & rest):
                return k
        return None

    def spread(self, condition: int, place: list[int], start: int) -> list[Node]:
        """New lines for a condition, numbered from start; the last is the condition.

        None, if there is no need or they are too many.
        """
        form = self._forms[condition]
        if self._common(form) is None:
            return []
        lines = _Lines(place, start)
        try:
            last = self._write(form, lines, 0)
            if not self._total[condition]:
                zero = lines.add(Node("const", value=Fraction(0)))
                nothing = lines.add(Node("where", (place[condition], zero, zero)))
                last = lines.add(Node("add", (last, nothing)))
        except _TooLong:
            return []
        return lines.nodes if last == lines.last else []

    def _write(self, form: Affine[int], lines: "_Lines", depth: int) -> int:
        """The number of a new line with the value of the form."""
        k = self._common(form)
        if k is None:
            self._leaves += 1
            if self._leaves > MAX_LEAVES:
                raise _TooLong
            return lines.affine(form)
        kink, c, rest = self._kinks[k], form.terms[k], _without(form, k)
        if depth == MAX_DEPTH:
            raise _TooLong
        parts: list[int] = []
        for part in kink.parts:
            sum_of_both = combined("add", rest, part * c)
            if sum_of_both is None:
                raise _TooLong
            parts.append(self._write(sum_of_both, lines, depth + 1))
        op = kink.op if c > 0 else OPPOSITE[kink.op]
        return lines.add(Node(op, (parts[0], parts[1])))


class _Lines:
    """New lines, each written once."""

    def __init__(self, place: list[int], start: int) -> None:
        self.nodes: list[Node] = []
        self._place, self._start = place, start
        self._known: dict[Node, int] = {}

    @property
    def last(self) -> int:
        return self._start + len(self.nodes) - 1

    def add(self, node: Node) -> int:
        if node not in self._known:
            self._known[node] = self._start + len(self.nodes)
            self.nodes.append(node)
        return self._known[node]

    def constant(self, value: Fraction) -> int:
        if abs(value) > LARGEST:
            raise _TooLong
        return self.add(Node("const", value=value))

    def affine(self, form: Affine[int]) -> int:
        """The line of a form: positive terms first, then what is subtracted."""
        total: int | None = None
        for k in sorted(_lines(form), key=lambda k: (form.terms[k] < 0, k)):
            c, line = form.terms[k], self._place[k]
            size = c if total is None else abs(c)
            if size == -1:
                line = self.add(Node("neg", (line,)))
            elif size != 1:
                line = self.add(Node("mul", (self.constant(size), line)))
            op = "add" if c > 0 else "sub"
            total = line if total is None else self.add(Node(op, (total, line)))
        if total is None:
            return self.constant(form.offset)
        if form.offset:
            op = "add" if form.offset > 0 else "sub"
            total = self.add(Node(op, (total, self.constant(abs(form.offset)))))
        return total


def _lines(form: Affine[int]) -> Iterator[int]:
    """The lines that are terms of a form."""
    return (k for k in form.terms if isinstance(k, int))


def _without(form: Affine[int], k: int) -> Affine[int]:
    return Affine({j: c for j, c in form.terms.items() if j != k}, form.offset)
