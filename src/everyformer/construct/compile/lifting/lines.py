"""The lines of f as a table that can be asked, and to which lines can be added.

Linear lines (+, -, scaling) are opened into sums over *atoms*, products into monomials of
*factors*. A sum that many lines read is closed: it is read as one number, so that layers
are not multiplied out into each other.
"""

import heapq
from collections.abc import Container, Iterable, Mapping, Sequence
from fractions import Fraction

import numpy as np

from everyformer.numerics.expression import Expression, Node
from everyformer.numerics.rewriting import ancestors, moved
from everyformer.targets.box import Box
from everyformer.targets.places import Place
from everyformer.targets.recorder import COMMUTATIVE

PRIME = 2**61 - 1
"""Colours are values in the field with so many elements."""

MANY_USES = 3
"""A sum with so many readers,"""
MANY_ATOMS = 4
"""and with so many atoms that are not entries of x, is closed."""

MOST_TERMS = 1_000_000
"""Terms of a sum that are opened before it is given up."""

Rational = int | Fraction
"""Whole numbers are int where that is known: most are, and they are much faster."""

ZERO: Rational = 0
ONE: Rational = 1
HALF = Fraction(1, 2)
_CODES = {
    op: 7919 * k
    for k, op in enumerate(
        [
            "x",
            "abs",
            "min",
            "max",
            "exp",
            "log",
            "sqrt",
            "sin",
            "cos",
            "tanh",
            "xlogx",
            "where",
            "pow",
            "div",
        ],
        start=1,
    )
}

Sum = dict[int, Rational]
"""Coefficients of lines."""


class Table:
    """All lines, with who reads them, the tokens they depend on, and their colour.

    A colour is the value of a line at one random point of a finite field, at which all
    tokens are equal; functions that are not polynomials are hashes. Lines that do the same
    to other tokens have one colour.

    Attributes:
        nodes: The lines.
        uses: How often a line is read.
        tokens: The tokens it depends on, as bits.
        colours: See above.
        size: A bound on the number of atoms of its sum, entries of x not counted.
        places: Where in the user's program it was written; of lines that are made here,
            where the last one was that they read. None if that is not known.
    """

    def __init__(self, expression: Expression) -> None:
        """Read the lines of an expression."""
        self.nodes: list[Node] = []
        self.uses: list[int] = []
        self.tokens: list[int] = []
        self.colours: list[int] = []
        self.size: list[int] = []
        self.places: list[Place | None] = []
        self._numbers: dict[Node, int] = {}
        self._exact: dict[Fraction, int] = {}
        self._twins: dict[tuple[int, int], int] = {}
        self._monomials: dict[int, tuple[Rational, dict[int, Rational]]] = {}
        for node in expression.nodes:
            self._append(node)
        if len(expression.places) == len(self.nodes):
            self.places = list(expression.places)
        for row in expression.outputs:
            for line in row:
                self.uses[line] += 1

    def _append(self, node: Node) -> int:
        number = len(self.nodes)
        self._numbers.setdefault(node, number)
        self.nodes.append(node)
        self.uses.append(0)
        tokens, size = 0, 0
        for k in node.operands:
            self.uses[k] += 1
            tokens |= self.tokens[k]
            size += self.size[k]
        if node.op == "x":
            tokens = 1 << node.args[0]
        self.tokens.append(tokens)
        self.size.append(0)
        self.colours.append(0)
        last = max(node.operands, default=None)
        self.places.append(None if last is None else self.places[last])
        linear = node.op == "const" or self.is_linear(number)
        self.size[number] = size if linear else int(node.op != "x")
        self.colours[number] = self._colour(node)
        return number

    def make(self, op: str, *args: int, value: Fraction | None = None) -> int:
        """The line that says this; a new one if no line does."""
        node = Node(op, tuple(sorted(args)) if op in COMMUTATIVE else args, value)
        known = self._numbers.get(node)
        return self._append(node) if known is None else known

    def find(self, node: Node) -> int | None:
        """The line that says this, if there is one."""
        return self._numbers.get(node)

    def constant(self, value: Rational) -> int:
        """The line of a number."""
        return self.make("const", value=Fraction(value))

    def value(self, line: int) -> Fraction | None:
        """The number, if it is a constant."""
        return self.nodes[line].value

    def is_linear(self, line: int) -> bool:
        """Whether a line adds or scales."""
        node = self.nodes[line]
        if node.op in {"add", "sub", "neg"}:
            return True
        if node.op == "mul":
            return any(self.nodes[k].op == "const" for k in node.args)
        if node.op == "div":
            divisor = self.nodes[node.args[1]].value
            return divisor is not None and divisor != 0
        return False

    def is_closed(self, line: int) -> bool:
        """Whether a sum is read as one number."""
        return (
            self.size[line] >= MANY_ATOMS
            and self.uses[line] >= MANY_USES
            and self.is_linear(line)
        )

    def opened(
        self, sums: Iterable[tuple[int, Rational]], stop: Container[int] | None = None
    ) -> tuple[Sum, Rational]:
        """A sum of lines over atoms, and its constant.

        Args:
            sums: Lines and their coefficients; these are opened.
            stop: Lines that are not opened; None: those that are closed.
        """
        terms: Sum = {}
        heap: list[int] = []
        first = {line for line, _ in sums} if stop is None else set[int]()
        found: Sum = {}
        offset = ZERO

        def add(line: int, coefficient: Rational) -> None:
            old = terms.get(line)
            if old is None:
                heapq.heappush(heap, -line)
                terms[line] = coefficient
            else:
                terms[line] = old + coefficient

        for line, coefficient in sums:
            add(line, coefficient)
        while heap:
            line = -heapq.heappop(heap)
            coefficient = terms.pop(line)
            if not coefficient:
                continue
            node = self.nodes[line]
            if node.value is not None:
                offset += coefficient * plain(node.value)
                continue
            closed = (
                self.is_closed(line) and line not in first if stop is None else line in stop
            )
            if closed or not self.is_linear(line):
                found[line] = coefficient
                if len(found) > MOST_TERMS:
                    msg = "a sum of more than a million terms"
                    raise OverflowError(msg)
                continue
            op, args = node.op, node.args
            if op == "add":
                add(args[0], coefficient)
                add(args[1], coefficient)
            elif op == "sub":
                add(args[0], coefficient)
                add(args[1], -coefficient)
            elif op == "neg":
                add(args[0], -coefficient)
            else:
                factor, other = self._scaling(node)
                add(other, coefficient * factor)
        return found, offset

    def _scaling(self, node: Node) -> tuple[Rational, int]:
        """The number and the line of which a line is the product."""
        first, second = (self.nodes[k].value for k in node.args)
        if node.op == "div":
            return ratio(1, second or 1), node.args[0]
        if first is not None:
            return plain(first), node.args[1]
        return plain(second or Fraction(0)), node.args[0]

    def open_shallow(self, line: int) -> tuple[Sum, Rational]:
        """The sum that a line is, where only lines with one reader are opened."""
        if not self.is_linear(line):
            return {line: ONE}, ZERO
        return self.opened([(line, ONE)], _Shared(self, line))

    def exponentials(self, line: int) -> Sum | None:
        """The terms of a sum of exponentials and nothing else, or None."""
        if self.nodes[line].op == "exp":
            return {line: ONE}
        if not self.is_linear(line):
            return None
        terms, offset = self.opened([(line, ONE)], ())
        if offset or not terms or any(self.nodes[k].op != "exp" for k in terms):
            return None
        return terms

    def monomial(self, line: int) -> tuple[Rational, dict[int, Rational]]:
        """A line as a number times powers of factors; exponents are multiples of 1/2."""
        known = self._monomials.get(line)
        if known is None:
            known = self._monomials[line] = self._monomial(line)
        return known

    def _monomial(self, line: int) -> tuple[Rational, dict[int, Rational]]:
        coefficient = ONE
        factors: dict[int, Rational] = {}
        waiting = [(line, ONE, True)]
        while waiting:
            part, power, root = waiting.pop()
            node = self.nodes[part]
            single = root or self.uses[part] == 1
            whole = power.denominator == 1
            if node.value is not None and whole and (node.value or power > 0):
                coefficient *= plain(node.value ** int(power))
            elif node.op == "neg" and whole:
                coefficient *= -1 if power % 2 else 1
                waiting.append((node.args[0], power, False))
            elif node.op == "mul" and abs(power) == 1 and self._opens(node, single):
                waiting += [(k, power, False) for k in node.args]
            elif node.op == "div" and abs(power) == 1 and self._opens(node, single):
                waiting += [(node.args[0], power, False), (node.args[1], -power, False)]
            elif node.op == "pow" and whole and (abs(power) == 1 or single):
                waiting.append((node.args[0], power * node.args[1], False))
            elif node.op == "sqrt" and whole:
                waiting.append((node.args[0], ratio(power, 2), False))
            else:
                factors[part] = factors.get(part, ZERO) + power
        kept = {k: power for k, power in factors.items() if power}
        return coefficient, kept

    def as_multiple(self, line: int) -> tuple[int, Rational] | None:
        """The line and the number of which a product is the product, if it is that."""
        if self.nodes[line].op not in {"mul", "div", "pow", "sqrt"}:
            return None
        coefficient, factors = self.monomial(line)
        if not factors or not coefficient:
            return self.constant(ONE), coefficient
        ((factor, power),) = factors.items() if len(factors) == 1 else ((0, HALF),)
        return (factor, coefficient) if power == 1 else None

    def product_of(self, factors: Mapping[int, Rational]) -> int:
        """A line for a product of powers."""
        made: int | None = None
        for line, power in sorted(factors.items()):
            part, whole = line, power
            if power.denominator == 2:
                part, whole = self.make("sqrt", line), power * 2
            if whole != 1:
                part = self.make("pow", part, int(whole))
            made = part if made is None else self.make("mul", made, part)
        return self.constant(ONE) if made is None else made

    def sum_line(self, terms: Iterable[tuple[int, Rational]]) -> int:
        """A line for a sum."""
        made: int | None = None
        for line, c in terms:
            part = line
            if c != 1:
                part = self.make("mul", line, self.constant(c))
            made = part if made is None else self.make("add", made, part)
        return self.constant(ZERO) if made is None else made

    def twin(self, line: int, token: int) -> int | None:
        """A line of one token that does the same as another one does to its token."""
        node = self.nodes[line]
        if node.op == "x":
            return self.make("x", token, node.args[1])
        wanted = (self.colours[line], 1 << token)
        if not self._twins:
            self._twins = {
                (colour, tokens): k
                for k, (colour, tokens) in enumerate(
                    zip(self.colours, self.tokens, strict=True)
                )
            }
        return self._twins.get(wanted)

    def replaced(self, root: int, old: int, new: int) -> int:
        """A line with another one put in the place of one that it is made of."""
        changed = {old: new}
        for line in sorted(ancestors(self.nodes, (root,))):
            node = self.nodes[line]
            parts = [changed.get(k, k) for k in node.operands]
            if line == old or parts == list(node.operands):
                continue
            rest = node.args[len(parts) :]
            changed[line] = self.make(node.op, *parts, *rest, value=node.value)
        return changed.get(root, root)

    def evaluate(
        self, lines: Sequence[int], box: Box, n: int, count: int, rng: np.random.Generator
    ) -> list[np.ndarray]:
        """Lines in float64 at random points of the box."""
        x = rng.uniform(box.lows, box.highs, (count, n, len(box.lows)))
        needed = sorted(ancestors(self.nodes, lines))
        number = {line: k for k, line in enumerate(needed)}
        nodes = [moved(self.nodes[line], number) for line in needed]
        size = n, len(box.lows)
        found: list[np.ndarray] = []
        for line in lines:
            rows = ((number[line],) * size[1],) * size[0]
            found.append(Expression(*size, tuple(nodes), rows)(x)[:, 0, 0])
        return found

    def _opens(self, node: Node, single: bool) -> bool:
        """Whether a product or quotient is opened inside another one."""
        if single or any(self.nodes[k].op == "exp" for k in node.args):
            return True
        if node.op == "mul":
            return any(
                self.nodes[k].op == "div" and self.nodes[self.nodes[k].args[0]].value == 1
                for k in node.args
            )
        return self.exponentials(node.args[1]) is not None

    def _colour(self, node: Node) -> int:
        if node.op == "x":
            return _mixed(_CODES["x"], node.args[1])
        if node.value is not None:
            known = self._exact.get(node.value)
            if known is None:
                value = node.value
                known = value.numerator * pow(value.denominator % PRIME, -1, PRIME) % PRIME
                self._exact[value] = known
            return known
        parts = [self.colours[k] for k in node.operands]
        match node.op:
            case "add":
                return (parts[0] + parts[1]) % PRIME
            case "sub":
                return (parts[0] - parts[1]) % PRIME
            case "neg":
                return -parts[0] % PRIME
            case "mul":
                return parts[0] * parts[1] % PRIME
            case "div" if parts[1]:
                return parts[0] * pow(parts[1], -1, PRIME) % PRIME
            case "pow" if parts[0] or node.args[1] > 0:
                return pow(parts[0], node.args[1], PRIME)
            case "min" | "max":
                return _mixed(_CODES[node.op], *sorted(parts))
            case _:
                return _mixed(_CODES[node.op], *parts)


class _Shared:
    """The lines with more than one reader, apart from one."""

    def __init__(self, table: Table, root: int) -> None:
        self._uses, self._root = table.uses, root

    def __contains__(self, line: object) -> bool:
        return line != self._root and self._uses[line] > 1  # pyright: ignore[reportCallIssue, reportArgumentType]


def _mixed(*values: int) -> int:
    return hash(values) % PRIME


def single_token(tokens: int) -> int | None:
    """The token, if it is one."""
    return tokens.bit_length() - 1 if tokens and not tokens & (tokens - 1) else None


def plain(value: Fraction) -> Rational:
    """A whole number as int."""
    return value.numerator if value.denominator == 1 else value


def ratio(a: Rational, b: Rational) -> Rational:
    """a / b."""
    return plain(Fraction(a) / b)
