"""Writes down operations on numbers as the lines of an expression.

Arithmetic with terms (`term`) adds lines to their recorder. Equal lines are written once,
and what is known exactly is computed:

    constants: + - * / neg abs min max and powers, in rationals
    x + 0, x - 0, x * 1, x / 1, -(-x), max(x, x), x ** 0, x ** 1
    x * x and x ** j * x ** k become one power
    where(x > y, x, y) and the like become max, min and abs
    y * where(c, 1, 0) becomes where(c, y, 0), 1 - where(c, 1, 0) becomes where(c, 0, 1)

0 * x stays as it is: it would hide an x that is not defined.

What has no place in an expression is refused, and a refusal lasts: the recorder keeps the
first one and from then on gives no expression, whatever becomes of the exception. While a
function is recorded that exception is a `Refused`, which `except Exception` does not catch.
"""

import math
import operator
import threading
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from itertools import compress
from numbers import Integral
from typing import Any, NamedTuple, NoReturn

import numpy as np

from everyformer.errors import ExpressionError
from everyformer.numerics.expression import LARGEST, MAX_POWER, Expression, Node
from everyformer.numerics.rewriting import is_partial
from everyformer.targets.places import Place, caller
from everyformer.targets.term import NO_INFINITY, Nowhere, Term

MAX_NODES = 4_000_000
"""Lines that a recorder writes before it gives up."""

MAX_BITS = 4096
"""Constants with more bits than this are left as operations."""

MOST_CHOICES = 4
"""Numbers among which a line chooses (1 and 0; 1, 0 and -1) for its products to do so."""

ADVICE = (
    "Build the function from + - * /, integer powers, np.minimum, np.maximum, np.abs, "
    "np.sqrt, np.exp, np.log, np.sin, np.cos, np.tanh, comparisons, np.where, sums and "
    "products, or declare lipschitz= or modulus=."
)

NO_MASK = "Truth values take part in &, |, ~, np.where and products with numbers"
UNKNOWN = "It is not among the operations that are known"
NO_NUMBER = "x stands for all inputs at once and has no value"

COMMUTATIVE = frozenset({"add", "mul", "min", "max"})
_NEVER_KNOWN = frozenset({"add", "sub", "div", "abs", "exp", "log", "sqrt", "tanh"})
"""Operations that have no shorter form unless an operand is a constant."""

_EXACT: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "neg": operator.neg,
    "abs": abs,
    "min": min,
    "max": max,
}


class Refused(BaseException):
    """A refusal on its way through the function that is recorded.

    It is not an `Exception`, and so passes what functions catch.
    """


class Program(NamedTuple):
    """What an `Expression` is made of: lines, outputs, and where each line was written."""

    nodes: tuple[Node, ...]
    outputs: tuple[tuple[int, ...], ...]
    places: tuple[Place | None, ...]


class Recorder:
    """The lines written so far.

    Attributes:
        nodes: The lines.
        places: For each line where in the user's program it was first written, if known.
        refusal: Why there will be no expression: the first thing that was refused.

    Example:
        >>> recorder = Recorder()
        >>> x = recorder.entry(0, 0)
        >>> y = (x + 1) * (1 + x) - 0
        >>> [node.op for node in recorder.nodes]
        ['x', 'const', 'add', 'pow', 'const']
        >>> recorder.expression(1, 1, [[y]]).to_json()["nodes"]
        [['x', 0, 0], ['const', '1'], ['add', 0, 1], ['pow', 2, 2]]
    """

    def __init__(self, batch: int = 1) -> None:
        """Begin with no lines, for a batch of so many sequences."""
        self.nodes: list[Node] = []
        self.places: list[Place | None] = []
        self._place: Place | None = None
        self.refusal: str | None = None
        self._numbers: dict[Node, int] = {}
        self._sizes: list[float | Fraction] = []
        self._dropped: set[int] = set()
        self._batch = batch
        self._thread = threading.get_ident()
        self._open = True

    def refuse(self, what: str, why: str) -> NoReturn:
        """Refuse something that has no place in an expression, for good.

        Raises:
            Refused: While the function is recorded.
            ExpressionError: When that is over.
        """
        self._refuse(f"{what} cannot be traced. {why}. {ADVICE}")

    def _refuse(self, message: str) -> NoReturn:
        if not self._open:
            raise ExpressionError(message)
        self.refusal = self.refusal or message
        raise Refused(message)

    def failed(self, error: BaseException) -> None:
        """Remember an error that an array of terms has raised and numbers might not."""
        if isinstance(error, Exception):  # not KeyboardInterrupt
            said = f"{type(error).__name__}: {error}".rstrip(".")
            said = f"The function failed while it was traced: {said}. {ADVICE}"
            self.refusal = self.refusal or said

    def note_place(self) -> None:
        """Remember which line of the user's program writes the next lines."""
        self._place = caller()

    def close(self) -> None:
        """Write no more lines."""
        self._open = False

    def entry(self, token: int, coordinate: int) -> Term:
        """x[token][coordinate]."""
        return self._line(Node("x", (token, coordinate)))

    def constant(self, value: Any) -> Term:
        """A number that is given.

        Raises:
            Refused: If it is not a finite real number, or too large.
        """
        exact = _rational(value)
        if exact is None and isinstance(value, float) and value == -math.inf:
            return Nowhere(self)
        if exact is None:
            self.refuse(f"The constant {value}", "It is not a finite real number")
        if abs(exact) > LARGEST or _bits(exact) > MAX_BITS:
            self.refuse("A constant beyond float64", "No network can hold it")
        return self._line(Node("const", value=exact))

    def term(self, value: Any) -> Term:
        """A term of this recorder as it is; a number as a constant.

        Raises:
            Refused: If the term was written by another recorder.
        """
        if not isinstance(value, Term):
            return self.constant(value)
        if value.recorder is not self:
            msg = (
                "The function uses a value that an earlier call left behind. It must "
                "depend on x alone to be an expression. Keep nothing between two calls."
            )
            self._refuse(msg)
        return value

    def operation(self, op: str, *terms: Term) -> Term:
        """Write op(*terms), or find a line that says the same."""
        if any(type(term) is Nowhere for term in terms):
            return self._masked(op, terms)
        known = self._shortcut(op, terms)
        if known is not None:
            return known.as_number()
        if len(terms) == 2:
            first, last = terms[0].number, terms[1].number
            if first > last and op in COMMUTATIVE:
                first, last = last, first
            return self._line(Node(op, (first, last)))
        return self._line(Node(op, tuple([term.number for term in terms])))

    def _masked(self, op: str, terms: tuple[Term, ...]) -> Term:
        """An operation on -inf.

        Raises:
            Refused: If it is not one of those that masks need.
        """
        absent = [type(term) is Nowhere for term in terms]
        others = [term for term in terms if type(term) is not Nowhere]
        sizes = [self.nodes[term.number].value for term in others]
        scaled = op == "mul" or (op == "div" and absent[0])
        if op == "exp":
            return self.constant(0)
        if op == "max":
            return others[0].as_number() if others else terms[0]
        if (
            op in {"add", "min"}
            or (op == "sub" and absent == [True, False])
            or (scaled and sizes and sizes[0] is not None and sizes[0] > 0)
        ):
            self._dropped.update(term.number for term in others)
            return terms[absent.index(True)]
        return self.refuse("The constant -inf", NO_INFINITY)

    def fits(self, term: Term) -> bool:
        """Whether a number is one of int64 for sure: made of truth values and integers."""
        sizes = self._sizes
        for node in self.nodes[len(sizes) : term.number + 1]:
            sizes.append(_largest(node, [sizes[k] for k in node.operands]))
        return sizes[term.number] < 2**63

    def power(self, base: Term, exponent: Term) -> Term:
        """Base ** exponent, where it can be said with the operations of expressions.

        Raises:
            Refused: If neither 2 * exponent is an integer nor base a constant > 0,
                or the exponent is too large.
        """
        k = exponent.value
        if k is not None and k.denominator == 2:
            return self.power(base.sqrt(), self.constant(2 * k))
        if k is None or k.denominator != 1:
            if base.value is not None and base.value > 0:
                return (exponent * base.log()).exp()
            shown = "y" if k is None else f"{float(k):g}"
            why = "It is defined for x > 0 only; there it is np.exp(y * np.log(x))"
            self.refuse(f"The power x ** {shown}", why)
        if abs(k) > MAX_POWER:
            why = f"Exponents go up to {MAX_POWER}; larger powers are products of these"
            self.refuse(f"The power x ** {k}", why)
        if k == 0:
            return self.constant(1)
        if k == 1:
            return base.as_number()
        if base.value is not None and (base.value != 0 or k > 0):
            known = self._known(pow, abs(k.numerator), base.value, k)
            if known is not None:
                return known
        return self._line(Node("pow", (base.number, int(k))))

    def where(self, c: Term, a: Term, b: Term) -> Term:
        """A if c > 0, else b.

        A condition that is itself a choice of 1 and 0 gives way to its own condition;
        where(u - v, u, v) is max(u, v), where(u - v, v, u) is min(u, v), and
        where(u, u, -u) is |u|.
        """
        if c.value is not None or a.number == b.number:
            chosen = a if c.value is None or c.value > 0 else b
            return chosen.as_number()
        node = self.nodes[c.number]
        if node.op == "where":
            values = [self.nodes[k].value for k in node.args[1:]]
            inner = Term(self, node.args[0])
            if values == [1, 0]:
                return self.where(inner, a, b)
            if values == [0, 1]:
                return self.where(inner, b, a)
        zero = self.constant(0).number
        pairs = {(c.number, zero)}
        if node.op in {"sub", "neg"}:
            pairs.add(node.args if node.op == "sub" else (zero, node.args[0]))  # pyright: ignore[reportArgumentType]
        if (a.number, b.number) in pairs:
            return self.operation("max", a, b)
        if (b.number, a.number) in pairs:
            return self.operation("min", a, b)
        if self._are_opposite(a, b) and c.number in {a.number, b.number}:
            size = self.operation("abs", c)
            return size if c.number == a.number else self.operation("neg", size)
        return self._line(Node("where", (c.number, a.number, b.number)))

    def _are_opposite(self, a: Term, b: Term) -> bool:
        pairs = ((a.number, b.number), (b.number, a.number))
        return any(self.nodes[j] == Node("neg", (k,)) for j, k in pairs)

    def expression(
        self, seq_len: int, d_model: int, outputs: list[list[Term]], first: int = 0
    ) -> Expression:
        """The program that computes `outputs`, with only the lines that it needs.

        Args:
            seq_len: n.
            d_model: d.
            outputs: f's entries, a row for each token.
            first: The token of the recorder with which the sequence begins.

        Raises:
            ExpressionError: If a line uses a token of another sequence.
        """
        return Expression(seq_len, d_model, *self.lines(seq_len, outputs, first))

    def lines(self, seq_len: int, outputs: list[list[Term]], first: int = 0) -> Program:
        """The lines that `outputs` need, numbered anew, and the outputs in them.

        Raises:
            ExpressionError: If a line uses a token of another sequence.
        """
        rows = [[self.term(entry).number for entry in row] for row in outputs]
        needed = self._needed(rows)
        new: list[int] = []
        nodes: list[Node] = []
        mixed = False
        for node, wanted in zip(self.nodes, needed, strict=True):
            new.append(len(nodes))
            if wanted:
                nodes.append(_renumbered(node, new, first))
                mixed = mixed or (
                    node.op == "x" and not 0 <= node.args[0] - first < seq_len
                )
        if mixed:
            msg = (
                "The function mixes the sequences of a batch. The result for a sequence "
                "must depend on this sequence alone: index and reduce the last two axes "
                "only, or declare lipschitz= or modulus=."
            )
            raise ExpressionError(msg)
        kept = tuple(tuple(new[k] for k in row) for row in rows)
        places = compress(self.places, needed)
        return Program(tuple(nodes), kept, tuple(places))

    def _needed(self, rows: list[list[int]], *, always: bool = False) -> bytearray:
        """For every line whether these lines need it.

        Args:
            rows: The lines.
            always: For all x: not only in a branch of a choice.
        """
        needed = bytearray(len(self.nodes))
        for row in rows:
            for k in row:
                needed[k] = 1
        for number in range(len(self.nodes) - 1, -1, -1):
            if needed[number]:
                node = self.nodes[number]
                chooses = always and node.op == "where"
                for k in node.operands[:1] if chooses else node.operands:
                    needed[k] = 1
        return needed

    def require(self, terms: Iterable[Term]) -> None:
        """Remember numbers that have to be defined, whether the outputs use them or not."""
        self._dropped.update(term.number for term in terms)

    def check_dropped(self, outputs: list[list[Term]]) -> None:
        """See that what -inf has swallowed is defined wherever the outputs are.

        So is what is required: see `require`.

        Args:
            outputs: The entries of all sequences of the batch.

        Raises:
            ExpressionError: If it is not plain to see.
        """
        if not self._dropped:
            return
        rows = [[self.term(entry).number for entry in row] for row in outputs]
        needed = self._needed(rows, always=True)
        partial = self._partial_line(self._dropped, needed)
        if partial is not None:
            msg = (
                "The function adds -inf to a number, or takes an average, with "
                f"{self.nodes[partial].op} in it that nothing else uses, so that it may be "
                "undefined unseen. Use -1e9 in place of -np.inf, and all of an average."
            )
            raise ExpressionError(msg)

    def _partial_line(self, lines: set[int], known: bytearray | None = None) -> int | None:
        """A line, of these or below them, that is not defined for all numbers.

        Args:
            lines: Where to begin.
            known: Lines that count as defined, with all below them.
        """
        waiting, seen = list(lines), set(lines)
        while waiting:
            number = waiting.pop()
            if known is not None and known[number]:
                continue
            node = self.nodes[number]
            if is_partial(self.nodes, node):
                return number
            fresh = [k for k in node.operands if k not in seen]
            seen.update(fresh)
            waiting += fresh
        return None

    def _shortcut(self, op: str, terms: tuple[Term, ...]) -> Term | None:
        nodes = self.nodes
        values = [nodes[term.number].value for term in terms]
        constants = [value for value in values if value is not None]
        if not constants and op in _NEVER_KNOWN:
            return None
        if op in _EXACT and len(constants) == len(terms):
            undefined = op == "div" and values[1] == 0
            return None if undefined else self._known(_EXACT[op], 1, *constants)
        first, last = terms[0], terms[-1]
        if op == "neg":
            node = self.nodes[first.number]
            return Term(self, node.args[0]) if node.op == "neg" else None
        neutral = 0 if op in {"add", "sub"} else 1 if op in {"mul", "div"} else None
        if neutral is not None and values[-1] == neutral:
            return first
        if op in {"add", "mul"} and values[0] == neutral:
            return last
        if op in {"min", "max"} and first.number == last.number:
            return first
        if op == "mul":
            (base, j), (other, k) = self._as_power(first), self._as_power(last)
            if base == other and j + k <= MAX_POWER:
                return self._line(Node("pow", (base, j + k)))
        if op == "mul" or (op in {"add", "sub"} and constants):
            for place in (0, 1):
                if self._choices(terms[place]):
                    return self._chosen(op, terms, place)
        return None

    def _choices(self, term: Term, most: int = MOST_CHOICES) -> int:
        """Among how many numbers a line chooses; 0 for any other line."""
        node = self.nodes[term.number]
        if node.op != "where":
            return 0
        count = 0
        for end in (Term(self, k) for k in node.args[1:]):
            own = 1 if end.value is not None else self._choices(end, most - count)
            count += own
            if not own or count > most:
                return 0
        return count

    def _chosen(self, op: str, terms: tuple[Term, ...], place: int) -> Term | None:
        """An operation with a choice of numbers, branch by branch.

        0 times y is 0 if y is defined for all numbers. None where no choice would be left
        and its condition, which may be undefined, would be lost: 0 * np.sign(np.log(x)).
        """
        choice, other = terms[place], terms[1 - place]
        c, *ends = (Term(self, k) for k in self.nodes[choice.number].args)
        drop = op == "mul" and self._partial_line({other.number}) is None
        branches = [
            end
            if drop and end.value == 0
            else self.operation(op, *((end, other) if place == 0 else (other, end)))
            for end in ends
        ]
        alike = branches[0].number == branches[1].number
        if alike and self._partial_line({c.number}) is not None:
            return None
        return self.where(c, *branches)

    def _as_power(self, term: Term) -> tuple[int, int]:
        node = self.nodes[term.number]
        if node.op == "pow" and node.args[1] > 0:
            return node.args[0], node.args[1]
        return term.number, 1

    def _known(
        self, compute: Callable[..., Any], growth: int, *values: Fraction
    ) -> Term | None:
        """The constant, unless it is too long to be worth it or beyond float64."""
        if growth * max(_bits(value) for value in values) > MAX_BITS:
            return None
        result = Fraction(compute(*values))
        fits = _bits(result) <= MAX_BITS and abs(result) <= LARGEST
        return self.constant(result) if fits else None

    def _line(self, node: Node) -> Term:
        number = self._numbers.get(node)
        if number is None:
            number = len(self.nodes)
            if not self._open or threading.get_ident() != self._thread:
                why = "Lines are written in order, while f(x) is computed, by its thread"
                self.refuse("An operation on x in another thread or after the call", why)
            if number >= self._batch * MAX_NODES:
                msg = (
                    f"The function takes more than {MAX_NODES} operations on numbers. That "
                    "is too long for an expression. Take fewer tokens or a simpler "
                    "function, or declare lipschitz= or modulus=."
                )
                self._refuse(msg)
            self._numbers[node] = number
            self.nodes.append(node)
            self.places.append(self._place)
        return Term(self, number)


def _largest(node: Node, sizes: list[float | Fraction]) -> float | Fraction:
    """A bound of |an integer|, by those of its operands; infinity where none is known."""
    match node.op:
        case "const":
            value = abs(node.value or Fraction(0))
            return value if value.denominator == 1 else math.inf
        case "neg" | "abs":
            return sizes[0]
        case "add" | "sub":
            found = sizes[0] + sizes[1]
        case "mul":
            found = math.inf if math.inf in sizes else sizes[0] * sizes[1]
        case "pow" if node.args[1] > 0:
            found = sizes[0] ** node.args[1]
        case "max" | "min":
            return max(sizes)
        case "where":
            return max(sizes[1:])
        case _:
            return math.inf
    return found if found < 2**64 else math.inf


def _rational(value: Any) -> Fraction | None:
    if isinstance(value, Fraction):
        return value
    if isinstance(value, (Integral, np.bool_)):
        return Fraction(int(value))
    if isinstance(value, (float, np.floating)) and math.isfinite(value):
        return Fraction(*value.as_integer_ratio())
    return None


def _bits(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def _renumbered(node: Node, new: Sequence[int], first: int) -> Node:
    if node.op == "x" and first:
        return Node("x", (node.args[0] - first, node.args[1]))
    operands = node.operands
    moved = tuple([new[k] for k in operands])
    if moved == operands:
        return node
    return Node(node.op, moved + node.args[len(moved) :], node.value)
