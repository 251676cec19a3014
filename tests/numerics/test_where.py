"""where(c, a, b) is a where c > 0: enclosed on every box, whatever the box decides."""

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.numerics.rational_programs import (
    constant,
    enclosed,
    exactly,
    of_two,
    points,
)
from tests.numerics.suprema import suprema

from everyformer.errors import ExpressionError
from everyformer.numerics.cancellation import without_cancelling_maxima
from everyformer.numerics.curvature import enclose_curvature
from everyformer.numerics.enclosure import enclose_with_balls
from everyformer.numerics.expression import Expression, Node
from everyformer.numerics.symmetry import is_equivariant

QUARTERS = st.integers(-8, 8).map(lambda k: Fraction(k, 4))
OPERATIONS = ["where"] * 5 + ["add", "sub", "mul", "min", "max", "abs", "neg", "pow"]


Lines = list[tuple[Any, ...]]


@st.composite
def programs(draw: st.DrawFn) -> Lines:
    """Lines of a program after x, y: two constants, and operations."""
    lines: Lines = [("const", draw(QUARTERS)), ("const", draw(QUARTERS))]
    for _ in range(draw(st.integers(2, 9))):
        op = draw(st.sampled_from(OPERATIONS))
        count = {"where": 3, "abs": 1, "neg": 1, "pow": 1}.get(op, 2)
        args = [draw(st.integers(0, len(lines) + 1)) for _ in range(count)]
        lines.append((op, *args, 2) if op == "pow" else (op, *args))
    return lines


def built(lines: Lines) -> Expression:
    return of_two(
        *(
            constant(args[0]) if op == "const" else Node(op, tuple(args))
            for op, *args in lines
        )
    )


@st.composite
def boxes(draw: st.DrawFn) -> tuple[list[Fraction], list[Fraction]]:
    low = [draw(QUARTERS) for _ in range(2)]
    return low, [a + draw(st.integers(0, 6).map(lambda k: Fraction(k, 8))) for a in low]


@settings(max_examples=120, deadline=None)
@given(programs(), boxes(), st.booleans())
def test_values_and_slopes_are_enclosed(
    lines: Lines, box: tuple[list[Fraction], list[Fraction]], balls: bool
) -> None:
    expression = built(lines)
    found = enclosed(expression, *box, balls=balls)
    low, high = found.low[0, 0, 0], found.high[0, 0, 0]
    slopes = [
        (float(found.slope_low[0, 0, 0, j, 0]), float(found.slope_high[0, 0, 0, j, 0]))
        for j in range(2)
    ]
    values = {x: exactly(expression, x) for x in points(*box)}
    assert all(low <= value <= high for value in values.values())
    if not np.isfinite(slopes).all():
        return
    for x, y in itertools.pairwise(sorted(values, key=lambda x: hash(x))):
        steps = [a - b for a, b in zip(x, y, strict=True)]
        ends = [
            sorted((Fraction(s) * step, Fraction(t) * step))
            for (s, t), step in zip(slopes, steps, strict=True)
        ]
        change = values[x] - values[y]
        assert sum(e[0] for e in ends) <= change <= sum(e[1] for e in ends)


@settings(max_examples=80, deadline=None)
@given(programs(), boxes(), st.booleans())
def test_curves_are_enclosed(
    lines: Lines, box: tuple[list[Fraction], list[Fraction]], balls: bool
) -> None:
    expression = built(lines)
    low, high = box
    a, b = (np.array([[[float(v)] for v in end]]) for end in box)
    found = enclose_curvature(expression, a, b, balls=balls)
    curves = list(zip(found.curve_low[0, 0], found.curve_high[0, 0], strict=True))
    if not np.isfinite(curves).all():
        return
    middle = [(s + t) / 2 for s, t in zip(low, high, strict=True)]
    for axis, curve in ((0, curves[0]), (1, curves[2])):
        step = (high[axis] - low[axis]) / 2
        ends = [[*middle], [*middle]]
        ends[0][axis], ends[1][axis] = low[axis], high[axis]
        change = sum(exactly(expression, x) for x in ends) - 2 * exactly(expression, middle)
        assert Fraction(curve[0]) * step**2 <= change <= Fraction(curve[1]) * step**2


STEP = of_two(constant("1/2"), Node("sub", (0, 2)), constant(1), constant(0),
              Node("where", (3, 4, 5)))  # fmt: skip


@pytest.mark.parametrize("balls", [False, True])
@pytest.mark.parametrize(
    ("low", "high", "value", "decided"),
    [
        (0.0, 0.4, (0, 0), True),
        (0.0, np.nextafter(0.5, 1), (0, 1), False),
        (0.5, 1.0, (0, 1), False),
        (0.6, 1.0, (1, 1), True),
        (0.5, 0.5, (0, 0), True),
        (0.0, 1.0, (0, 1), False),
    ],
)
def test_a_jump(
    low: float, high: float, value: tuple[int, int], decided: bool, balls: bool
) -> None:
    found = enclosed(STEP, [low, 0], [high, 1], balls=balls)
    assert found.low[0, 0, 0] == pytest.approx(value[0], abs=1e-9)
    assert found.high[0, 0, 0] == pytest.approx(value[1], abs=1e-9)
    slopes = found.slope_low[0, 0, 0, :, 0], found.slope_high[0, 0, 0, :, 0]
    assert bool(np.isfinite(slopes).all()) == decided
    assert (slopes[0][1], slopes[1][1]) == (0, 0)  # y plays no part


def test_intervals_decide_up_to_the_jump() -> None:
    """1/2 itself belongs to the left. Balls are a little wider."""
    for low, high, value in ((0.0, 0.5, 0), (np.nextafter(0.5, 1), 1.0, 1)):
        found = enclosed(STEP, [low, 0], [high, 1], balls=False)
        assert found.low[0, 0, 0] == found.high[0, 0, 0] == value
        assert (found.slope_low[0, 0, 0] == 0).all()
        assert (found.slope_high[0, 0, 0] == 0).all()


def test_halves_do_not_hide_a_jump() -> None:
    """Cut at the jump, both halves look constant but for one point."""
    found = suprema(STEP, [Fraction(0), Fraction(0)], [Fraction(1), Fraction(1)])
    assert np.isposinf(found.slopes[0, 0])
    assert np.isposinf(found.curves[0, 0])
    wide = of_two(*STEP.nodes[2:], Node("log", (0,)), Node("add", (6, 7)))
    a, b = np.array([[[-1.0], [0.0]]]), np.array([[[2.0], [1.0]]])
    found = enclose_with_balls(wide, a, b, (a + b) / 2, (a + b) / 2, depth=6)
    assert np.isneginf(found.low[0, 0, 0])
    a[0, 0, 0] = 2**-20
    found = enclose_with_balls(wide, a, b, (a + b) / 2, (a + b) / 2, depth=6)
    assert not np.isfinite(found.slope_high[0, 0, 0, 0, 0])


@pytest.mark.parametrize("balls", [False, True])
def test_the_other_branch_need_not_be_defined(balls: bool) -> None:
    """where(x > 0, log(x), 0), and the same with a root of the condition."""
    log = of_two(constant(0), Node("log", (0,)), Node("where", (0, 3, 2)))
    right = enclosed(log, [0.5, 0], [1, 1], balls=balls)
    assert right.low[0, 0, 0] == pytest.approx(np.log(0.5))
    left = enclosed(log, [-1, 0], [-0.25 if balls else 0, 1], balls=balls)
    assert (left.low[0, 0, 0], left.high[0, 0, 0]) == (0, 0)
    assert (left.slope_low[0, 0, 0] == 0).all()
    between = enclosed(log, [-1, 0], [1, 1], balls=balls)
    assert np.isneginf(between.low[0, 0, 0])
    assert np.isposinf(between.high[0, 0, 0])
    undefined = of_two(Node("log", (0,)), constant(1), Node("where", (2, 3, 3)))
    nothing = enclosed(undefined, [-1, 0], [-0.5, 1], balls=balls)
    assert np.isneginf(nothing.low[0, 0, 0])


def test_float64_has_no_branch_without_a_condition() -> None:
    undefined = of_two(
        Node("log", (0,)), constant(1), constant(2), Node("where", (2, 3, 4))
    )
    assert np.isnan(undefined(np.array([[-1.0], [0.0]]))).all()
    assert STEP(np.array([[0.5], [0.0]])).tolist() == [[0.0], [0.0]]
    assert STEP(np.array([[np.nextafter(0.5, 1)], [0.0]])).tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize("args", [(0, 1), (0, 1, 1, 0), (0, 1, 2), (0, 1, -1), ()])
def test_lines_that_are_not_choices_are_refused(args: tuple[int, ...]) -> None:
    with pytest.raises(ExpressionError, match=r"3 arguments|not earlier"):
        of_two(Node("where", args))


def test_programs_are_read_back() -> None:
    assert Expression.from_json(STEP.to_json()) == STEP


def equivariant(*lines: Node) -> bool:
    nodes = (Node("x", (0, 0)), Node("x", (1, 0)), constant(0), *lines)
    return is_equivariant(Expression(2, 1, nodes, ((len(nodes) - 2,), (len(nodes) - 1,))))


def test_symmetry_looks_at_conditions_and_branches() -> None:
    each = (Node("where", (0, 1, 2)), Node("where", (1, 0, 2)))
    assert equivariant(*each)
    assert not equivariant(each[0], each[0])
    assert not equivariant(each[0], Node("where", (1, 2, 0)))
    assert not equivariant(each[0], Node("where", (1, 1, 2)))
    assert not equivariant(Node("where", (0, 1, 2)), Node("where", (0, 0, 2)))
    total = (Node("add", (0, 1)), Node("where", (3, 0, 2)), Node("where", (3, 1, 2)))
    assert equivariant(*total)


def test_a_maximum_in_a_condition_does_not_cancel() -> None:
    """exp(x - m) / exp(y - m) is free of m; where(m, x, y) is not."""
    top = Node("max", (0, 1))
    kept = of_two(top, Node("where", (2, 0, 1)))
    assert without_cancelling_maxima(kept) == kept
    shifted = (Node("sub", (0, 2)), Node("sub", (1, 2)), Node("where", (0, 3, 4)))
    free = of_two(top, *shifted, Node("add", (5, 2)))
    ops = [node.op for node in without_cancelling_maxima(free).nodes]
    assert "max" not in ops
    x = np.random.default_rng(0).normal(size=(200, 2, 1))
    assert without_cancelling_maxima(free)(x) == pytest.approx(free(x))
    mixed = of_two(top, Node("sub", (0, 2)), Node("where", (0, 3, 1)), Node("add", (4, 2)))
    assert without_cancelling_maxima(mixed) == mixed
