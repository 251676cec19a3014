"""A function as data: a straight-line program over the entries of a sequence.

    x[j][i], rational constants, + - * /, integer powers, min, max,
    neg, abs, sin, cos, exp, log, sqrt, tanh, xlogx: t log t, and 0 at t = 0
    where(c, a, b): a where c > 0, b where c <= 0

The branch that is not taken need not be defined. One program serves float64, intervals and
balls: whatever knows these operations can run it. A program read from a file is checked
against this list; nothing in it is executed.
"""

import hashlib
import json
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any, NamedTuple, TypeVar

import numpy as np

from everyformer.errors import ExpressionError
from everyformer.numerics.limits import shown
from everyformer.numerics.rationals import parse_rational

UNARY = frozenset({"neg", "abs", "sin", "cos", "exp", "log", "sqrt", "tanh", "xlogx"})
BINARY = frozenset({"add", "sub", "mul", "div", "min", "max"})
TERNARY = frozenset({"where"})
OPERATIONS = {op: op for op in ("x", "pow", *UNARY, *BINARY, *TERNARY)}
"""One text for each: a parser of JSON makes one for each line."""

MAX_POWER = 64
"""Integer powers up to this size, positive or negative."""

LARGEST = Fraction(float(np.finfo(np.float64).max))
"""Constants up to this size, positive or negative."""


Number = TypeVar("Number")


class Node(NamedTuple):
    """One line of a program. A tuple: programs have millions of them.

    Attributes:
        op: "x", "const", "pow", or an operation of `UNARY`, `BINARY` or `TERNARY`.
        args: Numbers of earlier lines; (j, i), token and coordinate, for "x"; a line and
            the exponent for "pow".
        value: The number, for "const".
    """

    op: str
    args: tuple[int, ...] = ()
    value: Fraction | None = None

    @property
    def operands(self) -> tuple[int, ...]:
        """The earlier lines it uses."""
        op = self.op
        if op == "pow":
            return self.args[:1]
        return () if op == "x" or op == "const" else self.args


@dataclass(frozen=True)
class Expression:
    """f, as the lines of a program and the lines that are its outputs.

    Attributes:
        seq_len: n, the number of tokens.
        d_model: d, the width of a token.
        nodes: The lines; each uses only earlier ones.
        outputs: For each token, for each coordinate, the line that is f's entry.
        places: For each line the file and the number of the line of the user's program
            that wrote it, for people; empty where that is not known. Not saved.

    Example:
        >>> square = Expression(1, 1, (Node("x", (0, 0)), Node("mul", (0, 0))), ((1,),))
        >>> square(np.array([[3.0]])).tolist()
        [[9.0]]
        >>> square.to_json()["nodes"]
        [['x', 0, 0], ['mul', 0, 0]]
    """

    seq_len: int
    d_model: int
    nodes: tuple[Node, ...]
    outputs: tuple[tuple[int, ...], ...]
    places: tuple[tuple[str, int] | None, ...] = field(
        default=(), compare=False, repr=False
    )

    def __post_init__(self) -> None:
        """Check every line against the list of operations.

        Raises:
            ExpressionError: Naming the first line that is not one of them.
        """
        for size in (self.seq_len, self.d_model):
            if type(size) is not int or size < 1:
                msg = f"The size {size!r} is not an integer >= 1. Trace the function again."
                raise ExpressionError(msg)
        for number, node in enumerate(self.nodes):
            if _is_plain(number, node):
                continue
            wrong = self._wrong(number, node)
            if wrong:
                line = f"{number} of the expression, {shown(node.op)}"
                msg = (
                    f"Line {line} {shown(list(node.args))}, {wrong}. "
                    "Trace the function again."
                )
                raise ExpressionError(msg)
        if len(self.outputs) != self.seq_len or not all(
            len(row) == self.d_model and all(_is_line(k, len(self.nodes)) for k in row)
            for row in self.outputs
        ):
            msg = (
                f"The outputs {shown(self.outputs)} are not {self.seq_len} rows of "
                f"{self.d_model} lines of the expression. Trace the function again."
            )
            raise ExpressionError(msg)

    def _wrong(self, number: int, node: Node) -> str | None:
        if node.op == "x":
            sizes = (self.seq_len, self.d_model)
            inside = len(node.args) == 2 and all(
                _is_line(k, size) for k, size in zip(node.args, sizes, strict=True)
            )
            return None if inside else "is not an entry of the sequence"
        if node.op == "const":
            value = None if node.args else node.value
            if isinstance(value, Fraction) and abs(value) <= LARGEST:
                return None
            return "has no rational value within the range of float64"
        arity = 1 if node.op in UNARY else 2 if node.op in BINARY | {"pow"} else 0
        arity = 3 if node.op in TERNARY else arity
        if arity == 0:
            return "is not an operation that expressions may use"
        if len(node.args) != arity:
            return f"does not have {arity} arguments"
        if not all(_is_line(k, number) for k in node.operands):
            return "uses a line that is not earlier"
        if node.op == "pow" and not (
            type(node.args[1]) is int and abs(node.args[1]) <= MAX_POWER
        ):
            return f"is not an integer power of size up to {MAX_POWER}"
        return None

    def run(
        self, arithmetic: Any, entry: Callable[[int, int], Number]
    ) -> list[list[Number]]:
        """Run the program in any arithmetic.

        Args:
            arithmetic: Has a method for every operation, named like it, `constant(q)`, and
                `pow(a, k)`.
            entry: entry(j, i) gives x[j][i] as a number of that arithmetic.

        Returns:
            f's entries, a row for each token.
        """
        values: list[Any] = [None] * len(self.nodes)
        methods: dict[str, Callable[..., Any]] = {}
        last = self.last_reader
        for number, (op, args, value) in enumerate(self.nodes):
            if op == "x":
                values[number] = entry(*args)
                continue
            if op == "const":
                values[number] = arithmetic.constant(value)
                continue
            method = methods.get(op)
            if method is None:
                method = methods[op] = getattr(arithmetic, op)
            if op == "pow":
                args, k = args[:1], args[1]
                values[number] = method(values[args[0]], k)
            elif len(args) == 2:
                values[number] = method(values[args[0]], values[args[1]])
            else:
                values[number] = method(*[values[k] for k in args])
            for k in args:
                if last[k] == number:
                    values[k] = None
        return [[values[k] for k in row] for row in self.outputs]

    @cached_property
    def last_reader(self) -> Sequence[int]:
        """The last line that needs each: -1 for none, the number of lines for outputs."""
        last = array("q", [-1]) * len(self.nodes)
        for number, node in enumerate(self.nodes):
            for k in node.operands:
                last[k] = number
        for row in self.outputs:
            for k in row:
                last[k] = len(self.nodes)
        return last

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """f in float64; x has shape (*batch, n, d)."""
        with np.errstate(all="ignore"):
            rows = self.run(Float64(), lambda j, i: x[..., j, i])
        batch = x.shape[:-2]
        return np.stack(
            [np.stack([np.broadcast_to(v, batch) for v in row], axis=-1) for row in rows],
            axis=-2,
        )

    def to_json(self) -> dict[str, Any]:
        """A JSON object: a list for each line, constants as strings of rationals."""
        return {
            "seq_len": self.seq_len,
            "d_model": self.d_model,
            "nodes": [
                [node.op, str(node.value)] if node.op == "const" else [node.op, *node.args]
                for node in self.nodes
            ],
            "outputs": [list(row) for row in self.outputs],
        }

    @classmethod
    def from_json(cls, values: Any) -> "Expression":
        """The inverse of `to_json`, for text that nobody vouches for.

        Raises:
            ExpressionError: If it is not an expression.
        """
        try:
            nodes = tuple(_node(*line) for line in values["nodes"])
            outputs = tuple(tuple(row) for row in values["outputs"])
            return cls(values["seq_len"], values["d_model"], nodes, outputs)
        except ExpressionError:
            raise
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            msg = f"This is not an expression ({error!r}). Trace the function again."
            raise ExpressionError(msg) from error

    @cached_property
    def sha256(self) -> str:
        """A hash of the program."""
        text = json.dumps(self.to_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


_PLAIN = {**dict.fromkeys(UNARY, 1), **dict.fromkeys(BINARY, 2)}


def _is_plain(number: int, node: Node) -> bool:
    """Whether a line is an operation with one or two operands, and nothing is wrong."""
    op, args, _ = node
    if type(op) is not str or type(args) is not tuple or _PLAIN.get(op) != len(args):
        return False
    return all(type(k) is int and 0 <= k < number for k in args)


def _is_line(k: Any, count: int) -> bool:
    return type(k) is int and 0 <= k < count


def _node(op: Any, *args: Any) -> Node:
    if op == "const":
        (text,) = args
        try:
            return Node("const", value=parse_rational(text))
        except ValueError as error:
            msg = f"A constant cannot be read: {error}. Trace the function again."
            raise ExpressionError(msg) from error
    return Node(OPERATIONS.get(op) or str(op), args)


class Float64:
    """The operations in float64, entry by entry."""

    neg = staticmethod(np.negative)
    abs = staticmethod(np.abs)
    sin = staticmethod(np.sin)
    cos = staticmethod(np.cos)
    exp = staticmethod(np.exp)
    log = staticmethod(np.log)
    sqrt = staticmethod(np.sqrt)
    tanh = staticmethod(np.tanh)
    add = staticmethod(np.add)
    sub = staticmethod(np.subtract)
    mul = staticmethod(np.multiply)
    div = staticmethod(np.divide)
    min = staticmethod(np.minimum)
    max = staticmethod(np.maximum)

    @staticmethod
    def constant(value: Fraction) -> Any:
        """The nearest number."""
        return np.float64(float(value))

    @staticmethod
    def xlogx(a: Any) -> Any:
        """a log a, and 0 at 0."""
        return np.where(a == 0, 0.0, a * np.log(a))

    @staticmethod
    def where(c: Any, a: Any, b: Any) -> Any:
        """a where c > 0, else b."""
        return np.where(np.isnan(c), np.nan, np.where(c > 0, a, b))

    @staticmethod
    def pow(base: Any, exponent: int) -> Any:
        """base to a whole power."""
        return np.power(base, float(exponent))
