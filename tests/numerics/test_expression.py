"""Expressions compute what their lines say, and nothing else can be read from a file."""

import copy
import json
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everyformer.errors import ExpressionError
from everyformer.numerics.expression import BINARY, MAX_POWER, UNARY, Expression, Node

X0, X1 = Node("x", (0, 0)), Node("x", (1, 0))
THIRD = Node("const", value=Fraction(1, 3))


def xlogx(t: np.ndarray) -> np.ndarray:
    return np.where(t == 0, 0.0, t * np.log(t))


NUMPY: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "min": np.minimum,
    "max": np.maximum,
    "neg": np.negative,
    "abs": np.abs,
    "sin": np.sin,
    "cos": np.cos,
    "exp": np.exp,
    "log": np.log,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
    "xlogx": xlogx,
}


def program(*nodes: Node) -> Expression:
    """Two tokens of one coordinate; the last line is both outputs."""
    last = len(nodes) - 1
    return Expression(2, 1, nodes, ((last,), (last,)))


Lines = list[tuple[str, tuple[int, ...]]]


@st.composite
def programs(draw: st.DrawFn) -> tuple[Fraction, Lines, int, int]:
    """A constant, some lines, and the outputs; see `built`."""
    constant = draw(st.fractions(-10, 10))
    lines: Lines = []
    for count in range(3, draw(st.integers(3, 15))):
        line = st.integers(0, count - 1)
        op = draw(st.sampled_from(sorted(UNARY | BINARY | {"pow"})))
        second = [] if op in UNARY else [draw(line)]
        if op == "pow":
            second = [draw(st.integers(-MAX_POWER, MAX_POWER))]
        lines.append((op, (draw(line), *second)))
    output = st.integers(0, len(lines) + 2)
    return constant, lines, draw(output), draw(output)


def built(program: tuple[Fraction, Lines, int, int]) -> Expression:
    constant, lines, a, b = program
    nodes = (X0, X1, Node("const", value=constant), *(Node(*line) for line in lines))
    return Expression(2, 1, nodes, ((a,), (b,)))


def test_every_operation_is_listed() -> None:
    assert set(NUMPY) == UNARY | BINARY


@pytest.mark.parametrize("op", sorted(UNARY | BINARY))
def test_each_operation(op: str) -> None:
    x = np.random.default_rng(0).uniform(0.1, 3, (5, 4, 2, 1))
    args = (1,) if op in UNARY else (1, 0)
    values = program(X0, X1, Node(op, args))(x)
    wanted = NUMPY[op](*(x[..., k, 0] for k in args))
    assert values.shape == x.shape
    assert np.array_equal(values[..., 0, 0], wanted)
    assert np.array_equal(values[..., 1, 0], wanted)


@pytest.mark.parametrize("k", [-MAX_POWER, -1, 0, 1, 2, 7, MAX_POWER])
def test_powers(k: int) -> None:
    x = np.array([[[-1.5], [2.0]], [[0.5], [3.0]]])
    values = program(X0, X1, Node("pow", (0, k)))(x)
    assert values[:, 0, 0] == pytest.approx([(-1.5) ** k, 0.5**k])


def test_constants_serve_a_whole_batch() -> None:
    assert program(THIRD)(np.zeros((7, 2, 1))).tolist() == [[[1 / 3], [1 / 3]]] * 7
    assert program(THIRD)(np.zeros((2, 1))).tolist() == [[1 / 3], [1 / 3]]


def test_entries_and_outputs_keep_their_places() -> None:
    nodes = tuple(Node("x", (j, i)) for j in range(3) for i in range(2))
    swapped = Expression(3, 2, nodes, ((1, 0), (3, 2), (5, 4)))
    x = np.random.default_rng(1).random((4, 3, 2))
    assert np.array_equal(swapped(x), x[..., ::-1])


class Exact:
    """A few operations in rationals."""

    def constant(self, value: Fraction) -> Fraction:
        return value

    def add(self, a: Fraction, b: Fraction) -> Fraction:
        return a + b

    def pow(self, a: Fraction, k: int) -> Fraction:
        return a**k


def test_other_arithmetics() -> None:
    nodes = (X0, THIRD, Node("add", (0, 1)), Node("pow", (2, -2)), Node("add", (3, 0)))
    rows = program(*nodes).run(Exact(), lambda j, i: Fraction(1, 6))
    assert rows == [[4 + Fraction(1, 6)]] * 2


@given(programs())
def test_json_round_trip(program: tuple[Fraction, Lines, int, int]) -> None:
    expression = built(program)
    text = json.dumps(expression.to_json())
    again = Expression.from_json(json.loads(text))
    assert again == expression
    assert again.sha256 == expression.sha256


@given(programs())
def test_no_line_is_forgotten_too_soon(program: tuple[Fraction, Lines, int, int]) -> None:
    expression = built(program)
    x = np.random.default_rng(2).uniform(0.5, 2, (3, 2, 1))
    with np.errstate(all="ignore"):
        lines: list[Any] = []
        for node in expression.nodes:
            if node.op == "x":
                lines.append(x[..., *node.args])
            elif node.value is not None:
                lines.append(np.full(3, float(node.value)))
            elif node.op == "pow":
                lines.append(np.power(lines[node.args[0]], float(node.args[1])))
            else:
                lines.append(NUMPY[node.op](*(lines[k] for k in node.args)))
    wanted = np.stack([lines[row[0]] for row in expression.outputs], axis=-1)
    assert np.array_equal(expression(x)[..., 0], wanted, equal_nan=True)


def test_the_hash_sees_every_part() -> None:
    one = program(X0, X1, Node("sub", (0, 1)))
    others = [
        program(X0, X1, Node("sub", (1, 0))),
        program(X0, X1, Node("add", (0, 1))),
        program(X0, X1, THIRD),
        Expression(2, 1, one.nodes, ((2,), (1,))),
    ]
    assert len({e.sha256 for e in (one, *others)}) == 5


GOOD = program(X0, X1, THIRD, Node("mul", (0, 2)), Node("pow", (3, 2))).to_json()


def tampered(*path: Any, value: Any) -> Any:
    values: Any = copy.deepcopy(GOOD)
    place = values
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return values


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (tampered("nodes", 3, 0, value="__import__"), "is not an operation"),
        (tampered("nodes", 3, 0, value="run"), "is not an operation"),
        (tampered("nodes", 3, 0, value=["mul"]), "This is not an expression"),
        (tampered("nodes", 3, value=["mul", 0, 3]), "uses a line that is not earlier"),
        (tampered("nodes", 3, value=["mul", 0, 4]), "uses a line that is not earlier"),
        (tampered("nodes", 3, value=["mul", 0, -1]), "uses a line that is not earlier"),
        (tampered("nodes", 3, value=["mul", 0, True]), "uses a line that is not earlier"),
        (tampered("nodes", 3, value=["mul", 0, 1.0]), "uses a line that is not earlier"),
        (tampered("nodes", 3, value=["mul", 0, [1]]), "uses a line that is not earlier"),
        (tampered("nodes", 3, value=["mul", 0]), "does not have 2 arguments"),
        (tampered("nodes", 3, value=["sin", 0, 1]), "does not have 1 arguments"),
        (tampered("nodes", 4, 2, value=65), "not an integer power of size up to 64"),
        (tampered("nodes", 4, 2, value=-65), "not an integer power of size up to 64"),
        (tampered("nodes", 4, 2, value=2.0), "not an integer power of size up to 64"),
        (tampered("nodes", 4, 2, value=True), "not an integer power of size up to 64"),
        (tampered("nodes", 0, value=["x", 2, 0]), "is not an entry of the sequence"),
        (tampered("nodes", 0, value=["x", 0, 1]), "is not an entry of the sequence"),
        (tampered("nodes", 0, value=["x", 0]), "is not an entry of the sequence"),
        (tampered("nodes", 0, value=["x", False, 0]), "is not an entry of the sequence"),
        (tampered("nodes", 2, 1, value=0.5), "is not the text of a rational"),
        (tampered("nodes", 2, 1, value="nan"), "is not the text of a rational"),
        (tampered("nodes", 2, 1, value="1e999999999"), "is not the text of a rational"),
        (tampered("nodes", 2, 1, value="1/0"), "This is not an expression"),
        (tampered("nodes", 2, 1, value="9" * 5000), "A constant cannot be read"),
        (tampered("nodes", 2, 1, value="9" * 400), "within the range of float64"),
        (tampered("nodes", 2, value=["const"]), "This is not an expression"),
        (tampered("nodes", 2, value=["const", "1", "2"]), "This is not an expression"),
        (tampered("nodes", 2, value=[]), "This is not an expression"),
        (tampered("nodes", value=7), "This is not an expression"),
        (tampered("nodes", value=[]), "are not 2 rows of 1 lines"),
        (tampered("outputs", 1, 0, value=5), "are not 2 rows of 1 lines"),
        (tampered("outputs", 1, 0, value=-1), "are not 2 rows of 1 lines"),
        (tampered("outputs", 1, 0, value=True), "are not 2 rows of 1 lines"),
        (tampered("outputs", 1, 0, value=4.0), "are not 2 rows of 1 lines"),
        (tampered("outputs", 1, value=[4, 4]), "are not 2 rows of 1 lines"),
        (tampered("outputs", value=[[4]]), "are not 2 rows of 1 lines"),
        (tampered("seq_len", value=10**15), "are not 1000000000000000 rows"),
        (tampered("seq_len", value=2.0), "is not an integer >= 1"),
        (tampered("d_model", value=True), "is not an integer >= 1"),
        (tampered("d_model", value=1.0), "is not an integer >= 1"),
        (tampered("seq_len", value=0), "is not an integer >= 1"),
        ({}, "This is not an expression"),
        ([], "This is not an expression"),
        (None, "This is not an expression"),
    ],
)
@pytest.mark.unhooked
def test_tampered_files_are_refused(values: Any, message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        Expression.from_json(values)


def test_the_untouched_file_is_read() -> None:
    assert Expression.from_json(GOOD).to_json() == GOOD


def test_large_powers_stay_quiet() -> None:
    values = program(X0, X1, Node("pow", (0, 64)))(np.full((2, 1), 1e300))
    assert math.isinf(values[0, 0])
