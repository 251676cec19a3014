"""The constants of the lattice: printed values, and proved ones above measured ones."""

from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from everyformer.certify.partition.lattice_constants import (
    INTERVALS,
    LatticeConstants,
    lattice_constants,
    margin_terms,
    theta_series,
)
from everyformer.errors import CertificateError
from everyformer.numerics.balls import BallArithmetic

POINTS = 20_001

TABLE = {
    "1/2": (3.4e-8, 0.835, 1.000),
    "3/4": (1.6e-5, 0.699, 0.667),
    "1": (3.3e-4, 0.623, 0.501),
    "3/2": (5.8e-3, 0.548, 0.346),
    "2": (0.0226, 0.518, 0.286),
    "3": (0.0783, 0.502, 0.255),
    "5": (0.181, 0.500, 0.250),
    "10": (0.303, 0.500, 0.250),
    "1000": (0.496, 0.500, 0.250),
}
HALF_A_DIGIT = {"1/2": 5e-10, "3/4": 5e-7, "1": 5e-6, "3/2": 5e-5, "2": 5e-5, "3": 5e-5}


class Balls(BallArithmetic):
    """Arb balls, with what else the constants ask; fewer pieces, so a little larger."""

    count = 48

    def pieces(self, D: Fraction) -> list[tuple[Any, Any, Any]]:
        points = [Fraction(k, 2 * self.count) for k in range(self.count)]
        half = Fraction(1, 4 * self.count)
        step = self.between(-half, half)
        return [
            (self.between(a, a + 2 * half), self.constant(a + half), step) for a in points
        ]

    def between(self, low: Fraction, high: Fraction) -> Any:
        return self.select(False, False, self.constant(low), self.constant(high))

    @staticmethod
    def meet(a: Any, b: Any) -> Any:
        return a if a.rad() <= b.rad() else b


ARITHMETICS = [INTERVALS, Balls()]


def gaps_and_weights(
    D: float, first: int, last: int, x: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """delta and its probabilities for anchors first .. last, (points, anchors)."""
    gaps = np.arange(first, last + 1)[None] - x[:, None]
    exponents = -D * gaps**2
    weights = np.exp(exponents - exponents.max(axis=1, keepdims=True))
    return gaps, weights / weights.sum(axis=1, keepdims=True)


def measured(D: float, first: int, last: int, x: np.ndarray) -> dict[str, float]:
    gaps, weights = gaps_and_weights(D, first, last, x)
    squares = (weights * gaps**2).sum(axis=1)
    found = {
        "b": np.abs((weights * gaps).sum(axis=1)).max(),
        "m1": (weights * np.abs(gaps)).sum(axis=1).max(),
        "m2": squares.max(),
        "least_m2": squares.min(),
    }
    for r in range(1, 7):
        for j in range(3):
            beyond = weights * (np.abs(gaps) > r) * np.abs(gaps) ** j
            found[f"tail {r} {j}"] = beyond.sum(axis=1).max()
    return {name: float(value) for name, value in found.items()}


@lru_cache
def on_all_integers(D: float, points: int = POINTS) -> dict[str, float]:
    reach = int(np.sqrt(80 / D)) + 8
    return measured(D, -reach, reach, np.linspace(-0.5, 0.5, points))


def check_above(known: LatticeConstants, found: dict[str, float]) -> None:
    """Every proved constant is on the right side; 1e-13 is the rounding of the samples."""
    assert known.b >= found["b"] - 1e-13
    assert known.m1 >= found["m1"] - 1e-13
    assert known.m2 >= found["m2"] - 1e-13
    assert known.least_m2 <= found["least_m2"] + 1e-13
    for r, tail in enumerate(known.tails, start=1):
        for j in range(3):
            assert tail[j] >= found[f"tail {r} {j}"] - 1e-13


@pytest.mark.parametrize("D", TABLE)
def test_the_printed_table_is_what_is_measured(D: str) -> None:
    found = on_all_integers(float(Fraction(D)))
    b, m1, m2 = TABLE[D]
    assert abs(found["b"] - b) <= HALF_A_DIGIT.get(D, 5e-4) * 1.01
    assert abs(found["m1"] - m1) <= 5.1e-4
    assert abs(found["m2"] - m2) <= 5.1e-4


@pytest.mark.parametrize("D", TABLE)
def test_proved_constants_are_above_measured_ones(D: str) -> None:
    check_above(lattice_constants(Fraction(D)), on_all_integers(float(Fraction(D))))


@settings(max_examples=4, deadline=None)
@given(st.fractions(Fraction(3, 10), Fraction(20), max_denominator=50))
def test_proved_constants_for_any_decay(D: Fraction) -> None:
    check_above(lattice_constants(D), on_all_integers(float(D), 2001))


@pytest.mark.parametrize("D", ["1/2", "3/4", "1", "3/2", "2", "3"])
def test_proved_constants_are_sharp(D: str) -> None:
    known, found = lattice_constants(Fraction(D)), on_all_integers(float(Fraction(D)))
    assert float(known.b) <= found["b"] * 1.001
    assert float(known.m1) <= found["m1"] * 1.0001
    assert float(known.m2) <= found["m2"] * 1.0001
    assert float(known.least_m2) >= found["least_m2"] * 0.9999


@pytest.mark.parametrize(
    ("D", "b", "m2"),
    [(1, 3.2503e-4, 0.50103), (2, 0.022924, 0.28601), (3, 0.084327, 0.25499)],
)
@pytest.mark.parametrize("on", ARITHMETICS)
def test_theta_series_has_the_printed_values(D: int, b: float, m2: float, on: Any) -> None:
    series = theta_series(Fraction(D), on=on)
    assert series is not None
    assert float(series[0]) <= b
    assert float(series[0]) == pytest.approx(b, rel=1e-4)
    assert 1 / (2 * D) + float(series[1]) == pytest.approx(m2, rel=3e-5)
    known = lattice_constants(Fraction(D))
    assert float(known.b) <= b
    assert float(known.m2) <= m2


def test_theta_series_says_nothing_for_sharp_weights() -> None:
    assert theta_series(Fraction(14)) is None
    assert theta_series(Fraction(12)) is not None


@pytest.mark.parametrize(
    ("D", "m", "tau"),
    [("2", 3, 4.2e-14), ("1", 4, 3.6e-11), ("1", 3, 2.9e-7), ("3/4", 4, 1.8e-8)],
)
def test_margin_terms_have_the_printed_values(D: str, m: int, tau: float) -> None:
    for on in ARITHMETICS:
        terms = margin_terms(Fraction(D), m, on=on)
        assert float(terms[0]) == pytest.approx(tau, rel=0.04)
        assert terms[0] < terms[1] < terms[2]


@pytest.mark.parametrize("D", ["1/2", "3/4", "1", "3"])
@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("K", [2, 5])
def test_a_finite_margin_is_paid_for(D: str, m: int, K: int) -> None:
    known = lattice_constants(Fraction(D), m)
    found = measured(float(Fraction(D)), -m, K + m, np.linspace(0, K, 1501))
    check_above(known, found)


def test_without_the_margin_terms_a_short_margin_would_be_wrong() -> None:
    found = measured(0.5, -1, 3, np.linspace(0, 2, 4001))
    assert found["b"] > float(lattice_constants(Fraction(1, 2)).b) * 1000


@pytest.mark.parametrize("D", ["1", "5"])
def test_balls_and_intervals_agree(D: str) -> None:
    ours, theirs = (lattice_constants(Fraction(D), on=on) for on in ARITHMETICS)
    check_above(theirs, on_all_integers(float(Fraction(D)), 2001))
    assert float(theirs.b) == pytest.approx(float(ours.b), rel=0.02)
    assert float(theirs.m1) == pytest.approx(float(ours.m1), rel=0.02)
    assert float(theirs.m2) == pytest.approx(float(ours.m2), rel=0.03)


@pytest.mark.parametrize("D", [Fraction(0), Fraction(-1), Fraction(10**6)])
def test_impossible_decays_are_refused(D: Fraction) -> None:
    with pytest.raises(CertificateError, match="Use for example D = 1"):
        lattice_constants(D)


@pytest.mark.parametrize(("D", "m"), [("1", 0), ("1/20", 3), ("1", -2)])
def test_margins_without_a_proof_are_refused(D: str, m: int) -> None:
    with pytest.raises(CertificateError, match="larger margin"):
        margin_terms(Fraction(D), m)
