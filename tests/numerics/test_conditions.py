"""Conditions on maxima are decided term by term, and stay what they are at every point."""

import random
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from tests.numerics.rational_programs import (
    constant,
    enclosed,
    exactly,
    of_two,
    points,
)

from everyformer.construct.pipeline import construct
from everyformer.numerics import conditions
from everyformer.numerics.affine import Affine, combined
from everyformer.numerics.conditions import compared_by_terms
from everyformer.numerics.curvature import enclose_curvature
from everyformer.numerics.enclosure import enclose
from everyformer.numerics.expression import Expression, Node
from everyformer.targets.target import Target
from everyformer.targets.trace import trace


def program(rng: random.Random) -> Expression:
    """where(sums of maxima and of their terms > 0, x, y), also inside each other."""
    lines = [
        Node("mul", (0, 1)),
        constant(Fraction(rng.randint(-4, 4), 2)),
        Node("neg", (0,)),
    ]

    def add(op: str, *args: int) -> int:
        lines.append(Node(op, args))
        return len(lines) + 1

    def scaled(k: int) -> int:
        lines.append(constant(rng.choice(["-3", "-1", "1/3", "2"])))
        return add(rng.choice(["mul", "div"]), k, len(lines) + 1)

    terms = list(range(5))
    for _ in range(rng.randint(1, 3)):
        first, second = rng.choices(terms, k=2)
        kink = add(rng.choice(["max", "min"]), first, second)
        kink = add("abs", kink) if rng.random() < 0.3 else kink
        kink = scaled(kink) if rng.random() < 0.5 else kink
        rest = rng.choice([first, second, rng.choice(terms)])
        terms.append(add(rng.choice(["add", "sub"]), kink, rest))
        if rng.random() < 0.5:
            terms.append(add("where", terms[-1], *rng.choices(terms, k=2)))
    add("where", terms[-1], 0, 1)
    return of_two(*lines)


def check_values(count: int) -> int:
    """Compare programs before and after, exactly, at many ties; how many changed."""
    rng, changed = random.Random(0), 0
    halves = [Fraction(k, 2) for k in range(-3, 4)]
    places = [(a, b) for a in halves for b in halves]
    for _ in range(count):
        before = program(rng)
        after = compared_by_terms(before)
        changed += after != before
        for x in places if after != before else ():
            assert exactly(after, x) == exactly(before, x)
    return changed


def test_conditions_have_the_same_sign_at_every_point() -> None:
    assert check_values(300) > 150


def _without_the_constant(form: Affine[int], k: int) -> Affine[int]:
    return without(Affine(terms=form.terms), k)


def _sum_without_the_rest(
    op: str, a: Affine[int] | None, b: Affine[int] | None
) -> Affine[int] | None:
    return b if op == "add" else combined(op, a, b)


without = conditions._without  # pyright: ignore[reportPrivateUsage]
MUTATED: dict[str, tuple[str, Any]] = {
    "a negative factor keeps the maximum": ("OPPOSITE", {"min": "min", "max": "max"}),
    "sums forget one side": ("combined", _sum_without_the_rest),
    "constants are left out": ("_without", _without_the_constant),
}


@pytest.mark.parametrize("name", MUTATED)
def test_wrong_rules_are_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conditions, *MUTATED[name])
    with pytest.raises(AssertionError):
        check_values(300)


@pytest.mark.parametrize("balls", [False, True])
def test_random_programs_are_enclosed(balls: bool) -> None:
    rng, decided = random.Random(1), [0, 0]
    for _ in range(60 if balls else 150):
        before = program(rng)
        after = compared_by_terms(before)
        if after == before:
            continue
        low = [Fraction(rng.randint(-6, 6), 4) for _ in range(2)]
        high = [a + Fraction(rng.randint(1, 4), 4) for a in low]
        values = [exactly(before, x) for x in points(low, high)]
        found = [enclosed(f, low, high, balls=balls) for f in (before, after)]
        for k, one in enumerate(found):
            assert one.low[0, 0, 0] <= min(values)
            assert max(values) <= one.high[0, 0, 0]
            decided[k] += int(np.isfinite(one.slope_low[0, 0, 0]).all())
    assert decided[1] > decided[0]


TOP = Node("max", (0, 1))
IS_TOP = of_two(
    TOP, Node("sub", (2, 0)), constant(0), constant(1), Node("where", (3, 4, 5))
)
"""x >= max(x, y)."""


@pytest.mark.parametrize(
    ("low", "high", "value"),
    [
        ([0.5, 0.0], [1.0, 0.25], 1),  # x is larger
        ([0.5, 0.0], [1.0, 0.5], 1),  # a tie at one corner: still the largest
        ([0.5, 0.5], [0.5, 0.5], 1),  # nothing but a tie
        ([0.0, np.nextafter(0.5, 1)], [0.5, 1.0], 0),  # y is larger by 2^-53
    ],
)
def test_ties_count_as_true(low: list[float], high: list[float], value: int) -> None:
    f = compared_by_terms(IS_TOP)
    found = enclosed(f, low, high, balls=False)
    assert (found.low[0, 0, 0], found.high[0, 0, 0]) == (value, value)
    assert (found.slope_low[0, 0, 0] == 0).all()
    box = [np.array([[[v] for v in end]]) for end in (low, high)]
    assert enclose_curvature(f, box[0], box[1]).curve_high[0, 0].tolist() == [0, 0, 0]
    if low != high:
        assert enclosed(IS_TOP, low, high, balls=False).low[0, 0, 0] == 0  # as written


@pytest.mark.parametrize(
    ("low", "high"), [([0.5, 0.5], [1.0, 1.0]), ([0.5, 0.5], [0.75, np.nextafter(0.5, 1)])]
)
def test_boxes_on_both_sides_are_not_decided(low: list[float], high: list[float]) -> None:
    found = enclosed(compared_by_terms(IS_TOP), low, high, balls=False)
    assert (found.low[0, 0, 0], found.high[0, 0, 0]) == (0, 1)
    assert np.isinf(found.slope_low[0, 0, 0]).all()


@pytest.mark.parametrize("balls", [False, True])
def test_what_is_not_defined_stays_so(balls: bool) -> None:
    """1/x >= max(1/x, y) holds for y <= 0, and does not exist at x = 0."""
    lines = (constant(1), Node("div", (2, 0)), Node("max", (3, 1)), Node("sub", (4, 3)))
    f = of_two(*lines, constant(0), Node("where", (5, 6, 2)))
    after = compared_by_terms(f)
    assert after != f
    right = enclosed(after, [0.5, -1], [1, 0.5], balls=balls)
    assert (right.low[0, 0, 0], right.high[0, 0, 0]) == pytest.approx((1, 1))
    for low, high in ((-1, 1), (0, 1), (0, 0)):
        found = enclosed(after, [low, -2], [high, -1], balls=balls)
        assert np.isneginf(found.low[0, 0, 0])
        assert np.isposinf(found.high[0, 0, 0])
    with pytest.raises(ZeroDivisionError):
        exactly(after, (Fraction(0), Fraction(0)))


def _order(x: np.ndarray) -> np.ndarray:
    return np.sort(x, axis=-2)


WRITTEN: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "equal to the largest": lambda x: np.where(x == x.max(-2, keepdims=True), x, 0.0),
    "near the least": lambda x: np.where(
        np.abs(x - x.min(-2, keepdims=True)) < 2**-8, x, 0
    ),
    "above the median": lambda x: np.where(x > _order(x)[..., 1:2, :], 1.0, -x),
    "spread of all": lambda x: x * (x.max(-2, keepdims=True) - x < 2**-8),
    "after a softmax": lambda x: np.where(
        np.exp(x) >= np.exp(x).max(-2, keepdims=True), x, 0
    ),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_what_people_write_is_decided_on_small_boxes(name: str) -> None:
    f = trace(WRITTEN[name], 3, 1, [0.0], [1.0])
    after = compared_by_terms(f)
    rng = np.random.default_rng(0)
    low = rng.integers(0, 64, (200, 3, 1)) / 64
    ends = low, low + 1 / 64, low + 1 / 128, low + 1 / 128
    found = [enclose(g, *ends) for g in (f, after)]
    decided = [
        int(np.isfinite(one.slope_low).all(axis=(1, 2, 3, 4)).sum()) for one in found
    ]
    assert decided[0] < 100 < 150 < decided[1]
    for share in rng.uniform(0, 1, (20, 200, 3, 1)):
        y = f(low + share / 64)
        assert (y >= found[1].low - 1e-12).all()
        assert (y <= found[1].high + 1e-12).all()


def test_long_conditions_are_left_alone() -> None:
    """Deep, wide, and with numbers that float64 does not hold."""
    deep = [Node("max", (0, 1))]
    deep += [Node("max", (k, k % 2)) for k in range(2, 300)]
    last = len(deep) + 1
    deep += [Node("sub", (last, 0)), Node("where", (last + 1, 0, 1))]
    assert compared_by_terms(of_two(*deep)) == of_two(*deep)
    entries = [Node("x", (j, 0)) for j in range(80)]
    wide = [*entries, Node("max", (0, 1))]
    wide += [Node("max", (k, k - 78)) for k in range(80, 158)]
    wide += [Node("sub", (len(wide) - 1, 0)), Node("where", (len(wide), 0, 1))]
    f = Expression(80, 1, tuple(wide), ((len(wide) - 1,),) * 80)
    assert compared_by_terms(f) == f
    large = [constant(2**900), Node("mul", (0, 2)), Node("mul", (3, 2)), TOP]
    large += [Node("sub", (5, 4)), Node("where", (6, 0, 1))]
    assert compared_by_terms(of_two(*large)) == of_two(*large)


def test_larger_gets_1_has_a_tight_bound() -> None:
    """Measured: 0.246. As it is written no cell decides the condition: 1.03."""
    f = Target(lambda x: np.where(x >= x.max(-2, keepdims=True), 1.0, 0.0), 2, 1)
    bound = construct(f, grid=16).certificate.bound
    assert bound is not None
    assert 0.246 < float(bound.value) < 0.27
