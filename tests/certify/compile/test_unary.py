"""Bounds of unary heads: true, tight, and never better than the numbers allow."""

import dataclasses
import math
from fractions import Fraction
from typing import Any

import flint
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.certify.compile.heads import (
    Case,
    at_point,
    gamma,
    gauss,
    holds_at,
    in_float64,
    padded,
    reference,
    value_of,
)

from everyformer.certify.compile.unary import cells, series, sizes
from everyformer.certify.compile.unary.error import Phi, bound_head
from everyformer.certify.undecided import Undecided
from everyformer.errors import InputError

TWO = (Fraction(2), Fraction(0))
CASES = {
    **{f"{fn} 1e-4": gauss(fn, 0.82, 4) for fn in ("t^2", "t^3", "exp", "sin", "cos")},
    **{f"{fn} 1e-6": gauss(fn, 0.98, 6) for fn in ("t^2", "sin")},
    "t^2, 16 knots": gauss("t^2", 0.9, 6, N=16),
    "t^-1/2 1e-6": gamma("-1/2", 0.4, 1e-7, 0.01, 0.26),
    "1/t 1e-6": gamma("-1", 0.4, 1e-8, 0.01, 1.0),
    "sqrt 1e-6": gamma("1/2", 0.4, 1e-7, 1e-6, 2.0),
    "log 1e-6": gamma("log", 0.5, 1e-7, 0.1, 10.0),
    "exp by two": Case(
        padded([1.0, 0.0], [-14.0, 0.0], [math.exp(14), 0.0], 20),
        reference("exp"),
        Fraction(-3),
        Fraction(1),
    ),
}
FINE = {
    **{f"{fn} 1e-12": gauss(fn, 1.3, 11) for fn in ("t^2", "t^3", "exp", "sin", "cos")},
    "t^2 1e-14": gauss("t^2", 1.42, 13),
    "t^-1/2 1e-12": gamma("-1/2", 0.22, 1e-14, 0.01, 0.26),
    "log 1e-12": gamma("log", 0.25, 1e-14, 0.1, 10.0),
    "tanh": Case(
        padded([1.0, -1.0], [0.0, 0.0], [1.0, -1.0], 12),
        reference("tanh"),
        Fraction(-5),
        Fraction(5),
    ),
    "logistic of 2 t - 1": Case(
        padded([2.0, 0.0], [-1.0, 0.0], [1.0, 0.0]),
        reference("logistic", inner=(2, -1)),
        Fraction(-50),
        Fraction(50),
    ),
    "exp by two": Case(
        padded([1.0, 0.0], [-60.0, 0.0], [math.exp(60), 0.0]),
        reference("exp"),
        Fraction(-3),
        Fraction(1),
    ),
    "exp of t/3 + 1/7": Case(
        padded([1 / 3, 0.0], [1 / 7 - 45.0, 0.0], [math.exp(45), 0.0]),
        reference("exp", inner=("1/3", "1/7")),
        Fraction(-1),
        Fraction(1),
    ),
}


def proved(case: Case, **options: Any) -> Any:
    """The bounds of a case."""
    return bound_head(case.phi, case.reference, case.low, case.high, **options)


def sampled(case: Case, points: list[Fraction]) -> Fraction:
    """The largest |Phi - g| at some points, rounded down."""
    with flint.ctx.workprec(256):
        found = [at_point(case, t)["error"].lower().man_exp() for t in points]
    return max(Fraction(int(m)) * Fraction(2) ** int(e) for m, e in found)


def evenly(case: Case, count: int) -> list[Fraction]:
    """Points of the interval, both ends included."""
    return [
        case.low + (case.high - case.low) * Fraction(k, count - 1) for k in range(count)
    ]


@pytest.mark.parametrize("name", CASES)
def test_bounds_are_true_and_tight(name: str) -> None:
    case, bound = CASES[name], proved(CASES[name])
    found = in_float64(case, 20_000)
    t, error = found["error"]
    worst = [Fraction(float(t[k])) for k in np.argsort(error)[-8:]]
    largest = sampled(case, worst)
    assert 1e-8 <= largest <= bound.error <= 1.1 * largest
    assert float(bound.error) >= error.max() * (1 - 1e-12) - 1e-13 * float(bound.mean)
    for what in ("slope", "moment", "mean"):
        t, values = found[what]
        assert values.max() <= getattr(bound, what) * (1 + 1e-12)
        assert getattr(bound, what) <= 1.1 * values.max()
        assert holds_at(bound, case, Fraction(float(t[values.argmax()]))) == []
    assert all(holds_at(bound, case, t) == [] for t in evenly(case, 21))


@pytest.mark.parametrize("name", FINE)
def test_small_errors(name: str) -> None:
    case, bound = FINE[name], proved(FINE[name])
    points = [
        case.low + (t - case.low) ** 4 / (case.high - case.low) ** 3
        for t in evenly(case, 101)
    ]
    points += evenly(case, 101)
    largest = sampled(case, points)
    assert largest <= bound.error <= max(1.2 * largest, 1e-19)
    assert bound.error < 2e-10
    assert all(holds_at(bound, case, t) == [] for t in points[::10])


ROUGH = {
    "order 1": {"ORDER": 1, "REACH": 0.3},
    "order 3": {"ORDER": 3, "REACH": 1.0, "NEAR": 0.5},
    "wide cells": {"ORDER": 7, "REACH": 4.0, "NEAR": 0.9},
    "three points": {"GRID": 1, "REACH": 1.0},
    "many unheard": {"_UNHEARD": Fraction(1, 50), "_UNHEARD_SCORE": -2, "REACH": 0.2},
    "whispers": {"_FAINTEST": -3, "REACH": 0.3},
    "one piece": {"PARTS": 1, "REACH": 1.0},
}


@pytest.mark.parametrize("name", ROUGH)
def test_bounds_are_true_however_rough(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left out of a series, a grid or a sum is in its error."""
    for setting, value in ROUGH[name].items():
        for module in (cells, series, sizes):
            if hasattr(module, setting):
                monkeypatch.setattr(module, setting, value)
    heads = [CASES[key] for key in ("t^2 1e-6", "sin 1e-6", "t^-1/2 1e-6")]
    # Against 0 the series of the head itself must bend as the head does.
    zero = reference("pow", "1", (0, 0))
    heads += [dataclasses.replace(case, reference=zero) for case in heads]
    for case in heads:
        question = (case.phi, case.reference, case.low, case.high)
        bound = bound_head.__wrapped__(*question, wanted=Fraction(10**9))
        for t, values in in_float64(case, 1000).values():
            assert holds_at(bound, case, Fraction(float(t[values.argmax()]))) == []


def second_opinion(case: Case, cells: int) -> float:
    """|Phi - g| <= |d(c)| + |d'(c)| R + sup |d''| R^2 / 2, d = Phi - g, on equal cells.

    Plain balls of 80 bits: Phi'' = sum_k p_k (v_k - Phi) (a_k - mean of a)^2 of a ball t.
    """
    a, b, v = (
        [flint.arb(x) for x in array.tolist()]
        for array in (case.phi.a, case.phi.b, case.phi.v)
    )

    def head(t: Any) -> tuple[Any, Any, Any]:
        score = [k * t + q for k, q in zip(a, b, strict=True)]
        p = [(s - score[len(a) // 2]).exp() for s in score]
        total = sum(p, flint.arb(0))
        p = [w / total for w in p]
        phi = sum((w * x for w, x in zip(p, v, strict=True)), flint.arb(0))
        mean = sum((w * x for w, x in zip(p, a, strict=True)), flint.arb(0))
        off = [w * (x - phi) for w, x in zip(p, v, strict=True)]
        first = sum((o * (k - mean) for o, k in zip(off, a, strict=True)), flint.arb(0))
        second = sum(
            (o * (k - mean) ** 2 for o, k in zip(off, a, strict=True)), flint.arb(0)
        )
        return phi, first, second

    largest, radius = 0.0, (case.high - case.low) / (2 * cells)
    with flint.ctx.workprec(80):
        R = flint.arb(flint.fmpq(radius.numerator, radius.denominator))
        for k in range(cells):
            middle = case.low + radius * (2 * k + 1)
            c = flint.arb(flint.fmpq(middle.numerator, middle.denominator))
            around = c + R * flint.arb(0, 1)
            g, g1 = {
                "pow": lambda c=c: (c**2, 2 * c),
                "sin": lambda c=c: (c.sin(), c.cos()),
            }[case.reference.name]()
            g2 = {"pow": flint.arb(2), "sin": -around.sin()}[case.reference.name]
            at = head(c)
            bend = (head(around)[2] - g2).abs_upper() * R * R / 2
            total = (at[0] - g).abs_upper() + (at[1] - g1).abs_upper() * R + bend
            largest = max(largest, float(total.upper()) * (1 + 2**-50))
    return largest


@pytest.mark.parametrize(("name", "cells"), [("t^2 1e-4", 800), ("sin 1e-4", 400)])
def test_a_second_proof_agrees(name: str, cells: int) -> None:
    other, own = second_opinion(CASES[name], cells), float(proved(CASES[name]).error)
    assert own <= other * 1.03
    assert other <= own * 1.1


@given(
    tokens=st.lists(
        st.tuples(*[st.floats(-s, s, allow_subnormal=True) for s in (30, 20, 5)]),
        min_size=1,
        max_size=6,
    ),
    name=st.sampled_from(
        [
            "pow 2",
            "pow -1/2",
            "pow 1/2",
            "pow 3",
            "pow -1",
            "pow 5/2",
            "exp",
            "log",
            "sin",
            "cos",
            "tanh",
            "logistic",
        ]
    ),
    slope=st.fractions(-3, 3, max_denominator=50),
    low=st.fractions(-2, 2, max_denominator=1000),
    width=st.fractions(0, 3, max_denominator=1000),
    parts=st.lists(st.fractions(0, 1), min_size=3, max_size=3),
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_bounds_hold_for_any_head(
    tokens: list[tuple[float, float, float]],
    name: str,
    slope: Fraction,
    low: Fraction,
    width: Fraction,
    parts: list[Fraction],
) -> None:
    a, b, v = (np.array(column) for column in zip(*tokens, strict=True))
    fn, _, power = name.partition(" ")
    # Arguments of roots and logarithms begin at 0 or a little above.
    least = min(slope * low, slope * (low + width))
    positive = fn == "log" or "/" in power or power.startswith("-")
    start = Fraction(0) if power in {"1/2", "5/2"} else Fraction(1, 100)
    offset = start - least if positive else Fraction(1, 3)
    g = reference(fn, power or None, (slope, offset))
    case = Case(Phi(a, b, v), g, low, low + width)
    bound = proved(case)
    for part in (*parts, Fraction(0), Fraction(1)):
        assert holds_at(bound, case, low + part * width) == []
    found = in_float64(case, 400)
    t, error = found["error"]
    peak = Fraction(float(t[np.nanargmax(error)]))
    if case.low <= peak <= case.high:
        assert holds_at(bound, case, peak) == []


def with_values(case: Case, v: np.ndarray) -> Case:
    return dataclasses.replace(case, phi=Phi(case.phi.a, case.phi.b, v))


@pytest.mark.parametrize("name", ["t^2 1e-6", "t^-1/2 1e-6", "log 1e-6"])
def test_swapped_values_are_seen(name: str) -> None:
    case = CASES[name]
    v = case.phi.v.copy()
    k = v.size // 2
    v[[k, k + 1]] = v[[k + 1, k]]
    bad = with_values(case, v)
    assert proved(bad).error > 1e-3
    t, error = in_float64(bad, 2000)["error"]
    assert sampled(bad, [Fraction(float(t[error.argmax()]))]) <= proved(bad).error


@pytest.mark.parametrize("name", ["t^2 1e-12", "exp 1e-12", "cos 1e-12", "t^-1/2 1e-12"])
def test_scaled_values_are_seen(name: str) -> None:
    case = FINE[name]
    bound = proved(with_values(case, case.phi.v * (1 + 1e-5))).error
    size = max(
        abs(float(value_of(case.reference, flint.arb(float(end)))))
        for end in (case.low, case.high)
    )
    assert 0.999e-5 * size <= bound <= 1.01e-5 * size * (1.9 if "cos" in name else 1)


def test_another_function_is_seen() -> None:
    case = CASES["t^2 1e-6"]
    # sup |t^2 - t^4| = 1/4, |t^2 - t^3| = 2 on [-1, 1].
    for power, off in (("4", 0.25), ("3", 2.0)):
        wrong = dataclasses.replace(case, reference=reference("pow", power))
        assert abs(float(proved(wrong).error) - off) < 0.04 * off
    shifted = dataclasses.replace(case, reference=reference("pow", "2", (1, "1/1000")))
    assert abs(float(proved(shifted).error) - 2.001e-3) < 1e-4
    root = dataclasses.replace(CASES["t^-1/2 1e-6"], reference=reference("pow", "1/2"))
    assert proved(root).error > 9


@pytest.mark.parametrize("high", [20, 1000])
def test_an_interval_beyond_the_knots_is_seen(high: int) -> None:
    case = dataclasses.replace(CASES["t^2 1e-6"], high=Fraction(high))
    bound = proved(case).error
    largest = case.phi.v.max()
    assert high**2 - largest <= bound <= 1.04 * (high**2 - largest)


def test_the_square_root_from_0() -> None:
    case = dataclasses.replace(CASES["sqrt 1e-6"], low=Fraction(0))
    bound = proved(case).error
    points = [Fraction(1, 10**k) for k in range(5, 12)] + [Fraction(0)]
    largest = sampled(case, points)
    assert largest <= bound < 2e-3
    assert bound <= 1.1 * max(
        largest, sampled(case, [Fraction(k, 10**7) for k in range(40)])
    )


def test_what_is_good_enough_is_quicker_and_true() -> None:
    case = CASES["t^2, 16 knots"]
    rough, fine = proved(case, wanted=Fraction(1, 100)).error, proved(case).error
    assert fine <= rough <= Fraction(1, 100)


def test_a_single_token_and_a_single_point() -> None:
    g = reference("pow", "2")
    one = Case(padded([3.0], [1.0], [0.25]), g, Fraction(-1), Fraction(1))
    bound = proved(one)
    assert 0.75 <= bound.error <= 0.76
    assert bound.slope < 1e-30
    assert bound.moment < 1e-12
    assert 0.25 <= bound.mean <= 0.2501
    assert (bound.score, bound.least_score) == (4, -2)
    third = Fraction(1, 3)
    point = dataclasses.replace(one, low=third, high=third)
    assert abs(proved(point).error - abs(Fraction(1, 4) - third**2)) < 1e-15
    same = dataclasses.replace(one, phi=padded([2.0] * 3, [0.0] * 3, [1.0, 2.0, 6.0]))
    bound = proved(same)
    assert 3 <= bound.error <= 3.1
    assert bound.slope < 1e-12
    assert bound.mean >= 3


def test_equal_scores_share_a_value_but_not_a_mean() -> None:
    phi = padded([1.0, 1.0, 0.0], [0.0, 0.0, 0.0], [5.0, -5.0, 0.0])
    case = Case(phi, reference("pow", "0"), Fraction(-1), Fraction(2))
    bound = proved(case)
    assert 1 <= bound.error < 1.001
    assert bound.mean > 4
    assert all(holds_at(bound, case, t) == [] for t in evenly(case, 31))


def test_the_least_score_is_where_two_lines_meet() -> None:
    phi = padded([-3.0, -1.0, 0.5, 4.0], [0.0, 1.0, 0.5, -3.0], [0.0] * 4)
    case = Case(phi, reference("pow", "0"), Fraction(-2), Fraction(2))
    # -t + 1 and t/2 + 1/2 meet at 1/3.
    assert proved(case).least_score == Fraction(2, 3)
    assert proved(dataclasses.replace(case, high=Fraction(0))).least_score == 1
    assert proved(dataclasses.replace(case, low=Fraction(1))).least_score == 1


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", ["a", "b", "v"])
def test_what_is_not_finite_is_refused(bad: float, which: str) -> None:
    arrays = {name: np.array([1.0, 0.0]) for name in "abv"}
    arrays[which][0] = bad
    with pytest.raises(Undecided, match="was found"):
        bound_head(Phi(**arrays), reference("exp"), Fraction(0), Fraction(1))


@pytest.mark.parametrize(
    ("g", "low", "high"),
    [
        (reference("log"), 0, 1),
        (reference("log", inner=(-1, 1)), 0, 1),
        (reference("pow", "-1"), -1, 1),
        (reference("pow", "-1/2"), 0, 1),
        (reference("pow", "1/2"), "-1/1000000", 1),
        (reference("pow", "1/3"), 1, 2),
        (reference("pow", "100000000000"), 0, 1),
        (reference("pow"), 0, 1),
        (reference("exp", "2"), 0, 1),
        (reference("exp"), 0, 10**6),
        (reference("gelu"), 0, 1),
        (reference("sin", inner=(10**200, 0)), 0, 1),
        (reference("sin"), 0, 10**4000),
        (reference("sin"), 1, 0),
    ],
)
def test_questions_without_sense_are_refused(g: Any, low: Any, high: Any) -> None:
    phi = padded([1.0, 0.0], [0.0, 0.0], [1.0, 0.0])
    with pytest.raises(Undecided, match="unary"):
        bound_head(phi, g, Fraction(low), Fraction(high))


def test_shapes_and_types_are_refused() -> None:
    one, g = np.ones(1), reference("exp")
    with pytest.raises(Undecided, match="beyond"):
        bound_head(Phi(one, one, one * 1e300), g, Fraction(0), Fraction(1))
    for a, b, v in ((one[:0],) * 3, (one, one, np.ones(2)), (one[None],) * 3):
        with pytest.raises(Undecided, match="unary"):
            bound_head(Phi(a, b, v), g, Fraction(0), Fraction(1))
    with pytest.raises(InputError, match="float32"):
        Phi(one.astype(np.float32), one, one)


HUGE = 2.0**200


@pytest.mark.parametrize(
    "phi",
    [
        padded([HUGE, 0.0], [0.0, 0.0], [1.0, 0.0]),
        padded([HUGE, 0.0, -HUGE], [-HUGE / 3, 0.0, HUGE / 7], [1.0, 0.0, 3.0]),
        padded([1.0, 0.0], [HUGE, 0.0], [1.0, 0.0]),
        padded([1.0, 0.0], [HUGE, HUGE], [1.0, 0.0]),
        padded([1.0, 0.0], [0.0, 0.0], [HUGE, 0.0]),
        padded([1.0, 0.0, 2.0], [0.0, 0.0, 1.0], [HUGE, -HUGE, 1.0]),
        padded([1.0, 0.0], [0.0, -8192.0], [0.5, HUGE]),
        padded([1e60, -1e60], [0.0, 1.0], [1e60, 1.0]),
        padded([5e-324, 0.0], [0.0, 5e-324], [5e-324, 0.0]),
        padded([1e15, -1e15, 0.0], [0.0, 1e14, -1e13], [1.0, 2.0, 3.0]),
        Phi(
            np.linspace(-1e6, 1e6, 100),
            -(np.linspace(-1e3, 1e3, 100) ** 2),
            np.arange(100.0),
        ),
    ],
)
@pytest.mark.parametrize("fn", ["sin", "tanh"])
def test_huge_numbers_end_in_a_true_bound_or_a_refusal(phi: Phi, fn: str) -> None:
    case = Case(phi, reference(fn), Fraction(-1), Fraction(1))
    try:
        bound = proved(case)
    except Undecided:
        return
    third = Fraction(1, 3)
    for t in (*evenly(case, 9), third, third + Fraction(1, 2**199), Fraction(1, 2**199)):
        assert holds_at(bound, case, t) == []


def test_the_cache_tells_heads_apart() -> None:
    case = CASES["t^2 1e-4"]
    v = case.phi.v.copy()
    phi = Phi(case.phi.a, case.phi.b, v)
    first = bound_head(phi, case.reference, case.low, case.high)
    assert first is bound_head(case.phi, case.reference, case.low, case.high)
    v += 1.0
    assert first is bound_head(phi, case.reference, case.low, case.high)
    assert proved(with_values(case, v)).error > 0.99
