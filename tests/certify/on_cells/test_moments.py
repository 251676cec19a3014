"""Means over a cell, against exact integrals; powers, against exact rationals."""

import math
from fractions import Fraction
from itertools import product
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everyformer.certify.on_cells.moments import (
    even_exponent,
    mean_of_line,
    mean_of_sizes,
    power,
    power_down,
)

EXPONENTS = (2, 4, 8, 16)
seeds = st.integers(0, 2**32)


def integral(
    beta: Fraction, steps: list[Fraction], q: int, lows: tuple[int, int]
) -> Fraction:
    """E (beta + sum_l s_l u_l)^q for u_l uniform between `lows`, by corners.

    Integrating N times, (q+N)!/q! of it is a signed sum of (q+N)-th powers at the corners.
    """
    steps = [step for step in steps if step]
    N, (low, high) = len(steps), lows
    total = Fraction(0)
    for corner in product((low, high), repeat=N):
        sign = (-1) ** sum(u == low for u in corner)
        point = beta + sum(s * u for s, u in zip(steps, corner, strict=True))
        total += sign * point ** (q + N)
    whole = math.prod(steps, start=Fraction(1)) * (high - low) ** N
    return total * Fraction(math.factorial(q), math.factorial(q + N)) / whole


def dyadic(rng: Random, size: int = 4) -> Fraction:
    return Fraction(rng.randint(-(2**12), 2**12), 2**12) * Fraction(2) ** rng.randint(
        -size, size
    )


@settings(deadline=None, max_examples=80)
@given(seeds)
def test_the_mean_of_a_line(seed: int) -> None:
    """Above the integral, and no more than one part in a billion."""
    rng = Random(seed)
    q, N = rng.choice(EXPONENTS), rng.randint(1, 4)
    beta = rng.choice([dyadic(rng), Fraction(0)])
    steps = [rng.choice([dyadic(rng), Fraction(0)]) for _ in range(N)]
    true = integral(beta, steps, q, (-1, 1))
    line = np.array([[float(s) for s in steps]])
    (found,) = mean_of_line(np.array([float(abs(beta))]), line, q).tolist()
    if true == 0:
        assert found == 0
        return
    assert Fraction(found) ** q >= true
    assert (Fraction(found) - Fraction(1, 2**54)) ** q <= true * (1 + Fraction(q, 10**9))


@pytest.mark.parametrize("q", [2, 4])
def test_the_mean_of_a_line_by_formula(q: int) -> None:
    """E S^2 = sum s^2/3 and E S^4 = 3 (E S^2)^2 - sum 2 s^4/15, for rational steps."""
    rng = Random(q)
    for _ in range(30):
        beta, steps = dyadic(rng), [dyadic(rng) for _ in range(rng.randint(1, 6))]
        second = sum((s**2 for s in steps), start=Fraction(0)) / 3
        fourth = 3 * second**2 - sum((s**4 for s in steps), start=Fraction(0)) * 2 / 15
        true = beta**2 + second if q == 2 else beta**4 + 6 * beta**2 * second + fourth
        assert true == integral(beta, steps, q, (-1, 1))
        line = np.array([[float(s) for s in steps]])
        (found,) = mean_of_line(np.array([abs(float(beta))]), line, q).tolist()
        assert true <= Fraction(found) ** q <= true * (1 + Fraction(1, 10**9)) + 2**-50


@pytest.mark.parametrize("q", EXPONENTS)
@pytest.mark.parametrize("size", [1e-200, 1e-60, 1e-22, 1e-18])
def test_what_underflows_is_not_lost(q: int, size: float) -> None:
    beta, steps = np.array([0.0, size]), np.array([[size, -size], [0.0, size]])
    found = mean_of_line(beta, steps, q)
    for value, b, row in zip(found.tolist(), beta.tolist(), steps.tolist(), strict=True):
        true = integral(Fraction(b), [Fraction(s) for s in row], q, (-1, 1))
        assert Fraction(value) ** q >= true


@settings(deadline=None, max_examples=60)
@given(seeds)
def test_the_mean_of_sizes(seed: int) -> None:
    """Above the integral of (sum s |u|)^q; equal to it for one variable."""
    rng = Random(seed)
    q, N = rng.choice(EXPONENTS), rng.randint(1, 4)
    steps = [abs(dyadic(rng)) for _ in range(N)]
    if not any(steps):
        return
    true = integral(Fraction(0), steps, q, (0, 1))
    (found,) = mean_of_sizes(np.array([[float(s) for s in steps]]), q).tolist()
    assert Fraction(found) ** q >= true
    if N == 1:
        assert Fraction(found) ** q <= true * (1 + Fraction(q, 10**9))


def test_means_against_samples() -> None:
    """The p-mean is below the q-mean that stands for it, for every p."""
    rng = np.random.default_rng(0)
    u = rng.uniform(-1, 1, size=(200_000, 3))
    beta, steps = 0.25, np.array([0.5, -0.125, 0.3])
    for p in (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 7.0, 16.0):
        q = even_exponent(Fraction(p))
        assert q is not None
        bound = float(mean_of_line(np.array([beta]), steps[None], q)[0])
        sampled = float((np.abs(beta + u @ steps) ** p).mean() ** (1 / p))
        assert sampled <= bound * 1.003
        if p == q:
            assert sampled >= bound * 0.997
        sizes = float(mean_of_sizes(np.abs(steps)[None], q)[0])
        assert float(((np.abs(u) @ np.abs(steps)) ** p).mean() ** (1 / p)) <= sizes


def test_even_exponents() -> None:
    found = [even_exponent(Fraction(p)) for p in (1, 2, 3, 4, 5, 8, 9, 16, 17)]
    assert found == [2, 2, 4, 4, 8, 8, 16, 16, None]
    assert even_exponent(Fraction(33, 16)) == 4


POWERS = [Fraction(p) for p in (1, 2, 3, 4, 7, "3/2", "5/2", "4/3", "5/3", "9/4", "47/16")]


def bases(rng: Random) -> np.ndarray:
    """Numbers of every size, 0 and 1 among them."""
    sizes = [rng.uniform(1, 2) * 2.0 ** rng.randint(-95, 30) for _ in range(40)]
    near = [1 + rng.uniform(-1, 1) * 2.0 ** rng.randint(-52, 0) for _ in range(10)]
    return np.array([*sizes, *near, 0.0, 1.0, 2.0, 0.5])


@pytest.mark.parametrize("p", POWERS, ids=str)
def test_powers_are_rounded_up(p: Fraction) -> None:
    """found >= base^p, by found^den >= base^num; and tight, or the mean of neighbours."""
    base = bases(Random(int(60 * p)))
    tight = p.denominator & (p.denominator - 1) == 0
    for b, found in zip(base.tolist(), power(base, p).tolist(), strict=True):
        reached, true = Fraction(found) ** p.denominator, Fraction(b) ** p.numerator
        assert reached >= true, b
        if tight:
            assert reached <= true * (1 + Fraction(1, 10**9)), b


@pytest.mark.parametrize("p", POWERS, ids=str)
def test_powers_are_rounded_down(p: Fraction) -> None:
    base = bases(Random(int(60 * p)))
    for b, found in zip(base.tolist(), power_down(base, p).tolist(), strict=True):
        reached, true = Fraction(found) ** p.denominator, Fraction(b) ** p.numerator
        assert reached <= true, b
        if p.denominator == 1:
            assert reached >= true * (1 - Fraction(1, 10**9)), b


def test_plain_powers_would_not_do() -> None:
    """The control: float64 alone misses on either side, and the oracle sees it."""
    base = bases(Random(1))
    plain = [
        Fraction(v) - Fraction(b) ** 3
        for v, b in zip((base**3).tolist(), base.tolist(), strict=True)
    ]
    assert any(off < 0 for off in plain)
    assert any(off > 0 for off in plain)


def test_tiny_powers() -> None:
    base = np.array([1e-320, 1e-200, 1e-160, 1.7e-162, 0.0])
    for p in (Fraction(2), Fraction(5, 2), Fraction(4, 3)):
        up = power(base, p).tolist()
        assert all(
            Fraction(v) ** p.denominator >= Fraction(b) ** p.numerator
            for v, b in zip(up, base.tolist(), strict=True)
        )
        assert up[-1] == 0
        assert max(up[:2]) <= 1e-200
        down = power_down(base, p).tolist()
        assert all(
            Fraction(v) ** p.denominator <= Fraction(b) ** p.numerator
            for v, b in zip(down, base.tolist(), strict=True)
        )
