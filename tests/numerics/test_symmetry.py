"""Equivariance is proved where it holds, and never where it does not."""

import itertools
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everyformer.numerics import symmetry
from everyformer.numerics.expression import BINARY, UNARY, Expression, Node
from everyformer.numerics.symmetry import is_equivariant
from everyformer.targets import GALLERY
from everyformer.targets.trace import trace

X0, X1 = Node("x", (0, 0)), Node("x", (1, 0))


def const(value: int | Fraction) -> Node:
    return Node("const", value=Fraction(value))


def pair(nodes: list[Node], a: int, b: int) -> Expression:
    """Two tokens; lines a and b are the outputs."""
    return Expression(2, 1, tuple(nodes), ((a,), (b,)))


@pytest.mark.parametrize(
    "name", [name for name in GALLERY if GALLERY[name](2, 1).equivariant]
)
@pytest.mark.parametrize(("n", "d"), [(1, 1), (2, 1), (3, 2), (4, 1), (7, 2)])
def test_equivariant_targets_are_proved(name: str, n: int, d: int) -> None:
    target = GALLERY[name](n, d)
    assert target.expression is not None
    assert is_equivariant(target.expression)


@pytest.mark.parametrize("name", ["sort", "reverse", "first_token", "prefix_mean", "shift"])
@pytest.mark.parametrize(("n", "d"), [(2, 1), (3, 1), (3, 2), (4, 1)])
def test_other_targets_are_not(name: str, n: int, d: int) -> None:
    expression = GALLERY[name](n, d).expression
    assert expression is not None
    swap = n == 2 and name in {"reverse", "shift"}  # the swap commutes with itself
    assert is_equivariant(expression) is swap


@pytest.mark.parametrize("name", GALLERY)
def test_one_token_has_nothing_to_permute(name: str) -> None:
    expression = GALLERY[name](1, 2).expression
    assert expression is not None
    assert is_equivariant(expression)


EQUIVARIANT: dict[str, Callable[[Any], Any]] = {
    "even functions": lambda x: x + sum(
        abs(x[:, [j]] - x[:, [k]]) * np.cos(x[:, [j]] - x[:, [k]]) ** 3
        for j, k in itertools.combinations(range(x.shape[1]), 2)
    ),
    "odd functions": lambda x: x + sum(
        np.tanh(x[:, [j]] - x[:, [k]]) * np.sin(3 * x[:, [k]] - 3 * x[:, [j]])
        for j, k in itertools.combinations(range(x.shape[1]), 2)
    ),
    "squares of differences": lambda x: x / (1 + x.var(-2, keepdims=True)),
    "powers and products": lambda x: x * x * x + x**3 + x**-2 + (x * x) ** -1,
    "scaled sums": lambda x: (2 * x + 2 * x.sum(-2, keepdims=True)) * 0.5,
    "identity matrix": lambda x: np.eye(x.shape[1]) @ x,
    "log-sum-exp": lambda x: x - np.log(np.exp(x).sum(-2, keepdims=True)),
    "geometric mean": lambda x: np.sqrt(np.prod(x, axis=-2, keepdims=True)) + 0 * x,
    "middle": lambda x: x - (x.max(-2, keepdims=True) + x.min(-2, keepdims=True)) / 2,
    "a constant": lambda x: np.full(x.shape, 0.25),
}  # fmt: skip

PLACES = np.arange(3)[:, None]
OTHER: dict[str, Callable[[Any], Any]] = {
    "unequal weights": lambda x: np.broadcast_to(x[:, :1] + 2 * x[:, 1:2], x.shape),
    "unequal weights, own token": lambda x: x + x[:, :1] + 2 * x[:, 1:2],
    "position": lambda x: x + PLACES,
    "position in a factor": lambda x: x * (1 + 2.0**-52 * PLACES),
    "position in a power": lambda x: x ** (1 + PLACES),
    "position in an exponent": lambda x: np.exp(x * PLACES),
    "signed differences": lambda x: x + x[:, :1] - x[:, 1:2],
    "odd power of a difference": lambda x: x + (x[:, :1] - x[:, 1:2]) ** 3,
    "odd function of a difference": lambda x: x + np.tanh(x[:, :1] - x[:, 1:2]),
    "quotient": lambda x: x + x[:, :1] / (1 + x[:, 1:2]),
    "smallest first": lambda x: np.sort(x, axis=-2),
    "the last one smaller": lambda x: np.minimum(x, x[:, -1:]),
    "neighbours": lambda x: x + np.roll(x, 1, axis=-2),
    "causal": lambda x: np.tril(np.ones((x.shape[1], x.shape[1]))) @ x,
}


@pytest.mark.parametrize("name", EQUIVARIANT)
@pytest.mark.parametrize("n", [2, 3])
def test_more_that_is_equivariant(name: str, n: int) -> None:
    assert is_equivariant(trace(EQUIVARIANT[name], n, 1, [1], [2]))


@pytest.mark.parametrize("name", OTHER)
def test_more_that_is_not(name: str) -> None:
    assert not is_equivariant(trace(OTHER[name], 3, 1, [1], [2]))


def test_coordinates_are_no_tokens() -> None:
    assert is_equivariant(trace(lambda x: x[..., ::-1], 3, 2, [0, 0], [1, 1]))
    assert is_equivariant(trace(lambda x: x * np.array([1, 2]), 3, 2, [0, 0], [1, 1]))


def test_both_generators_are_tried() -> None:
    def fixed_by_the_swap(x: np.ndarray) -> np.ndarray:
        return x + x[:, :2].sum(-2, keepdims=True)

    def fixed_by_the_cycle(x: np.ndarray) -> np.ndarray:
        return x + np.roll(x, 1, axis=-2) ** 2

    for function in (fixed_by_the_swap, fixed_by_the_cycle):
        assert not is_equivariant(trace(function, 4, 1, [0], [1]))


def test_undefined_parts_are_not_cancelled() -> None:
    zero = [X0, X1, const(0)]
    kept = [*zero, Node("log", (0,)), Node("sub", (3, 3)), Node("mul", (2, 3))]
    assert is_equivariant(pair([*zero, Node("sub", (0, 0))], 3, 2))
    assert not is_equivariant(pair(kept, 4, 2))  # 0 where log is defined, against 0
    assert not is_equivariant(pair(kept, 5, 2))
    inverse = [X0, X1, const(1), Node("div", (0, 0)), Node("pow", (0, -1))]
    assert not is_equivariant(pair(inverse, 3, 2))
    assert is_equivariant(pair([*inverse, Node("div", (2, 1))], 4, 5))


def test_powers_and_products_agree() -> None:
    nodes = [
        X0,
        X1,
        Node("mul", (0, 0)),
        Node("mul", (2, 0)),
        Node("pow", (1, 3)),
        const(Fraction(1, 3)),
        Node("mul", (5, 3)),
        const(3),
        Node("div", (4, 7)),
    ]
    assert is_equivariant(pair(nodes, 3, 4))
    assert is_equivariant(pair(nodes, 6, 8))
    assert not is_equivariant(pair(nodes, 3, 8))


def test_shared_parts_cost_once() -> None:
    nodes = [X0, X1, Node("add", (0, 1)), Node("mul", (0, 1))]
    for op in ("mul", "add", "max", "sin", "min", "sub") * 40:
        last = len(nodes) - 1
        nodes.append(Node(op, (last, last - 1) if op in BINARY else (last,)))
    last = len(nodes) - 1
    assert is_equivariant(pair(nodes, last, last))


@pytest.mark.parametrize("op", ["mul", "pow"])
def test_it_gives_up_on_endless_numbers(op: str) -> None:
    nodes = [X0, X1, const(Fraction(3, 7))]
    for _ in range(100):
        last = len(nodes) - 1
        nodes.append(Node(op, (last, last if op == "mul" else 64)))
    assert not is_equivariant(pair(nodes, len(nodes) - 1, len(nodes) - 1))


def test_it_gives_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    nodes, total = [X0, X1, Node("add", (0, 1))], 2
    for _ in range(100):
        nodes += [Node("sin", (len(nodes) - 1,)), Node("add", (total, len(nodes)))]
        total = len(nodes) - 1
    assert is_equivariant(pair(nodes, total, total))
    monkeypatch.setattr(symmetry, "MAX_WORK", 10_000)
    assert not is_equivariant(pair(nodes, total, total))


def test_long_sums_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    expression = GALLERY["centring"](6, 1).expression
    assert expression is not None
    monkeypatch.setattr(symmetry, "MAX_TERMS", 3)
    assert not is_equivariant(expression)  # not proved, but no wrong proof either
    total = GALLERY["first_token"](6, 1).expression
    assert total is not None
    assert not is_equivariant(total)


Lines = list[tuple[str, tuple[int, ...]]]


@st.composite
def programs(draw: st.DrawFn) -> tuple[Fraction, Lines]:
    """A constant and lines that begin with number 3; see `built`."""
    constant = draw(st.sampled_from([-1, 0, 1, 2, Fraction(1, 2)]))
    ops = [*sorted(BINARY), *sorted(BINARY), *sorted(UNARY), "pow"]
    lines: Lines = []
    for count in range(3, draw(st.integers(5, 13))):
        line = st.integers(0, count - 1)
        op = draw(st.sampled_from(ops))
        second = [] if op in UNARY else [draw(line)]
        if op == "pow":
            second = [draw(st.integers(-2, 3))]
        lines.append((op, (draw(line), *second)))
    return Fraction(constant), lines


def built(program: tuple[Fraction, Lines], first: int = 0, start: int = 0) -> list[Node]:
    """The lines as nodes, numbered from `start`; token `first` is read first."""
    constant, lines = program
    nodes = [Node("x", (first, 0)), Node("x", (1 - first, 0)), const(constant)]
    for op, args in lines:
        moved = [k + start for k in args]
        nodes.append(Node(op, (moved[0], args[1]) if op == "pow" else tuple(moved)))
    return nodes


@settings(max_examples=40, deadline=None)
@given(programs())
def test_what_is_proved_is_true(program: tuple[Fraction, Lines]) -> None:
    nodes = built(program)
    x = np.random.default_rng(0).uniform(0.2, 1.5, (20, 2, 1))
    lines = tuple(range(len(nodes)))
    every = Expression(2, len(nodes), tuple(nodes), (lines, lines))
    values, swapped = every(x)[:, 0], every(x[:, ::-1])[:, 0]
    tame = (np.abs(values) < 1e6).all(-1) & (np.abs(swapped) < 1e6).all(-1)  # not NaN
    for k in lines:
        if is_equivariant(pair(nodes, lines[-1], k)):
            assert swapped[tame, -1] == pytest.approx(values[tame, k], rel=1e-6, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(programs())
def test_a_symmetric_sum_is_proved(program: tuple[Fraction, Lines]) -> None:
    nodes = built(program)
    a, b = len(nodes) - 1, 2 * len(nodes) - 1  # g(x_0, x_1) and g(x_1, x_0)
    nodes += built(program, first=1, start=len(nodes))
    nodes += [Node("add", (a, b)), Node("add", (b, a))]
    assert is_equivariant(pair(nodes, b + 1, b + 2))
    assert is_equivariant(pair(nodes, a, b))
